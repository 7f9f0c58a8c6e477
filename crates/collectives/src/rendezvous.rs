//! How ranks find each other: `env://`, `tcp://host:port`, `etcd://host:port,host:port/job` and `file://path`.

mod error;
#[cfg(any(test, fuzzing))]
pub(crate) mod hostile;
pub(crate) mod join;
pub(crate) mod lease;
mod rank_store;
mod settings;
mod started_rank;
mod variables;
mod wait;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

pub use error::{MissingRanks, RendezvousError};
pub use join::{give_up_joining, have_met, stop_joining};
pub use started_rank::{ProcessIdentity, StartedRank};
pub use variables::{MalformedVariable, Variables, switch, variable};
pub use wait::{RanksAwaited, WaitListener};

use everburn_auth::{JobToken, Key};

use self::join::Joining;
use self::rank_store::{Host, RankStore};
use self::settings::{Settings, StoreAddress};
use crate::store::{
    DEFAULT_STORE_TIMEOUT, Deadline, EtcdStore, FileStore, SharedStore, StoreAccess, StoreError,
    StoreOptions, TcpStore, TcpStoreServer, join_address, resolve,
};

/// What a rank has before it joins; `None` is filled from the init method.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use std::time::Duration;
/// use everburn::collectives::rendezvous::RendezvousRequest;
///
/// // Rank and world size come from RANK and WORLD_SIZE.
/// let request = RendezvousRequest {
///     timeout: Some(Duration::from_secs(60)),
///     ..RendezvousRequest::default()
/// };
/// assert_eq!(request.rank, None);
/// ```
#[derive(Debug, Clone, Default)]
pub struct RendezvousRequest {
    /// This rank's number, 0 to world size - 1.
    pub rank: Option<usize>,
    /// How many ranks there are.
    pub world_size: Option<usize>,
    /// The deadline of the whole rendezvous.
    pub timeout: Option<Duration>,
    /// The secret of the job. All its ranks prove to each other, and to its store, that they have it.
    pub job_token: Option<JobToken>,
    /// The store is one of PyTorch's, or open to its clients: nobody has to prove anything there. The
    /// token, if there is one, still protects what goes between ranks.
    pub open_store: bool,
    /// The rank's number on its machine, and how many ranks that has, where a launcher says so by other variables than
    /// LOCAL_RANK and LOCAL_WORLD_SIZE: ranks that are missing are named with their machines.
    pub local: Option<(usize, usize)>,
    /// Who learns that ranks, or the store, are waited for.
    pub on_wait: WaitListener,
}

/// A rank that has reached the store: everything that a process group is built from.
///
/// ```no_run
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::group::{GroupOptions, ProcessGroup};
/// use everburn::collectives::rendezvous::{RendezvousRequest, rendezvous};
///
/// let joined = rendezvous("env://", RendezvousRequest::default())?;
/// println!("rank {} of {}", joined.rank, joined.world_size);
/// let group = ProcessGroup::connect(joined, GroupOptions::default())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "init_process_group")]
#[derive(Debug, Clone)]
pub struct Rendezvous {
    /// The store that all ranks of the job share.
    ///
    /// Where this rank hosts it, the server lives as long as this and its clones do; the last
    /// one to go then gives the other ranks up to three seconds to finish.
    pub store: SharedStore,
    /// This rank's number.
    pub rank: usize,
    /// How many ranks there are.
    pub world_size: usize,
    /// This rank's number on its own machine.
    ///
    /// From LOCAL_RANK; without it, the rank where the store shows that all ranks are on one
    /// machine, else 0.
    pub local_rank: usize,
    /// How many ranks each machine has, in their order, so that errors can name the machine of a missing one; `None` where
    /// there is one machine, the numbers differ, or they are not known.
    pub ranks_per_machine: Option<usize>,
    /// The address on which this rank's listeners bind and which peers connect to.
    pub local_address: IpAddr,
    /// The deadline of operations that are given none.
    pub timeout: Duration,
    /// The secret of the job, which connections between ranks prove.
    ///
    /// `None`: there is no token, and the first rank puts a secret into the store, so everybody who
    /// can read the store can join.
    pub key: Option<Key>,
}

