//! What can go wrong between ranks, in words that name the culprit.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::store::StoreError;

/// What one rank called at the place where the ranks disagree.
///
/// ```
/// use everburn_collectives::group::RankCall;
///
/// let call = RankCall { rank: 3, call: Some("barrier".to_owned()) };
/// assert_eq!(call.rank, 3);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankCall {
    /// The job rank.
    pub rank: usize,
    /// The call, such as `all_reduce(f32[10], sum)`; `None` if the rank had not called anything
    /// when the deadline passed.
    pub call: Option<String>,
}

/// Why an operation between ranks failed.
///
/// Ranks in errors are always ranks of the job, not of a sub-group, so that every report names the
/// same process by the same number. `sequence` is the number of collectives that this rank had
/// issued on the group before the operation; `step` is the label of
/// [`super::ProcessGroup::set_step`].
///
/// ```
/// use everburn_collectives::group::{CollectiveError, GroupOptions, ProcessGroup, ReduceOp};
///
/// let group = ProcessGroup::over_threads(1, GroupOptions::default()).remove(0);
/// let error = group.all_reduce(vec![1i32], ReduceOp::Mean).wait().unwrap_err();
/// assert!(matches!(error, CollectiveError::Invalid { .. }));
/// assert!(error.to_string().contains("mean does not exist for i32"));
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum CollectiveError {
    /// The ranks called different things. Every rank gets the same verdict.
    #[error("collective {sequence} does not match: {}", describe_calls(.calls))]
    Mismatch {
        /// This rank.
        rank: usize,
        /// The number of the collective.
        sequence: u64,
        /// The step.
        step: u64,
        /// What each rank called, in rank order.
        calls: Vec<RankCall>,
    },
    /// A message arrived that is not what its receiver asked for.
    #[error(
        "rank {rank} called {operation} at step {step}, but the message of rank {peer} is {found}"
    )]
    WrongMessage {
        /// This rank.
        rank: usize,
        /// The sender.
        peer: usize,
        /// What this rank called.
        operation: String,
        /// What came, such as `f64[3]`.
        found: String,
        /// The step.
        step: u64,
    },
    /// The deadline passed.
    #[error(
        "rank {rank} waited {} for {} in {operation} (collective {sequence}, step {step}); check \
         whether {} still runs, is stuck in other work, or skipped this call",
        seconds(*.waited), ranks(.waiting_for), ranks(.waiting_for)
    )]
    Timeout {
        /// This rank.
        rank: usize,
        /// The ranks from which something was missing.
        waiting_for: Vec<usize>,
        /// What this rank called.
        operation: String,
        /// How many collectives this rank had issued on the group before.
        sequence: u64,
        /// The step.
        step: u64,
        /// How long it waited.
        waited: Duration,
    },
    /// A rank that the operation needs is gone.
    #[error(
        "rank {rank} lost rank {peer} in {operation} (collective {sequence}, step {step}, after \
         {}): {cause}; look at the log of rank {peer} for its own error",
        seconds(*.waited)
    )]
    PeerLost {
        /// This rank.
        rank: usize,
        /// The rank that is gone.
        peer: usize,
        /// What this rank called.
        operation: String,
        /// How many collectives this rank had issued on the group before.
        sequence: u64,
        /// The step.
        step: u64,
        /// How long the operation had been waiting.
        waited: Duration,
        /// How the loss was noticed.
        cause: String,
    },
    /// A rank gave up and told the others.
    #[error("rank {by} aborted the group (rank {rank} was in {operation}, step {step}): {reason}")]
    Aborted {
        /// This rank.
        rank: usize,
        /// The rank that gave up.
        by: usize,
        /// Its reason.
        reason: String,
        /// What this rank called.
        operation: String,
        /// How many collectives this rank had issued on the group before.
        sequence: u64,
        /// The step.
        step: u64,
    },
    /// The group had failed before this call.
    #[error("{operation} on rank {rank}: the group failed before: {first}")]
    Poisoned {
        /// This rank.
        rank: usize,
        /// What this rank called.
        operation: String,
        /// The error that made the group unusable.
        first: Arc<CollectiveError>,
    },
    /// The group was destroyed on this rank.
    #[error("{operation} on rank {rank}: this rank has destroyed the group")]
    Destroyed {
        /// This rank.
        rank: usize,
        /// What this rank called.
        operation: String,
    },
    /// The arguments can never succeed. Nothing was sent and the group stays usable.
    #[error("invalid call {operation} on rank {rank}: {reason}")]
    Invalid {
        /// This rank.
        rank: usize,
        /// What this rank called.
        operation: String,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// A peer sent what no rank of this version sends.
    #[error("rank {peer} broke the protocol in {operation} on rank {rank}: {reason}")]
    Protocol {
        /// This rank.
        rank: usize,
        /// The peer.
        peer: usize,
        /// What this rank called.
        operation: String,
        /// What was wrong.
        reason: String,
    },
    /// The ranks did not all connect in time.
    #[error(
        "rank {rank} of {world_size} waited {} for {} to connect: {reason}; check that every rank \
         was started with the same world size and that {local_address} can be reached from \
         the other machines",
        seconds(*.waited), ranks(.missing)
    )]
    Incomplete {
        /// This rank.
        rank: usize,
        /// How many ranks there should be.
        world_size: usize,
        /// The ranks that have not come.
        missing: Vec<usize>,
        /// The address on which this rank listens.
        local_address: String,
        /// How long it waited.
        waited: Duration,
        /// The last thing that was tried.
        reason: String,
    },
    /// A rank was started with another world size.
    #[error(
        "rank {peer} was started with world size {theirs}, rank {rank} with {ours}; start all \
         ranks with the same one"
    )]
    WorldSize {
        /// This rank.
        rank: usize,
        /// The other rank.
        peer: usize,
        /// This rank's world size.
        ours: usize,
        /// The other rank's world size.
        theirs: usize,
    },
    /// The operating system refused a socket or a thread.
    #[error("rank {rank} cannot {action}: {reason}")]
    System {
        /// This rank.
        rank: usize,
        /// What was tried.
        action: String,
        /// The system's answer.
        reason: String,
    },
    /// The store failed while the ranks were looking for each other.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl CollectiveError {
    /// The error that came first: itself, or what [`CollectiveError::Poisoned`] wraps.
    #[must_use]
    pub fn root_cause(&self) -> &Self {
        match self {
            Self::Poisoned { first, .. } => first.root_cause(),
            other => other,
        }
    }
}

