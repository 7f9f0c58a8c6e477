//! The settings of a rank from its request, init method and environment.

use std::path::PathBuf;

use everburn_auth::JobToken;

use super::variables::Variables;
use super::{RendezvousError, RendezvousRequest};
use crate::store::{EtcdAddress, StoreAccess, StoreError, split_address};

const ENVIRONMENT_HINT: &str = "`LaunchConfig::ranks = N`, torchrun and other launchers set \
    them; by hand, export them in every rank's shell";

const REQUEST_HINT: &str = "give them with the init method (RendezvousRequest)";

/// More ranks than a job has; what is larger is a mistake, and every rank keeps a list of all.
pub(super) const MAX_WORLD_SIZE: usize = 1 << 16;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum StoreAddress {
    /// `host` and `port`; `hosted` says whether somebody else than rank 0 serves it.
    Tcp {
        host: String,
        port: u16,
        hosted: bool,
    },
    File(PathBuf),
    /// Nobody of the job serves it.
    Etcd(EtcdAddress),
}

/// The address of a store in etcd, in place of MASTER_ADDR and MASTER_PORT.
const STORE: &str = "EVERBURN_STORE";

impl StoreAddress {
    fn of_init_method(init_method: &str) -> Result<Self, RendezvousError> {
        if let Some(address) = init_method.strip_prefix("tcp://") {
            let (host, port) = split_address(address).map_err(|_| RendezvousError::Malformed {
                setting: "the init method",
                text: init_method.to_owned(),
                expected: "of the form tcp://host:port, such as tcp://127.0.0.1:29500",
            })?;
            return Ok(Self::Tcp {
                host: host.to_owned(),
                port,
                hosted: false,
            });
        }
        if EtcdAddress::is_meant_by(init_method) {
            return Self::in_etcd(init_method);
        }
        match init_method.strip_prefix("file://") {
            Some(path) if path.starts_with('/') => Ok(Self::File(path.into())),
            Some(_) => Err(RendezvousError::Malformed {
                setting: "the init method",
                text: init_method.to_owned(),
                expected: "an absolute path with three slashes, such as file:///tmp/job1",
            }),
            None => Err(RendezvousError::UnknownMethod(init_method.to_owned())),
        }
    }

    fn in_etcd(address: &str) -> Result<Self, RendezvousError> {
        let parsed = address.parse();
        parsed.map(Self::Etcd).map_err(RendezvousError::Address)
    }
}

/// Everything that a rank needs before it joins.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) address: StoreAddress,
    pub(super) rank: usize,
    pub(super) world_size: usize,
    pub(super) local_rank: Option<usize>,
    /// How many ranks are on each machine, where there are several, and ranks are numbered machine by machine.
    pub(super) ranks_per_machine: Option<usize>,
    pub(super) job_token: Option<JobToken>,
    pub(super) open_store: bool,
    /// The part of the store that belongs to this attempt of an elastic launcher, as in PyTorch.
    pub(super) prefix: Option<String>,
}

impl Settings {
    pub(super) fn gather(
        init_method: &str,
        request: &RendezvousRequest,
        variables: Variables<'_>,
    ) -> Result<Self, RendezvousError> {
        let given = match init_method {
            "env://" => Given::by_variables(request, variables)?,
            _ => Given::by_request(init_method, request)?,
        };
        let (Some(rank), Some(world_size), Some(address)) =
            (given.rank, given.world_size, given.address)
        else {
            return Err(RendezvousError::Missing {
                init_method: init_method.to_owned(),
                settings: given.missing,
                hint: given.hint,
            });
        };
        check(rank, world_size, &address)?;
        let job_token = match &request.job_token {
            Some(token) => Some(token.clone()),
            None => variables.job_token()?,
        };
        let open_store = request.open_store || variables.flag("EVERBURN_OPEN_STORE")?;
        let others_reach_it = match address {
            StoreAddress::File(_) => false,
            StoreAddress::Tcp { .. } => world_size > 1,
            StoreAddress::Etcd(_) => true,
        };
        if others_reach_it && job_token.is_none() && !open_store {
            return Err(RendezvousError::NoSecret);
        }
        let (local_rank, here) = match request.local {
            Some((local_rank, here)) => (Some(local_rank), Some(here)),
            None => (
                variables.number("LOCAL_RANK")?,
                variables.number("LOCAL_WORLD_SIZE")?,
            ),
        };
        let alike = |here: &usize| {
            (1..world_size).contains(here)
                && world_size.is_multiple_of(*here)
                && local_rank == Some(rank % here)
        };
        Ok(Self {
            address,
            rank,
            world_size,
            local_rank,
            ranks_per_machine: here.filter(alike),
            job_token,
            open_store,
            prefix: given.prefix,
        })
    }

