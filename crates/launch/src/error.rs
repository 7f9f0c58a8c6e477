//! What keeps a job from starting, and a rank from knowing who it is.

use std::io;
use std::path::PathBuf;

use everburn_auth::AuthError;
use everburn_collectives::group::CollectiveError;
use everburn_collectives::rendezvous::{ProcessIdentity, RendezvousError};

/// Why nothing was started, or why what was started has been ended again.
///
/// ```
/// # mod everburn { pub use everburn_launch as launch; }
/// use everburn::launch::{LaunchConfig, LaunchError, Launcher};
///
/// let error = Launcher::new(LaunchConfig::new("sh", 0, "logs")).run().unwrap_err();
/// assert!(matches!(error, LaunchError::NoRanks));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// No rank was asked for.
    #[error("0 ranks cannot train anything; ask for at least one, as in `LaunchConfig::ranks = 1`")]
    NoRanks,
    /// This machine's number is not one of the machines'.
    #[error(
        "machine {node_rank} of {nodes} does not exist: `LaunchConfig::node_rank` runs from 0 to {}",
        nodes.saturating_sub(1)
    )]
    NodeRank {
        /// How many machines there are.
        nodes: usize,
        /// The number that was given.
        node_rank: usize,
    },
    /// Another launcher of the elastic job has the number of this machine, and lives.
    #[error(
        "another launcher ({other}) runs as machine {node_rank} already: check `LaunchConfig::node_rank`, each machine of a job \
         has its own"
    )]
    NodeRankTaken {
        /// The number that was given.
        node_rank: usize,
        /// The launcher that has it.
        other: ProcessIdentity,
    },
    /// Several machines, and no address to meet at.
    #[error(
        "{nodes} machines need an address to meet at: add `LaunchConfig::rendezvous = HOST:PORT` with an \
         address of machine 0, the same on every machine; or, in an elastic job, `LaunchConfig::store = etcd://HOST:2379,...`"
    )]
    NoRendezvous {
        /// How many machines there are.
        nodes: usize,
    },
    /// A store in etcd for a job that is not elastic.
    #[error(
        "`LaunchConfig::store = {store}` keeps the membership of an elastic job, and this is none: add \
         `LaunchConfig::elastic = MIN:MAX`, or leave `LaunchConfig::store` out"
    )]
    StoreOfNoElasticJob {
        /// The store.
        store: String,
    },
    /// A store in etcd and one of machine 0.
    #[error(
        "`LaunchConfig::rendezvous` is where machine 0 hosts the store, and with `LaunchConfig::store` it is in etcd: leave one of \
         them out"
    )]
    TwoStores,
    /// Several machines, and no secret that their ranks could share.
    #[error(
        "{nodes} machines need a secret that they share: make one with `openssl rand -hex 32` and set \
         EVERBURN_JOB_TOKEN to it, the same on every machine"
    )]
    NoJobToken {
        /// How many machines there are.
        nodes: usize,
    },
    /// The secret of the job cannot be used, or none can be drawn.
    #[error("EVERBURN_JOB_TOKEN: {0}")]
    JobToken(AuthError),
    /// An elastic job of no rank.
    #[error(
        "`LaunchConfig::elastic = 0:{max}`: a job needs a rank; write `LaunchConfig::elastic = 1:{max}`"
    )]
    ElasticMinZero {
        /// The most ranks.
        max: usize,
    },
    /// The bounds of an elastic job stand the wrong way round.
    #[error(
        "`LaunchConfig::elastic = {min}:{max}`: the fewest ranks come first; write `LaunchConfig::elastic = {max}:{min}`"
    )]
    ElasticOrder {
        /// The fewest ranks.
        min: usize,
        /// The most ranks.
        max: usize,
    },
    /// The most ranks of an elastic job are another number than is started.
    #[error(
        "`LaunchConfig::elastic = {min}:{max}`, but {world_size} ranks are started (ranks per machine times machines): \
         write `LaunchConfig::elastic = {min}:{world_size}`, or start {max} ranks"
    )]
    ElasticMax {
        /// The fewest ranks.
        min: usize,
        /// The most ranks.
        max: usize,
        /// How many are started.
        world_size: usize,
    },
    /// The rendezvous address is not `host:port`.
    #[error(
        "`{given}` is no rendezvous address: write HOST:PORT (an IPv6 address in brackets), \
         with a port from 1 to 65535"
    )]
    MalformedRendezvous {
        /// The address as it was given.
        given: String,
    },
    /// The program is missing or may not be executed.
    #[error(
        "`{}` is no program that can be run: check that the file exists and is executable",
        program.display()
    )]
    ProgramNotFound {
        /// The program as it was given.
        program: PathBuf,
    },
    /// The folder for logs cannot be written.
    #[error(
        "the log folder cannot be used: `{}`: {source}; choose a folder that can be written \
         (`LaunchConfig::log_dir`)",
        path.display()
    )]
    LogDir {
        /// The file or folder that could not be made.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Something else listens at the rendezvous address.
    #[error(
        "port in use: {address} is taken by another process, perhaps an earlier run that is still \
         running; end it (`ss -ltnp 'sport = :{port}'` names it) or choose another port for \
         `LaunchConfig::rendezvous` on every machine"
    )]
    PortInUse {
        /// The address that was to be bound.
        address: String,
        /// Its port.
        port: u16,
    },
    /// The rendezvous address cannot be bound for another reason.
    #[error(
        "machine 0 cannot listen at {address}: {source}; `LaunchConfig::rendezvous` must name an address of \
         machine 0 itself"
    )]
    Bind {
        /// The address that was to be bound.
        address: String,
        /// What the system said.
        source: io::Error,
    },
    /// The store could not be started on the bound port.
    #[error("the store at {address} could not be started: {reason}")]
    Store {
        /// Where it was to listen.
        address: String,
        /// Why it did not.
        reason: String,
    },
    /// The launcher of an elastic job cannot reach the job's store.
    #[error(
        "the launcher cannot number its ranks: {reason}; check {}",
        match in_etcd {
            true => "`LaunchConfig::store`",
            false => "that the launcher of machine 0 runs, and `LaunchConfig::rendezvous`",
        }
    )]
    StoreUnreachable {
        /// What the store said.
        reason: String,
        /// Whether the store is in etcd, and machine 0 does not host it.
        in_etcd: bool,
    },
    /// An elastic job is said to have finished, and no rank of this machine had a part in it.
    #[error(
        "the job's store says that the job has finished, and no rank of this machine was started: choose another \
         `LaunchConfig::rendezvous` for another job (in etcd another secret, or \
         `LaunchConfig::store = etcd://HOST:2379,.../NAME` of another name)"
    )]
    FinishedBefore,
    /// An elastic job has ended before a rank of this machine was started.
    #[error("the job has ended before a rank of this machine was started: {reason}")]
    NothingRan {
        /// Why.
        reason: String,
    },
    /// A rank's process could not be started; those before it have been ended.
    #[error(
        "rank {rank} could not be started: {source}{}; the ranks started before it were ended",
        which_limit(.source)
    )]
    Spawn {
        /// The rank.
        rank: usize,
        /// What the system said.
        source: io::Error,
    },
    /// The launcher could not watch its ranks; all of them have been ended.
    #[error("the launcher cannot {operation}: {source}")]
    System {
        /// What it tried.
        operation: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

/// Why a process cannot find out its rank, or must not continue as one.
///
/// ```
/// # mod everburn { pub use everburn_launch as launch; }
/// use everburn::launch::RankEnvironment;
///
/// let error = RankEnvironment::from_lookup(|_| None).unwrap_err();
/// assert!(error.to_string().contains("RANK"));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RankEnvironmentError {
    /// Some of the variables that belong together are not set.
    #[error("{}: {advice}", incomplete(.found, .missing))]
    Incomplete {
        /// What is set, as `NAME=value`.
        found: Vec<String>,
        /// What is not.
        missing: Vec<String>,
        /// What to do.
        advice: String,
    },
    /// There is a world size, and nothing that says which rank this is.
    #[error(
        "{found} is set, RANK is not, and no launcher is found: start this by srun, mpirun or \
         torchrun, set RANK, or unset WORLD_SIZE to train alone"
    )]
    NoRank {
        /// What is set, as `NAME=value`.
        found: String,
    },
    /// Variables that cannot all be right.
    #[error("the environment contradicts itself: {found}; {advice}")]
    Contradiction {
        /// What is set, as `NAME=value`.
        found: String,
        /// What to do.
        advice: String,
    },
    /// There is no secret to keep strangers out.
    #[error(
        "{found} make this process a rank (unset them if they are left over); the ranks meet at {address}, and \
         EVERBURN_JOB_TOKEN is not set: set it to the same secret for all ranks \
         ({advice}). Or set EVERBURN_OPEN_STORE=1: then anyone who can reach the \
         store can join the job, and read and change its contents"
    )]
    NoJobToken {
        /// What gives the rank, as `NAME=value`.
        found: String,
        /// Where they are to meet.
        address: String,
        /// How the launcher sets a variable.
        advice: String,
    },
    /// The store is torchrun's, which has no authentication.
    #[error(
        "the ranks meet at {address}, the store of torchrun, which has no authentication: set EVERBURN_OPEN_STORE=1 for \
         all ranks to use it anyway. Anyone who can reach it can join the job, and read and change its contents"
    )]
    StoreOfTorchrun {
        /// Where they are to meet.
        address: String,
    },
    /// The secret of the job cannot be used.
    #[error("EVERBURN_JOB_TOKEN: {0}")]
    JobToken(AuthError),
    /// A variable holds something else than expected.
    #[error("the environment variable {name} is `{value}`, but must be {expected}")]
    Invalid {
        /// The variable.
        name: &'static str,
        /// What it holds.
        value: String,
        /// What it should hold, in words.
        expected: String,
    },
    /// The launcher is gone, so nobody waits for this rank.
    #[error("the launcher (process {launcher}) has ended; rank {rank} ends as well")]
    LauncherGone {
        /// The process that started this rank.
        launcher: u32,
        /// This rank.
        rank: usize,
    },
    /// The system refused to tie this process to its launcher.
    #[error("rank {rank} cannot be made to end with its launcher: {source}")]
    Guard {
        /// This rank.
        rank: usize,
        /// What the system said.
        source: io::Error,
    },
}

