//! What is to be launched, and whether it can be.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

use everburn_auth::{GivenToken, JobToken};
use everburn_collectives::store::{EtcdAddress, StoreAccess, split_address};

use crate::environment::variables;
use crate::error::LaunchError;

/// What to start, how often, and how patient to be when it ends.
///
/// ```
/// # mod everburn { pub use everburn_launch as launch; }
/// use everburn::launch::LaunchConfig;
///
/// let config = LaunchConfig {
///     args: vec!["train".into(), "mnist".into()],
///     ..LaunchConfig::new("/usr/local/bin/everburn", 4, "runs/a/logs")
/// };
/// assert_eq!(config.world_size(), 4);
/// ```
#[derive(Debug, Clone)]
pub struct LaunchConfig {
    /// The program that every rank runs: a path, or a name that is looked for in `PATH`.
    pub program: PathBuf,
    /// The program's arguments, the same for every rank.
    pub args: Vec<OsString>,
    /// Environment variables that every rank gets on top of the launcher's own.
    pub env: Vec<(OsString, OsString)>,
    /// How many ranks to start on this machine.
    pub ranks: usize,
    /// How many machines take part, each with as many ranks.
    pub nodes: usize,
    /// This machine's number, 0 to `nodes` - 1. Machine 0 hosts the store, unless it is in etcd.
    pub node_rank: usize,
    /// `host:port` of the store on machine 0; needed with several machines. With one machine and
    /// `None` the launcher binds a free port of 127.0.0.1.
    pub rendezvous: Option<String>,
    /// Keeps the store of an elastic job in etcd: launchers are equal then, none of them hosts it, and any machine may be
    /// lost. The same on every machine, in place of [`rendezvous`](Self::rendezvous).
    pub store: Option<EtcdAddress>,
    /// The secret of the job, which all its processes need to meet: the store, and the connections
    /// between ranks, take nobody without it. `None`: the launcher's own
    /// `EVERBURN_JOB_TOKEN`; where that is not set either, a random one on one machine, and an error on
    /// several. Ranks get it by their environment, never by the command line.
    pub job_token: Option<JobToken>,
    /// Whether the store asks for no secret, so that clients of PyTorch can use it: everybody who can
    /// reach its address, which on loopback is every user of the machine, can then read, change and
    /// delete every key, and so end or disturb the job. Ranks get [`job_token`](Self::job_token) all the
    /// same, for the connections between them.
    pub open_store: bool,
    /// Where `rank-N.log`, `rank-N.error.json` and `rank-N.finished.json` are written; created where it is
    /// missing.
    pub log_dir: PathBuf,
    /// `RAYON_NUM_THREADS` of each rank. `None`: the launcher's own `RAYON_NUM_THREADS` where it
    /// is set, else an equal share of this machine's cores.
    pub threads_per_rank: Option<usize>,
    /// Whether rank 0 may have the terminal to itself, to draw a dashboard on it. Holds only where
    /// standard input and output are a terminal and the launcher is in its foreground; elsewhere
    /// the ranks' lines are printed.
    pub dashboard: bool,
    /// Whether ranks that end are started again, and the others continue meanwhile. `None`: the first failure
    /// ends the job.
    pub elastic: Option<ElasticLaunch>,
    /// After how long without a heartbeat ranks are given up: a launcher that did not run for about as long says so, where
    /// its job fails. `None`: they are not, or it is not known.
    pub heartbeat_timeout: Option<Duration>,
    /// How long a step of a rank may take before the others give it up. A rank that computes has as long beyond
    /// [`stop_patience`](Self::stop_patience); and where in a job of several machines that is not elastic all ranks of this one
    /// are stopped (SIGSTOP) for as long, they are ended. The launcher of an elastic job tries as long to reach the store of
    /// machine 0. `None`: the one is not given any longer, the others are not ended, and the store is tried for 300 s.
    pub step_limit: Option<Duration>,
    /// After the first failure: how long the other ranks may take to end by themselves.
    pub grace: Duration,
    /// After SIGTERM because of a failure: how long until SIGKILL.
    pub kill_after: Duration,
    /// After a SIGINT or SIGTERM at the launcher: how long ranks may take to stop after their step. They have up to 10 min
    /// longer while one of them [saves](everburn_record::Saving), writes 1 MiB in 10 s, or waits for the disk: a checkpoint
    /// is not broken off. While one computes they have up to [`step_limit`](Self::step_limit) longer.
    pub stop_patience: Duration,
}

