//! How a rank meets the others that its launcher has started.

use std::net::{IpAddr, ToSocketAddrs};
use std::time::Duration;

use everburn_collectives::rendezvous::{
    Rendezvous, RendezvousError, RendezvousRequest, WaitListener, rendezvous, variable,
};

use super::{RankEnvironment, variables};
use crate::origin::StartedBy;

impl RankEnvironment {
    /// Meets the other ranks of the job, whatever has started them, within `timeout`, by default that of
    /// [`rendezvous`].
    ///
    /// # Errors
    /// As [`rendezvous`]: the error names the ranks that have not come.
    pub fn rendezvous(&self, timeout: Option<Duration>) -> Result<Rendezvous, RendezvousError> {
        self.rendezvous_telling(timeout, WaitListener::default())
    }

    /// The same; `on_wait` learns of ranks that are waited for.
    ///
    /// # Errors
    /// As [`rendezvous`].
    pub fn rendezvous_telling(
        &self,
        timeout: Option<Duration>,
        on_wait: WaitListener,
    ) -> Result<Rendezvous, RendezvousError> {
        let request = RendezvousRequest {
            rank: Some(self.rank),
            world_size: Some(self.world_size),
            timeout,
            job_token: self.job_token.clone(),
            open_store: self.open_store,
            local: self.place_by_slurm(variable("SLURM_DISTRIBUTION").as_deref()),
            on_wait,
        };
        // Under torchrun the variables say more: which part of its store belongs to this attempt.
        let init_method = match self.origin.started_by.is_foreign() {
            true => self.init_method(),
            false => "env://".to_owned(),
        };
        let mut meeting = rendezvous(&init_method, request)?;
        meeting.local_rank = self.local_rank;
        Ok(meeting)
    }

    /// A warning of rank 0 if the name of its host, where ranks of other machines are to meet it, is a loopback address there, as
    /// `/etc/hosts` may have it. An address in place of a name is loopback on purpose.
    #[must_use]
    pub fn loopback_warning(&self) -> Option<String> {
        let (host, started_by) = (&*self.master_addr, self.origin.started_by);
        let listens = self.rank == 0 && !self.launcher_hosts_store && self.etcd.is_none();
        // Pod 0 listens at all of its addresses.
        let listens_there = listens && started_by != StartedBy::Kubernetes;
        let is_name = host.trim_matches(['[', ']']).parse::<IpAddr>().is_err();
        if !(listens_there && is_name && self.world_size > self.local_world_size) {
            return None;
        }
        let addresses = (host, self.master_port).to_socket_addrs().ok()?;
        let addresses: Vec<IpAddr> = addresses.map(|address| address.ip()).collect();
        let own = addresses
            .first()
            .filter(|_| addresses.iter().all(IpAddr::is_loopback))?;
        Some(format!(
            "{host} is {own} here, which ranks on other machines cannot reach: set MASTER_ADDR to an address of this machine \
             ({}), or take {host} out of the lines of 127.0.0.1 and 127.0.1.1 in /etc/hosts",
            started_by.sets(variables::MASTER_ADDR)
        ))
    }

    /// The rank's number on its node and the node's number of ranks, where Slurm has numbered the ranks node by node; its variable
    /// is missing where nobody has asked for another `distribution`.
    pub(crate) fn place_by_slurm(&self, distribution: Option<&str>) -> Option<(usize, usize)> {
        let in_blocks = distribution.is_none_or(|it| it.starts_with("block"));
        let by_slurm = self.origin.started_by == StartedBy::Slurm;
        (by_slurm && in_blocks).then_some((self.local_rank, self.local_world_size))
    }
}
