//! What can go wrong while ranks find each other.

use std::fmt;
use std::time::Duration;

use everburn_auth::AuthError;
use everburn_record::{located, units};
use serde::{Deserialize, Serialize};

use super::{MalformedVariable, StartedRank};
use crate::store::StoreError;

/// Why a rank could not join.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::rendezvous::{RendezvousError, RendezvousRequest, rendezvous};
///
/// let error = rendezvous("udp://127.0.0.1:29500", RendezvousRequest::default()).unwrap_err();
/// assert!(matches!(error, RendezvousError::UnknownMethod(..)));
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum RendezvousError {
    /// The init method is not known.
    #[error(
        "unknown init method `{0}`; use env://, tcp://host:port, etcd://host:port,host:port/job-name or file:///absolute/path"
    )]
    UnknownMethod(String),
    /// Settings are missing, all of which are named.
    #[error("the rendezvous `{init_method}` lacks {}; {hint}", .settings.join(", "))]
    Missing {
        /// The init method.
        init_method: String,
        /// Each missing setting and what it means.
        settings: Vec<String>,
        /// What sets them.
        hint: &'static str,
    },
    /// A variable is set but cannot be read.
    #[error(transparent)]
    Variable(#[from] MalformedVariable),
    /// A setting is there but cannot be read.
    #[error("{setting} is `{text}`, but must be {expected}")]
    Malformed {
        /// Which one.
        setting: &'static str,
        /// What it holds.
        text: String,
        /// What it should hold.
        expected: &'static str,
    },
    /// The address of a store in etcd cannot be read.
    #[error("{0}")]
    Address(StoreError),
    /// The token cannot be used.
    #[error("EVERBURN_JOB_TOKEN: {0}")]
    Token(#[from] AuthError),
    /// Several ranks, and nothing by which they could authenticate each other.
    #[error(
        "the ranks have no secret, so any process that reaches their store could join: give all of \
         them the same EVERBURN_JOB_TOKEN (`openssl rand -hex 32` makes one), or set \
         EVERBURN_OPEN_STORE=1 where the store is PyTorch's or shared with its clients"
    )]
    NoSecret,
    /// A world without ranks.
    #[error("the world size is 0; at least one rank is needed")]
    EmptyWorld,
    /// The rank does not exist in a world of that size.
    #[error(
        "rank {rank} is outside a world of size {world_size}; ranks are numbered from 0 to {}",
        .world_size - 1
    )]
    RankOutOfRange {
        /// The rank that was asked for.
        rank: usize,
        /// The size of the world.
        world_size: usize,
    },
    /// Two ranks were started with different world sizes.
    #[error(
        "the ranks do not agree on the world size: {} was started with {} in all, {} with {}; start all with the same{}",
        first.located(), first.world_size, other.located(), other.world_size,
        match first.machine {
            Some(_) => " (by Everburn's launcher: the same `LaunchConfig::ranks` and `LaunchConfig::nodes`)",
            None => "",
        }
    )]
    WorldSizeMismatch {
        /// The rank that came first.
        first: Box<StartedRank>,
        /// The rank that disagrees.
        other: Box<StartedRank>,
    },
    /// Two processes were started with one rank number.
    #[error(
        "rank {} was started twice: by {first} and by {other}; {}{} (or, if the store is left from an earlier run, use a \
         new store)",
        first.rank,
        match (first.machine, other.machine) {
            (Some(_), Some(_)) => "give each machine a number of its own (by Everburn's launcher: `LaunchConfig::node_rank`)",
            _ => "give each rank a number of its own",
        },
        match first.world_size == other.world_size {
            true => "",
            false => ", and start all machines with the same `LaunchConfig::ranks` and `LaunchConfig::nodes`",
        }
    )]
    RankTaken {
        /// The process that came first.
        first: Box<StartedRank>,
        /// The process that came second.
        other: Box<StartedRank>,
    },
    /// A process came for a rank after all ranks had joined.
    #[error(
        "rank {} comes too late: all ranks have met before, with {first} in its place; a job that has begun takes no other \
         process, so end it on all machines and start it again (or, if the store is left from an earlier run, use a new \
         store)",
        first.rank
    )]
    HasBegun {
        /// The process that was this rank, and has ended or cannot be seen from here.
        first: Box<StartedRank>,
    },
    /// Ranks of an elastic job and of one that is not, or of two ranges, have met.
    #[error(
        "{} was started {}, {} {}: start all machines with the same",
        first.place(), first.elasticity(), other.place(), other.elasticity()
    )]
    ElasticMismatch {
        /// The rank that came first.
        first: Box<StartedRank>,
        /// The rank that differs.
        other: Box<StartedRank>,
    },
    /// Some ranks did not come in time.
    #[error("{0}")]
    NotAllJoined(MissingRanks),
    /// The job was stopped on request before all ranks had joined.
    #[error("the job was stopped on request, on another machine, before all ranks had joined")]
    Stopped,
    /// The launcher of a machine has ended by an error of its own before its ranks had joined.
    #[error("machine {machine} has ended before all ranks had joined: {reason}")]
    GivenUp {
        /// The number of that machine.
        machine: usize,
        /// What its launcher says.
        reason: String,
    },
    /// The store could not be served or reached.
    #[error("rank {rank} cannot join: {source}")]
    Store {
        /// This rank.
        rank: usize,
        /// What the store said.
        source: StoreError,
    },
}