/// `rank 0 called x; ranks 1, 2 called y`, in the order of each call's lowest rank.
fn describe_calls(calls: &[RankCall]) -> String {
    let mut groups: Vec<(&Option<String>, Vec<usize>)> = Vec::new();
    for RankCall { rank, call } in calls {
        match groups.iter_mut().find(|(known, _)| *known == call) {
            Some((_, members)) => members.push(*rank),
            None => groups.push((call, vec![*rank])),
        }
    }
    let parts: Vec<String> = groups
        .iter()
        .map(|(call, members)| match call {
            Some(call) => format!("{} called {call}", ranks(members)),
            None => format!("{} called nothing in time", ranks(members)),
        })
        .collect();
    parts.join("; ")
}

/// `rank 3`, `ranks 1, 2` or `no rank`.
pub(crate) fn ranks(ranks: &[usize]) -> String {
    match ranks {
        [] => "no rank".to_owned(),
        [one] => format!("rank {one}"),
        many => {
            let many: Vec<String> = many.iter().map(ToString::to_string).collect();
            format!("ranks {}", many.join(", "))
        }
    }
}

/// A duration as `1.250 s`.
fn seconds(duration: Duration) -> impl fmt::Display {
    format!("{:.3} s", duration.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mismatch_lists_what_each_rank_called() {
        let call = |rank, call: &str| RankCall {
            rank,
            call: Some(call.to_owned()),
        };
        let error = CollectiveError::Mismatch {
            rank: 1,
            sequence: 5,
            step: 0,
            calls: vec![call(0, "all_reduce(f32[10], sum)"), call(1, "barrier")],
        };
        assert_eq!(
            error.to_string(),
            "collective 5 does not match: rank 0 called all_reduce(f32[10], sum); \
             rank 1 called barrier"
        );
    }

    #[test]
    fn equal_calls_are_named_together() {
        let calls = [(0, Some("a")), (1, Some("b")), (2, Some("a")), (3, None)];
        let calls = calls.map(|(rank, call)| RankCall {
            rank,
            call: call.map(str::to_owned),
        });
        assert_eq!(
            describe_calls(&calls),
            "ranks 0, 2 called a; rank 1 called b; rank 3 called nothing in time"
        );
    }
}