/// Joins the other ranks of a job and returns once all of them have come.
///
/// `init_method` says where they meet:
/// - `env://`: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as launchers set them. Rank 0 hosts
///   the store unless TORCHELASTIC_USE_AGENT_STORE is `True` or `1` ([`switch`]). With EVERBURN_STORE, an
///   address of etcd as below, MASTER_ADDR and MASTER_PORT are not needed.
/// - `tcp://host:port`: rank 0 hosts the store there; rank and world size come with the request.
/// - `etcd://host:port,host:port/job-name`: a store in etcd, which no process of the job serves. Jobs of
///   different names do not meet; another job needs another name, for ten minutes after the last process.
/// - `file:///path`: a file on which all ranks can take locks; it must not be left from another
///   run.
///
/// What the request says wins over the environment. LOCAL_RANK, EVERBURN_JOB_TOKEN and
/// EVERBURN_OPEN_STORE are read in every case. Several ranks that meet over TCP, and all that meet in etcd, need the
/// job's token or have to ask for an open store; a file needs neither, because only its owner can read it. The rendezvous and
/// all later operations of the store have the request's deadline, by default [`DEFAULT_STORE_TIMEOUT`].
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::rendezvous::{RendezvousRequest, rendezvous};
///
/// let request = RendezvousRequest {
///     rank: Some(0),
///     world_size: Some(1),
///     ..RendezvousRequest::default()
/// };
/// let joined = rendezvous("tcp://127.0.0.1:0", request)?;
/// joined.store.set("ready", b"yes")?;
/// assert!(joined.local_address.is_loopback());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`RendezvousError`], which names every missing or malformed setting; the ranks that disagree
/// about the world size or `--elastic`, or were started twice (on all ranks alike); those who did not come in
/// time; or what the store says.
#[doc(alias = "init_process_group")]
#[expect(
    clippy::needless_pass_by_value,
    reason = "a request is used up by the rendezvous that it asks for"
)]
pub fn rendezvous(
    init_method: &str,
    request: RendezvousRequest,
) -> Result<Rendezvous, RendezvousError> {
    rendezvous_in(init_method, &request, Variables::of(&variable))
}

/// [`rendezvous`] in an environment that need not be the process's.
fn rendezvous_in(
    init_method: &str,
    request: &RendezvousRequest,
    variables: Variables<'_>,
) -> Result<Rendezvous, RendezvousError> {
    let settings = Settings::gather(init_method, request, variables)?;
    let timeout = request.timeout.unwrap_or(DEFAULT_STORE_TIMEOUT);
    let deadline = Deadline::within(timeout);
    let (rank, world_size) = (settings.rank, settings.world_size);
    let reached = reach(&settings, timeout, deadline, &request.on_wait)
        .map_err(|source| RendezvousError::Store { rank, source })?;
    let store = RankStore::new(reached.store, settings.prefix, reached.host);
    let joining = Joining {
        store: &store,
        rank,
        world_size,
        ranks_per_machine: settings.ranks_per_machine,
        deadline,
        on_wait: &request.on_wait,
    };
    joining.join(|| store.claim(rank))?;
    let one_machine = reached.local_address.is_loopback();
    Ok(Rendezvous {
        store: Arc::new(store),
        rank,
        world_size,
        local_rank: settings
            .local_rank
            .unwrap_or(if one_machine { rank } else { 0 }),
        ranks_per_machine: settings.ranks_per_machine,
        local_address: reached.local_address,
        timeout,
        key: settings.job_token.as_ref().map(job_key),
    })
}

/// What all connections between the ranks of a job derive their keys from.
fn job_key(token: &JobToken) -> Key {
    token.key("ranks")
}

/// A launcher's store, as a rank of an elastic job has reached it.
pub(crate) struct LaunchersStore {
    pub(crate) store: SharedStore,
    /// This machine's address towards it.
    pub(crate) local_address: IpAddr,
    /// The request's.
    pub(crate) timeout: Duration,
    /// As in [`Rendezvous::key`].
    pub(crate) key: Option<Key>,
}

/// Reaches the store that a launcher hosts, or that is in etcd. Nobody else is waited for. `None`: rank 0 would have
/// to host the store.
pub(crate) fn reach_launchers_store(
    init_method: &str,
    request: &RendezvousRequest,
) -> Result<Option<LaunchersStore>, RendezvousError> {
    reach_launchers_store_in(init_method, request, Variables::of(&variable))
}