/// How a job continues when ranks end.
///
/// ```
/// # mod everburn { pub use everburn_launch as launch; }
/// use std::time::Duration;
/// use everburn::launch::ElasticLaunch;
///
/// let elastic = ElasticLaunch { max_restarts: 10, ..ElasticLaunch::new(2, 4) };
/// let pause = |number, ran| elastic.pause_before(number, Duration::from_secs(ran)).as_secs();
/// // The first restart is immediate. After that, a process that has failed at once is not followed at once.
/// assert_eq!([1, 2, 3, 4].map(|number| pause(number, 0)), [0, 10, 20, 30]);
/// assert_eq!([2, 8, 12].map(|ran| pause(2, ran)), [8, 2, 0]);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ElasticLaunch {
    /// With fewer ranks than that, over all machines, the job ends.
    pub min: usize,
    /// How many ranks there are when all are there: [`LaunchConfig::world_size`].
    pub max: usize,
    /// How often each rank is started again.
    pub max_restarts: usize,
    /// How long after the start of a process its rank is started again at the earliest, for the second time in a row; the
    /// first restart is immediate. It doubles with each restart, up to 30 s. A row ends with a process that has run for a
    /// minute.
    pub backoff: Duration,
    /// A rank whose process is stopped (SIGSTOP) for this long is ended, so that the others continue without it, and
    /// started again. One that only waits for a core is not. `None`: the heartbeats of the ranks decide alone.
    pub stopped_limit: Option<Duration>,
}

/// The default of [`ElasticLaunch::backoff`], as of containers that Kubernetes starts again. With it three restarts take 30 s
/// where each process fails at once: causes that pass (a busy port, a full disk, memory of a GPU that is not free yet) take
/// about that long.
const BACKOFF: Duration = Duration::from_secs(10);

/// The longest time from the start of a process that fails at once to the next one.
const LONGEST_BACKOFF: Duration = Duration::from_secs(30);

impl ElasticLaunch {
    /// `min` to `max` ranks, 3 restarts each, the second in a row 10 s after the first; a rank may be stopped for 1.5 s.
    #[must_use]
    pub fn new(min: usize, max: usize) -> Self {
        Self {
            min,
            max,
            max_restarts: 3,
            backoff: BACKOFF,
            stopped_limit: Some(Duration::from_millis(1500)),
        }
    }

    /// How long a rank waits before its restart `number` in a row, counted from 1, after a process that has run for `ran`.
    #[must_use]
    pub fn pause_before(&self, number: usize, ran: Duration) -> Duration {
        // One failure says little about the next process, and the others wait for it.
        let Some(doublings) = number.checked_sub(2) else {
            return Duration::ZERO;
        };
        let doublings = u32::try_from(doublings).unwrap_or(u32::MAX);
        let factor = 2_u32.saturating_pow(doublings);
        let apart = self.backoff.saturating_mul(factor).min(LONGEST_BACKOFF);
        apart.saturating_sub(ran)
    }

    fn validate(&self, world_size: usize) -> Result<(), LaunchError> {
        let (min, max) = (self.min, self.max);
        if min == 0 {
            return Err(LaunchError::ElasticMinZero { max });
        }
        if min > max {
            return Err(LaunchError::ElasticOrder { min, max });
        }
        if max != world_size {
            let min = min.min(world_size);
            return Err(LaunchError::ElasticMax {
                min,
                max,
                world_size,
            });
        }
        Ok(())
    }
}

