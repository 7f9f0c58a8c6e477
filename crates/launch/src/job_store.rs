//! Where the store of a job is.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use everburn_collectives::store::{
    EtcdAddress, EtcdStore, SharedStore, StoreError, StoreOptions, TcpStore, join_address,
    nobody_listens,
};

use crate::environment::variables as v;

/// How long the addresses of a store may take to be found and to answer whether anybody listens: the launcher does nothing else meanwhile.
const ANSWER: Duration = Duration::from_millis(500);

#[derive(Debug, Clone)]
pub(crate) enum JobStore {
    /// The launcher of machine 0 hosts it, at this host and port.
    Hosted(String, u16),
    /// In etcd: no machine of the job has it.
    Etcd(EtcdAddress),
}

pub(crate) struct ReachedStore {
    pub(crate) shared: SharedStore,
    /// If it is in etcd, where the last launcher ends the job.
    pub(crate) etcd: Option<Arc<EtcdStore>>,
}

impl JobStore {
    /// Tells a rank where the store is.
    pub(crate) fn tell(&self, command: &mut Command) {
        // The launcher's own variables say nothing about this job.
        for name in [v::MASTER_ADDR, v::MASTER_PORT, v::STORE] {
            command.env_remove(name);
        }
        match self {
            Self::Hosted(host, port) => command
                .env(v::MASTER_ADDR, host)
                .env(v::MASTER_PORT, port.to_string()),
            Self::Etcd(address) => command.env(v::STORE, address.to_string()),
        };
    }

    /// Connects to it: to a hosted one within `limit`, to etcd within the timeout of `options`.
    pub(crate) fn reach(
        &self,
        options: StoreOptions,
        limit: Duration,
    ) -> Result<ReachedStore, StoreError> {
        Ok(match self {
            Self::Hosted(host, port) => {
                let address = join_address(host, *port);
                ReachedStore {
                    shared: Arc::new(TcpStore::connect_within(&address, options, limit)?),
                    etcd: None,
                }
            }
            Self::Etcd(address) => {
                let store = Arc::new(EtcdStore::connect(address, &options)?);
                ReachedStore {
                    shared: store.clone(),
                    etcd: Some(store),
                }
            }
        })
    }

    /// Whether a launcher hosts it, so that it ends with the job.
    pub(crate) fn is_hosted(&self) -> bool {
        matches!(self, Self::Hosted(..))
    }

    /// Whether the machine of a hosted store answers at all of its addresses that nobody listens there any more. That of etcd
    /// outlives a job.
    pub(crate) fn has_ended(&self) -> bool {
        let Self::Hosted(host, port) = self else {
            return false;
        };
        nobody_listens(&join_address(host, *port), ANSWER)
    }
}