/// [`reach_launchers_store`] in an environment that need not be the process's.
fn reach_launchers_store_in(
    init_method: &str,
    request: &RendezvousRequest,
    variables: Variables<'_>,
) -> Result<Option<LaunchersStore>, RendezvousError> {
    let settings = Settings::gather(init_method, request, variables)?;
    let outlives_ranks = match settings.address {
        StoreAddress::Tcp { hosted, .. } => hosted,
        StoreAddress::Etcd(_) => true,
        StoreAddress::File(_) => false,
    };
    if !outlives_ranks {
        return Ok(None);
    }
    let timeout = request.timeout.unwrap_or(DEFAULT_STORE_TIMEOUT);
    let rank = settings.rank;
    let deadline = Deadline::within(timeout);
    let reached = reach(&settings, timeout, deadline, &request.on_wait)
        .map_err(|source| RendezvousError::Store { rank, source })?;
    // Not below the prefix of an attempt: launcher and ranks look at the same keys.
    let store = RankStore::new(reached.store, None, reached.host);
    Ok(Some(LaunchersStore {
        store: Arc::new(store),
        local_address: reached.local_address,
        timeout,
        key: settings.job_token.as_ref().map(job_key),
    }))
}

/// A store that this rank can talk to.
struct Reached {
    store: SharedStore,
    host: Option<Host>,
    local_address: IpAddr,
}

fn reach(
    settings: &Settings,
    timeout: Duration,
    deadline: Deadline,
    on_wait: &WaitListener,
) -> Result<Reached, StoreError> {
    let options = || -> Result<StoreOptions, StoreError> {
        Ok(StoreOptions {
            timeout,
            on_wait: Some(on_wait.clone()),
            ..StoreOptions::new(settings.access()?)
        })
    };
    let (host, port, hosted) = match &settings.address {
        StoreAddress::File(path) => {
            let store = FileStore::open_with_timeout(path, Some(settings.world_size), timeout)?;
            return Ok(Reached {
                store: Arc::new(store),
                host: None,
                local_address: Ipv4Addr::LOCALHOST.into(),
            });
        }
        StoreAddress::Etcd(address) => {
            let store = EtcdStore::connect(address, &options()?)?;
            return Ok(Reached {
                local_address: store.local_ip(),
                store: Arc::new(store),
                host: None,
            });
        }
        StoreAddress::Tcp { host, port, hosted } => (host.as_str(), *port, *hosted),
    };
    let options = options()?;
    let server = if settings.rank == 0 && !hosted {
        let address = listening_address(host, port, &options, deadline)?;
        Some(TcpStoreServer::bind(address, options.clone())?)
    } else {
        None
    };
    let port = server.as_ref().map_or(port, |it| it.local_addr().port());
    let address = join_address(host, port);
    let client = TcpStore::connect_within(&address, options, deadline.left())?;
    let mut local_address = client.local_ip();
    let reachable = server.as_ref().map(|it| it.local_addr().ip());
    if local_address.is_loopback() && reachable.is_some_and(|ip| ip.is_unspecified()) {
        local_address = outward_address().unwrap_or(local_address);
    }
    Ok(Reached {
        store: Arc::new(client),
        host: server.map(Host),
        local_address,
    })
}

/// The address on which rank 0 listens so that all reach it under `host`.
///
/// That is the host's own address if this machine has it. It has not where the host is a name of
/// a service or has its address translated, and on many machines the own name stands for
/// 127.0.1.1: then, given a token, every address serves.
fn listening_address(
    host: &str,
    port: u16,
    options: &StoreOptions,
    deadline: Deadline,
) -> Result<SocketAddr, StoreError> {
    let found = resolve(host, port, deadline).map_err(|fault| StoreError::Unreachable {
        address: format!("{host}:{port}"),
        operation: "listen",
        reason: fault.to_string(),
    })?;
    let preferred = found.iter().find(|address| address.is_ipv4());
    let Some(&address) = preferred.or(found.first()) else {
        return Err(StoreError::Unreachable {
            address: format!("{host}:{port}"),
            operation: "listen",
            reason: "the host has no address".into(),
        });
    };
    let every = match address.ip() {
        IpAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
    };
    let loopback_on_purpose = host == "localhost" || host.parse::<IpAddr>().is_ok();
    let ours = if address.ip().is_loopback() {
        loopback_on_purpose || options.access == StoreAccess::Open
    } else {
        // A datagram socket binds without disturbing anyone.
        UdpSocket::bind((address.ip(), 0)).is_ok()
    };
    Ok(if ours {
        address
    } else {
        SocketAddr::new(every, port)
    })
}

/// This machine's address towards the outside. Connecting a datagram socket sends nothing; the
/// target is one that is kept for documentation.
fn outward_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_unspecified()).then_some(address)
}

#[cfg(test)]
mod tests;