    /// Who may use the store. Nobody else has to reach the store of a world of one rank.
    pub(super) fn access(&self) -> Result<StoreAccess, StoreError> {
        if self.open_store {
            return Ok(StoreAccess::Open);
        }
        let token = match &self.job_token {
            Some(token) => token.clone(),
            None => JobToken::random().map_err(|error| StoreError::Invalid {
                operation: "make a secret",
                reason: error.to_string(),
            })?,
        };
        Ok(StoreAccess::Token(token))
    }
}

/// The settings that an init method gives, of which some may be missing.
struct Given {
    rank: Option<usize>,
    world_size: Option<usize>,
    address: Option<StoreAddress>,
    prefix: Option<String>,
    missing: Vec<String>,
    /// How to give them.
    hint: &'static str,
}

impl Given {
    fn by_variables(
        request: &RendezvousRequest,
        variables: Variables<'_>,
    ) -> Result<Self, RendezvousError> {
        let rank = match request.rank {
            None => variables.number("RANK")?,
            rank => rank,
        };
        let world_size = match request.world_size {
            None => variables.number("WORLD_SIZE")?,
            size => size,
        };
        let of_rank = ("RANK (this rank's number, from 0)", rank.is_some());
        let of_world = (
            "WORLD_SIZE (how many ranks there are)",
            world_size.is_some(),
        );
        if let Some(address) = variables.text(STORE) {
            return Ok(Self {
                rank,
                world_size,
                missing: missing(&[of_rank, of_world]),
                address: Some(StoreAddress::in_etcd(&address)?),
                prefix: None,
                hint: ENVIRONMENT_HINT,
            });
        }
        let host = variables.text("MASTER_ADDR");
        let port = variables.parsed("MASTER_PORT", "a port from 1 to 65535", |port| {
            port.parse::<u16>().ok()
        })?;
        let hosted = variables.flag("TORCHELASTIC_USE_AGENT_STORE")?;
        let attempt = match hosted {
            true => variables.number("TORCHELASTIC_RESTART_COUNT")?,
            false => None,
        };
        Ok(Self {
            rank,
            world_size,
            missing: missing(&[
                of_rank,
                of_world,
                ("MASTER_ADDR (the host of the store)", host.is_some()),
                ("MASTER_PORT (the port of the store)", port.is_some()),
            ]),
            address: host
                .zip(port)
                .map(|(host, port)| StoreAddress::Tcp { host, port, hosted }),
            prefix: attempt.map(|attempt| format!("/worker/attempt_{attempt}")),
            hint: ENVIRONMENT_HINT,
        })
    }

    fn by_request(init_method: &str, request: &RendezvousRequest) -> Result<Self, RendezvousError> {
        Ok(Self {
            rank: request.rank,
            world_size: request.world_size,
            missing: missing(&[
                ("the rank", request.rank.is_some()),
                ("the world size", request.world_size.is_some()),
            ]),
            address: Some(StoreAddress::of_init_method(init_method)?),
            prefix: None,
            hint: REQUEST_HINT,
        })
    }
}

/// The names that are not given.
fn missing(settings: &[(&str, bool)]) -> Vec<String> {
    let missing = settings.iter().filter(|(_, given)| !given);
    missing.map(|(name, _)| (*name).to_owned()).collect()
}

fn check(rank: usize, world_size: usize, address: &StoreAddress) -> Result<(), RendezvousError> {
    if world_size == 0 {
        return Err(RendezvousError::EmptyWorld);
    }
    if world_size > MAX_WORLD_SIZE {
        return Err(RendezvousError::Malformed {
            setting: "the world size",
            text: world_size.to_string(),
            expected: "a number of ranks, at most 65536",
        });
    }
    if rank >= world_size {
        return Err(RendezvousError::RankOutOfRange { rank, world_size });
    }
    match address {
        StoreAddress::Tcp {
            port: 0, hosted, ..
        } if *hosted || world_size > 1 => Err(RendezvousError::Malformed {
            setting: "the store's port",
            text: "0".into(),
            expected: "the port on which all ranks meet, 1 to 65535",
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
