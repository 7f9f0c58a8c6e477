//! What can go wrong between ranks, in words that name the culprit.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use everburn_record::{located, ranks};

use crate::store::StoreError;

/// What one rank called at the place where the ranks disagree.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::group::RankCall;
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
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::group::{CollectiveError, GroupOptions, ProcessGroup, ReduceOp};
///
/// let group = ProcessGroup::over_threads(1, GroupOptions::default()).remove(0);
/// let error = group.all_reduce(vec![1i32], ReduceOp::Mean).wait().unwrap_err();
/// assert!(matches!(error, CollectiveError::Invalid { .. }));
/// assert!(error.to_string().contains("mean does not exist for i32"));
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum CollectiveError {
    /// The ranks called different things. Every rank gets the same verdict: the same calls, after
    /// its own number, step and wait.
    #[error(
        "rank {rank} at step {step}, after {}: collective {sequence} does not match: {}; check \
         that every rank runs the same program, configuration and data",
        seconds(*.waited), describe_calls(.calls)
    )]
    Mismatch {
        /// This rank.
        rank: usize,
        /// The number of the collective.
        sequence: u64,
        /// The step.
        step: u64,
        /// How long the operation had been waiting.
        waited: Duration,
        /// What each rank called, in rank order.
        calls: Vec<RankCall>,
    },
    /// A message arrived that is not what its receiver asked for.
    #[error(
        "rank {rank} waited {} for rank {peer} in {operation} (step {step}), but the message of \
         rank {peer} is {found}; check that both ranks name the same type and tag in this send \
         and receive, and send in the order in which they receive",
        seconds(*.waited)
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
        /// How long the operation had been waiting.
        waited: Duration,
    },
    /// The deadline passed.
    #[error(
        "rank {rank} waited {} for {} in {operation} (collective {sequence}, step {step}){}; check \
         whether {} still {}, or skipped this call",
        seconds(*.waited), ranks(.waiting_for), after_colon(.progress), ranks(.waiting_for),
        if .waiting_for.len() == 1 { "runs, is stuck in other work" } else { "run, are stuck in other work" }
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
        /// What else is known, or empty.
        progress: String,
    },
    /// A rank that the operation needs is gone.
    #[error(
        "rank {rank} lost rank {peer} in {operation} (collective {sequence}, step {step}, after \
         {}): {cause}; look at the output of rank {peer}, and of its launcher, for why",
        seconds(*.waited)
    )]
    PeerLost {
        /// This rank.
        rank: usize,
        /// The rank that is gone.
        peer: usize,
        /// The number of its machine, from 0, if no rank of that sends heartbeats: it is stopped or cut off as a whole.
        silent_machine: Option<usize>,
        /// What this rank called.
        operation: String,
        /// How many collectives this rank had issued on the group before.
        sequence: u64,
        /// The step.
        step: u64,
        /// How long the operation had been waiting.
        waited: Duration,
        /// How the loss was noticed.
        cause: Box<str>,
    },
    /// A rank has aborted the group.
    #[error(
        "rank {by} aborted the group (rank {rank} was in {operation}, collective {sequence}, step \
         {step}, for {}): {reason}; look at the output of rank {by} for what led to it",
        seconds(*.waited)
    )]
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
        /// How long the operation had been waiting.
        waited: Duration,
    },
    /// This rank's GPU, or the library that connects it with the others', has failed.
    #[error(
        "rank {rank}: {operation} (collective {sequence}, step {step}) failed after {}: {reason}",
        seconds(*.waited)
    )]
    Device {
        /// This rank.
        rank: usize,
        /// What this rank called.
        operation: String,
        /// How many collectives this rank had issued on the group before.
        sequence: u64,
        /// The step.
        step: u64,
        /// How long the operation had been under way.
        waited: Duration,
        /// What happened, and what to check.
        reason: Box<str>,
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
    #[error(
        "invalid call {operation} on rank {rank}: {reason}; check the arguments of this call: \
         nothing was sent"
    )]
    Invalid {
        /// This rank.
        rank: usize,
        /// What this rank called.
        operation: String,
        /// What is wrong.
        reason: String,
    },
    /// A peer sent what no rank of this version sends.
    #[error(
        "rank {peer} broke the protocol in {operation} on rank {rank} (step {step}, after {}): \
         {reason}; check that every rank runs the same build of Everburn and that nothing else \
         uses its store and ports",
        seconds(*.waited)
    )]
    Protocol {
        /// This rank.
        rank: usize,
        /// The peer.
        peer: usize,
        /// What this rank called.
        operation: String,
        /// The step; 0 while the ranks connect.
        step: u64,
        /// How long the operation had been waiting.
        waited: Duration,
        /// What was wrong.
        reason: String,
    },
    /// The ranks did not all connect in time.
    #[error(
        "rank {rank} of {world_size} waited {} for {} to connect: {reason}; check that every rank \
         was started with the same world size and that {local_address} can be reached from \
         the other machines; or two processes were started as the same rank",
        seconds(*.waited), located(.missing, *.ranks_per_machine)
    )]
    Incomplete {
        /// This rank.
        rank: usize,
        /// How many ranks there should be.
        world_size: usize,
        /// The ranks that have not come.
        missing: Vec<usize>,
        /// How many ranks each machine has, if that is known and there are several.
        ranks_per_machine: Option<usize>,
        /// The address on which this rank listens.
        local_address: Box<str>,
        /// How long it waited.
        waited: Duration,
        /// The last thing that was tried.
        reason: Box<str>,
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
    /// The data of two ranks cannot get from one to the other in the way that was asked for.
    #[error("rank {rank} cannot exchange data with the others in {operation}: {reason}")]
    NoPath {
        /// This rank.
        rank: usize,
        /// What this rank called.
        operation: String,
        /// Why, and what to do.
        reason: String,
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

    /// Whether this rank failed only because another one did: it lost that rank, or received its abort. A
    /// group that had failed before counts as what it failed of.
    #[must_use]
    pub fn is_secondary(&self) -> bool {
        let first = self.root_cause();
        matches!(first, Self::PeerLost { .. } | Self::Aborted { .. })
    }

    /// The rank because of which this one fails, if it [`is_secondary`](Self::is_secondary): it is gone or has
    /// aborted the group.
    #[must_use]
    pub fn lost_rank(&self) -> Option<usize> {
        match self.root_cause() {
            Self::PeerLost { peer, .. } => Some(*peer),
            Self::Aborted { by, .. } => Some(*by),
            _ => None,
        }
    }

    /// The number of the machine of the [`lost_rank`](Self::lost_rank), from 0, if no rank of it sends heartbeats.
    #[must_use]
    pub fn silent_machine(&self) -> Option<usize> {
        match self.root_cause() {
            Self::PeerLost { silent_machine, .. } => *silent_machine,
            _ => None,
        }
    }

    /// Whether this rank gave up because another one did not answer within the deadline.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        matches!(self.root_cause(), Self::Timeout { .. })
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

fn after_colon(text: &str) -> String {
    match text {
        "" => String::new(),
        text => format!(": {text}"),
    }
}

/// A duration as `1.250 s`.
fn seconds(duration: Duration) -> impl fmt::Display {
    format!("{:.3} s", duration.as_secs_f64())
}

#[cfg(test)]
mod tests;
