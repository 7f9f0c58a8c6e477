//! Why there is no such schedule.

use crate::{Action, Deadlock, MAX_ACTIONS};

/// Why a [`Schedule`](crate::Schedule) could not be made.
///
/// ```
/// # mod everburn { pub use everburn_schedules as schedules; }
/// use everburn::schedules::{Schedule, ScheduleKind};
///
/// let error = Schedule::new(ScheduleKind::GPipe, 4, 8, 2).unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "gpipe has one chunk per rank, not 2: use the schedule interleaved for more"
/// );
/// ```
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ScheduleError {
    /// No schedule has this name.
    #[error("there is no schedule `{name}`: use gpipe, 1f1b, interleaved or zb-h1")]
    UnknownKind {
        /// The name that was asked for.
        name: String,
    },
    /// A number that has to be at least 1 is 0.
    #[error("a schedule needs at least one {of}, not 0")]
    Zero {
        /// What there are none of: `rank`, `micro-batch` or `chunk`.
        of: &'static str,
    },
    /// More than one chunk, with a kind that has one.
    #[error("{kind} has one chunk per rank, not {chunks}: use the schedule interleaved for more")]
    NoChunks {
        /// The kind.
        kind: crate::ScheduleKind,
        /// How many chunks were asked for.
        chunks: usize,
    },
    /// More passes than any training has in a step.
    #[error(
        "{ranks} ranks of {chunks} chunks with {micro_batches} micro-batches are more than {MAX_ACTIONS} passes per step: use fewer micro-batches"
    )]
    TooLarge {
        /// The number of ranks.
        ranks: usize,
        /// How many micro-batches.
        micro_batches: usize,
        /// How many chunks a rank.
        chunks: usize,
    },
    /// An action in the list of a rank that does not have its stage.
    #[error(
        "rank {rank} cannot do the {action}: with {ranks} ranks, stage {stage} belongs to rank \
         {owner}",
        stage = action.stage()
    )]
    WrongRank {
        /// The rank in whose list it stands.
        rank: usize,
        /// The action.
        action: Action,
        /// The rank that has the stage.
        owner: usize,
        /// How many ranks there are.
        ranks: usize,
    },
    /// An action with a stage or micro-batch that there is not.
    #[error(
        "rank {rank} cannot do the {action}: there are {stages} stages and {micro_batches} \
         micro-batches, counted from 0"
    )]
    OutOfRange {
        /// The rank in whose list it stands.
        rank: usize,
        /// The action.
        action: Action,
        /// How many stages there are.
        stages: usize,
        /// How many micro-batches there are.
        micro_batches: usize,
    },
    /// An action that has been done before, whole or in part.
    #[error("rank {rank} executes the {action} twice")]
    Twice {
        /// The rank in whose list it stands.
        rank: usize,
        /// The second of the two.
        action: Action,
    },
    /// An action that no list has.
    #[error("rank {rank} never executes the {action}")]
    Missing {
        /// The rank that has the stage.
        rank: usize,
        /// What is missing.
        action: Action,
    },
    /// The lists cannot be worked through, however long the ranks wait.
    #[error(transparent)]
    Deadlock(#[from] Deadlock),
}