/// Why a rank could not join the others.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; pub use everburn_launch as launch; }
/// use std::error::Error;
///
/// use everburn::collectives::group::{GroupOptions, ProcessGroup, ReduceOp};
/// use everburn::launch::JoinError;
///
/// let alone = ProcessGroup::alone(GroupOptions::default());
/// let failure = alone.all_reduce(vec![1], ReduceOp::Mean).wait().unwrap_err();
/// let error = JoinError::from(failure);
/// assert!(error.source().is_some());
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The ranks have not met.
    #[error("{0}")]
    Rendezvous(#[from] RendezvousError),
    /// They have met, and could not connect with each other.
    #[error("{0}")]
    Collective(#[from] CollectiveError),
}

/// Where the system has refused a process for lack of something: of what.
pub(crate) fn which_limit(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory => {
            " (look at the limits of processes and memory, `ulimit -u` and `ulimit -v`, those of the container or the batch \
             system, and `free -m`)"
        }
        _ => "",
    }
}

/// `RANK=0 and WORLD_SIZE=2 are set, MASTER_ADDR is not set`.
fn incomplete(found: &[String], missing: &[String]) -> String {
    let one_or_more = |names: &[String], verb: [&str; 2]| {
        let verb = verb[usize::from(names.len() > 1)];
        format!("{} {verb} set", names.join(", "))
    };
    let missing = one_or_more(missing, ["is not", "are not"]);
    match found {
        [] => missing,
        _ => format!("{}, {missing}", one_or_more(found, ["is", "are"])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_that_the_system_refuses_names_the_limits() {
        let said = |errno: rustix::io::Errno| {
            let source = io::Error::from(errno);
            LaunchError::Spawn { rank: 1, source }.to_string()
        };
        let refused = said(rustix::io::Errno::AGAIN);
        assert!(refused.contains("`ulimit -u` and `ulimit -v`"), "{refused}");
        let absent = said(rustix::io::Errno::NOENT);
        assert!(!absent.contains("ulimit"), "{absent}");
    }

    #[test]
    fn of_a_store_in_etcd_that_is_not_reached_machine_0_is_not_suspected() {
        let text = |in_etcd| {
            let reason = "the store at etcd://a:2379 cannot be reached".to_owned();
            LaunchError::StoreUnreachable { reason, in_etcd }.to_string()
        };
        assert!(text(true).contains("etcd://a:2379"), "{}", text(true));
        assert!(!text(true).contains("machine 0"), "{}", text(true));
        let of_machine_0 =
            "check that the launcher of machine 0 runs, and `LaunchConfig::rendezvous`";
        assert!(text(false).ends_with(of_machine_0), "{}", text(false));
    }
}