/// The ranks that did not join in time.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use std::time::Duration;
/// use everburn::collectives::rendezvous::MissingRanks;
///
/// let missing = MissingRanks {
///     missing: vec![2, 3],
///     world_size: 4,
///     ranks_per_machine: Some(2),
///     waited: Duration::from_secs(60),
/// };
/// assert!(missing.to_string().starts_with("only 2 of 4 ranks joined within 60 s; missing: "));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingRanks {
    /// The ranks that have not joined.
    pub missing: Vec<usize>,
    /// The size of the world.
    pub world_size: usize,
    /// How many ranks each machine has, if that is known and there are several.
    pub ranks_per_machine: Option<usize>,
    /// How long the rank waited whose deadline passed.
    pub waited: Duration,
}

impl fmt::Display for MissingRanks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of_other_machines = match self.ranks_per_machine {
            Some(_) => OF_OTHER_MACHINES,
            None => "",
        };
        let (they, they_were, their) = match self.missing.len() {
            1 => ("it", "it was", "its"),
            _ => ("they", "they were", "their"),
        };
        write!(
            f,
            "only {} of {} ranks joined within {}; missing: {}; check that {they_were} started with the same job token, \
             host and port{of_other_machines}, and did not end before {they} joined (data, flags): look at {their} output",
            self.world_size - self.missing.len(),
            self.world_size,
            units::seconds(self.waited.as_secs_f64()),
            located(&self.missing, self.ranks_per_machine)
        )
    }
}

/// How the ranks of other machines are started, where there are several.
const OF_OTHER_MACHINES: &str =
    " (by Everburn's launcher: this machine's command with another `LaunchConfig::node_rank`)";

#[cfg(test)]
mod tests {
    use everburn_tests::AssertContains;

    use super::*;

    #[test]
    fn ranks_that_are_missing_on_other_machines_may_be_started_by_the_command_of_this_one() {
        let text = |ranks_per_machine| {
            let missing = MissingRanks {
                missing: vec![2, 3],
                world_size: 4,
                ranks_per_machine,
                waited: Duration::from_secs(60),
            };
            RendezvousError::NotAllJoined(missing).to_string()
        };
        let of_machines = text(Some(2));
        let what = "job token, host and port (by Everburn's launcher: this machine's command";
        assert!(of_machines.contains(what), "{of_machines}");
        let ended = "and did not end before they joined (data, flags): look at their output";
        assert!(of_machines.ends_with(ended), "{of_machines}");
        assert!(!text(None).contains("node_rank"), "{}", text(None));
        assert!(
            text(None).ends_with("look at their output"),
            "{}",
            text(None)
        );
        let one = MissingRanks {
            missing: vec![1],
            world_size: 2,
            ranks_per_machine: None,
            waited: Duration::from_secs(8),
        };
        let expected = "only 1 of 2 ranks joined within 8 s; missing: rank 1; check that it was started with the same job \
                        token, host and port, and did not end before it joined (data, flags): look at its output";
        assert_eq!(one.to_string(), expected);
    }

    #[test]
    fn a_rank_that_two_machines_have_started_is_told_with_its_machines_and_what_to_check() {
        let text = |machine| {
            let started = |host: &str, id| {
                let mut rank = StartedRank::here(1, 2);
                (rank.process.id, rank.process.host) = (id, Some(host.to_owned()));
                Box::new(StartedRank { machine, ..rank })
            };
            let (first, other) = (started("node07", 21), started("node08", 22));
            RendezvousError::RankTaken { first, other }.to_string()
        };
        let of_machines = text(Some(1));
        of_machines.assert_contains([
                "by process 21 on node07 (machine 1, world size 2) and by process 22 on node08 (machine 1, world size 2)",
                "give each machine a number of its own (by Everburn's launcher: `LaunchConfig::node_rank`)",
            ]);
        let by_hand = text(None);
        assert!(by_hand.contains("each rank a number") && !by_hand.contains("node_rank"));
    }

    #[test]
    fn machines_with_different_ranks_are_named_with_them() {
        let text = |machines: [Option<usize>; 2]| {
            let started = |rank, world_size, machine| {
                Box::new(StartedRank {
                    machine,
                    ..StartedRank::here(rank, world_size)
                })
            };
            let [one, two] = machines;
            let (first, other) = (started(1, 2, one), started(0, 4, two));
            RendezvousError::WorldSizeMismatch { first, other }.to_string()
        };
        let of_machines = text([Some(1), Some(0)]);
        let who =
            "rank 1 of machine 1 was started with 2 in all, rank 0 of machine 0 with 4; start all";
        assert!(of_machines.contains(who), "{of_machines}");
        assert!(
            of_machines.contains("the same `LaunchConfig::ranks`"),
            "{of_machines}"
        );
        let by_hand = text([None, None]);
        assert!(by_hand.ends_with("rank 0 with 4; start all with the same"));
    }
}