impl LaunchConfig {
    /// `ranks` processes of `program` on one machine, with the defaults for everything else:
    /// no dashboard, 5 s of grace, 3 s from SIGTERM to SIGKILL, 60 s to stop after Ctrl-C.
    #[must_use]
    pub fn new(program: impl Into<PathBuf>, ranks: usize, log_dir: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            args: Vec::new(),
            env: Vec::new(),
            ranks,
            nodes: 1,
            node_rank: 0,
            rendezvous: None,
            store: None,
            job_token: None,
            open_store: false,
            log_dir: log_dir.into(),
            threads_per_rank: None,
            dashboard: false,
            elastic: None,
            grace: Duration::from_secs(5),
            kill_after: Duration::from_secs(3),
            stop_patience: Duration::from_secs(60),
            heartbeat_timeout: None,
            step_limit: None,
        }
    }

    /// How many ranks there are on all machines.
    #[must_use]
    pub fn world_size(&self) -> usize {
        self.ranks.saturating_mul(self.nodes)
    }

    /// The number, over all machines, of this machine's rank `local_rank`.
    #[must_use]
    pub fn global_rank(&self, local_rank: usize) -> usize {
        self.node_rank * self.ranks + local_rank
    }

    /// The log of rank `rank` (its number over all machines).
    #[must_use]
    pub fn log_path(&self, rank: usize) -> PathBuf {
        self.log_dir.join(format!("rank-{rank}.log"))
    }

    /// The file in which rank `rank` reports that it has finished.
    #[must_use]
    pub fn finished_path(&self, rank: usize) -> PathBuf {
        self.log_dir.join(format!("rank-{rank}.finished.json"))
    }

    /// The file in which rank `rank` reports its error.
    #[must_use]
    pub fn error_path(&self, rank: usize) -> PathBuf {
        self.log_dir.join(format!("rank-{rank}.error.json"))
    }

    /// Where the report of process `incarnation` of rank `rank` is once the next one has been started.
    #[must_use]
    pub fn earlier_error_path(&self, rank: usize, incarnation: u64) -> PathBuf {
        self.log_dir
            .join(format!("rank-{rank}.error.{incarnation}.json"))
    }

    /// `RAYON_NUM_THREADS` of each rank; `inherited` is the launcher's own, if any.
    pub(crate) fn resolved_threads(&self, inherited: Option<&str>) -> usize {
        self.threads_per_rank
            .or_else(|| inherited.and_then(|threads| threads.trim().parse().ok()))
            .filter(|&threads| threads > 0)
            .unwrap_or_else(|| {
                let cores = std::thread::available_parallelism().map_or(1, usize::from);
                (cores / self.ranks.max(1)).max(1)
            })
    }

    /// Refuses what can never work, whatever else runs on this machine.
    pub(crate) fn validate(&self) -> Result<(), LaunchError> {
        if self.ranks == 0 {
            return Err(LaunchError::NoRanks);
        }
        if self.nodes == 0 || self.node_rank >= self.nodes {
            return Err(LaunchError::NodeRank {
                nodes: self.nodes,
                node_rank: self.node_rank,
            });
        }
        match (&self.store, &self.rendezvous) {
            (Some(store), _) if self.elastic.is_none() => {
                let store = store.to_string();
                return Err(LaunchError::StoreOfNoElasticJob { store });
            }
            (Some(_), Some(_)) => return Err(LaunchError::TwoStores),
            (None, None) if self.nodes > 1 => {
                return Err(LaunchError::NoRendezvous { nodes: self.nodes });
            }
            _ => {}
        }
        if let Some(elastic) = &self.elastic {
            elastic.validate(self.world_size())?;
        }
        require_program(&self.program)
    }

    /// The secret of the job; `inherited` is what the launcher's own `EVERBURN_JOB_TOKEN` holds. Only on one
    /// machine does it draw one: the launchers of several could not agree.
    pub(crate) fn secret(&self, inherited: Option<&OsStr>) -> Result<JobToken, LaunchError> {
        let given = self.job_token.as_ref().map(|token| token.reveal().as_ref());
        // Also the caller's: ranks read it from their environment without the spaces around it.
        let given = given.or(inherited).unwrap_or_default();
        let given = GivenToken::from(given.to_owned()).token();
        match given.map_err(LaunchError::JobToken)? {
            Some(token) => Ok(token),
            None if self.nodes > 1 => Err(LaunchError::NoJobToken { nodes: self.nodes }),
            None => JobToken::random().map_err(LaunchError::JobToken),
        }
    }

    /// The same with the environment of this process.
    pub(crate) fn secret_of_this_job(&self) -> Result<JobToken, LaunchError> {
        self.secret(std::env::var_os(variables::JOB_TOKEN).as_deref())
    }

    pub(crate) fn store_access(&self, token: &JobToken) -> StoreAccess {
        match self.open_store {
            true => StoreAccess::Open,
            false => StoreAccess::Token(token.clone()),
        }
    }

    /// A warning about the end of an elastic job of several machines.
    pub(crate) fn single_point(&self) -> Option<String> {
        let has_one = self.elastic.is_some() && self.nodes > 1 && self.store.is_none();
        has_one.then(|| {
            format!(
                "the loss of machine 0 would end the job: its launcher hosts the store ({}); with \
                 `LaunchConfig::store = etcd://HOST:2379,...` in place of `LaunchConfig::rendezvous` no single machine would",
                self.rendezvous.as_deref().unwrap_or_default()
            )
        })
    }

    /// The rendezvous address in its two parts, brackets of IPv6 removed.
    pub(crate) fn rendezvous_parts(&self) -> Result<Option<(String, u16)>, LaunchError> {
        let Some(given) = &self.rendezvous else {
            return Ok(None);
        };
        let malformed = || LaunchError::MalformedRendezvous {
            given: given.clone(),
        };
        let (host, port) = split_address(given).map_err(|_| malformed())?;
        if port == 0 && self.nodes > 1 {
            // A port that the system chooses is unknown to the other machines.
            return Err(malformed());
        }
        Ok(Some((host.to_owned(), port)))
    }
}

/// Checks that `program` is there and may be executed.
fn require_program(program: &Path) -> Result<(), LaunchError> {
    let found = if program.components().count() > 1 {
        is_executable(program)
    } else {
        std::env::var_os("PATH").is_some_and(|path| {
            std::env::split_paths(&path).any(|folder| is_executable(&folder.join(program)))
        })
    };
    if found {
        Ok(())
    } else {
        Err(LaunchError::ProgramNotFound {
            program: program.to_path_buf(),
        })
    }
}

fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata()
        .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests;
