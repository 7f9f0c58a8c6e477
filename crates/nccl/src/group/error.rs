//! What can go wrong between ranks on GPUs, in words that name the culprit.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use everburn_collectives::group::CollectiveError;
use everburn_collectives::store::StoreError;
use everburn_record::ranks;

use super::status::Status;
use crate::error::LibraryError;

/// Why an operation of an [`NcclGroup`](crate::NcclGroup) failed.
///
/// Ranks in errors are ranks of the job. `sequence` is the number of collectives that this rank had
/// issued on the group before; `step` is the label of
/// [`NcclGroup::set_step`](crate::NcclGroup::set_step).
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; pub use everburn_nccl as nccl; }
/// use everburn::collectives::group::{CollectiveError, ReduceOp};
/// use everburn_nccl_fake::FakeCluster;
/// use everburn::nccl::NcclError;
///
/// let cluster = FakeCluster::new(1);
/// let group = cluster.alone();
/// let counts = cluster.allocate(0, &[1i32, 2]);
/// let error = group.all_reduce(&counts, ReduceOp::Mean).unwrap_err();
/// assert!(matches!(error, NcclError::Group(CollectiveError::Invalid { .. })));
/// assert!(error.to_string().contains("a mean does not exist for i32"));
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum NcclError {
    /// What a group fails with whatever moves its numbers: a deadline, a lost rank, an abort, an invalid call.
    #[error(transparent)]
    Group(#[from] CollectiveError),
    /// The deadline passed while the GPU was still at what had been given it before the operation.
    #[error(
        "rank {rank} waited {} for its own GPU, which has not come to {operation} (collective \
         {sequence}, step {step}): what was enqueued before is still under way; check with \
         `nvidia-smi` whether it computes, and `dmesg` for Xid",
        seconds(*.waited)
    )]
    OwnWork {
        /// This rank.
        rank: usize,
        /// What this rank called.
        operation: String,
        /// How many collectives this rank had issued on the group before.
        sequence: u64,
        /// The step.
        step: u64,
        /// How long it waited.
        waited: Duration,
    },
    /// NCCL has found something wrong.
    #[error(
        "rank {rank}: NCCL ended {operation} (collective {sequence}, step {step}) after {} with \
         {status}{}{}; {}",
        seconds(*.waited), said(.detail), suspected(.suspects), .status.advice()
    )]
    Nccl {
        /// This rank.
        rank: usize,
        /// The other ranks that send no heartbeats any more.
        suspects: Vec<usize>,
        /// What this rank called.
        operation: String,
        /// How many collectives this rank had issued on the group before.
        sequence: u64,
        /// The step.
        step: u64,
        /// How long the operation had been under way.
        waited: Duration,
        /// NCCL's answer.
        status: Status,
        /// NCCL's own words, if it had any.
        detail: String,
    },
    /// A call of NCCL does not return.
    #[error(
        "rank {rank}: NCCL has not come back from {operation} (step {step}) for {}; check the other \
         ranks' logs for the first error, and run again with NCCL_DEBUG=INFO",
        seconds(*.waited)
    )]
    NoAnswer {
        /// This rank.
        rank: usize,
        /// What it was asked for, or what waited after that.
        operation: String,
        /// The step.
        step: u64,
        /// For how long.
        waited: Duration,
    },
    /// The GPU of this rank has failed.
    #[error("rank {rank}: in {operation} (collective {sequence}, step {step}): {source}")]
    Gpu {
        /// This rank.
        rank: usize,
        /// What this rank called.
        operation: String,
        /// How many collectives this rank had issued on the group before.
        sequence: u64,
        /// The step.
        step: u64,
        /// The driver's answer.
        source: LibraryError,
    },
    /// The group had failed before this call.
    #[error("{operation} on rank {rank}: the group failed before: {first}")]
    Poisoned {
        /// This rank.
        rank: usize,
        /// What this rank called.
        operation: String,
        /// The error that made the group unusable.
        first: Arc<NcclError>,
    },
    /// The ranks did not all connect in time.
    #[error(
        "rank {rank} of {world_size} waited {} for {} to join the NCCL group `{group}`: {reason}",
        seconds(*.waited), ranks(.missing)
    )]
    Incomplete {
        /// This rank.
        rank: usize,
        /// How many ranks there should be.
        world_size: usize,
        /// The group.
        group: String,
        /// The ranks that have not come; none if all have, and NCCL has not connected them.
        missing: Vec<usize>,
        /// How long it waited.
        waited: Duration,
        /// What is known, with what to check.
        reason: String,
    },
    /// The ranks cannot be one group.
    #[error("rank {rank} cannot join the NCCL group `{group}`: {reason}")]
    Refused {
        /// This rank.
        rank: usize,
        /// The group.
        group: String,
        /// Why, and what to do.
        reason: String,
    },
    /// Memory that cannot be.
    #[error("no such buffer: {reason}; check its address, type and length")]
    Buffer {
        /// What is wrong.
        reason: String,
    },
    /// There is no library, no driver or no GPU.
    #[error(transparent)]
    Library(#[from] LibraryError),
}

impl NcclError {
    /// The error that came first: itself, or what [`NcclError::Poisoned`] wraps.
    #[must_use]
    pub fn root_cause(&self) -> &Self {
        match self {
            Self::Poisoned { first, .. } => first.root_cause(),
            other => other,
        }
    }

    /// The rank that was lost, if one was.
    #[must_use]
    pub fn lost(&self) -> Option<usize> {
        match self.root_cause() {
            Self::Group(CollectiveError::PeerLost { peer, .. }) => Some(*peer),
            Self::Nccl { suspects, .. } => suspects.first().copied(),
            _ => None,
        }
    }

    /// The number of that rank's machine, if no rank of it sends heartbeats.
    #[must_use]
    pub fn silent_machine(&self) -> Option<usize> {
        match self.root_cause() {
            Self::Group(error) => error.silent_machine(),
            _ => None,
        }
    }
}

impl From<StoreError> for NcclError {
    fn from(error: StoreError) -> Self {
        Self::Group(error.into())
    }
}

impl From<&NcclError> for CollectiveError {
    /// The first error, for callers that handle every backend alike.
    fn from(error: &NcclError) -> Self {
        let (rank, other) = match error.root_cause() {
            NcclError::Group(error) => return error.clone(),
            other @ (NcclError::OwnWork { rank, .. }
            | NcclError::Nccl { rank, .. }
            | NcclError::NoAnswer { rank, .. }
            | NcclError::Gpu { rank, .. }
            | NcclError::Poisoned { rank, .. }
            | NcclError::Incomplete { rank, .. }
            | NcclError::Refused { rank, .. }) => (*rank, other),
            other @ (NcclError::Buffer { .. } | NcclError::Library(_)) => (0, other),
        };
        Self::System {
            rank,
            action: "exchange by NCCL".to_owned(),
            reason: other.to_string(),
        }
    }
}

fn suspected(suspects: &[usize]) -> String {
    match suspects {
        [] => String::new(),
        [one] => format!("; rank {one} sends no heartbeats any more"),
        many => format!("; {} send no heartbeats any more", ranks(many)),
    }
}

fn said(detail: &str) -> String {
    match detail {
        "" => String::new(),
        detail => format!(" ({detail})"),
    }
}

fn seconds(duration: Duration) -> impl fmt::Display {
    format!("{:.3} s", duration.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeout() -> NcclError {
        NcclError::Group(CollectiveError::Timeout {
            rank: 0,
            waiting_for: vec![3],
            operation: "all_reduce(f32[21840], sum)".into(),
            sequence: 1020,
            step: 340,
            waited: Duration::from_secs(300),
            progress: "rank 3 has issued 1018 collectives".into(),
        })
    }

    #[test]
    fn a_timeout_says_who_waited_for_whom_where_and_how_long() {
        assert_eq!(
            timeout().to_string(),
            "rank 0 waited 300.000 s for rank 3 in all_reduce(f32[21840], sum) (collective 1020, \
             step 340): rank 3 has issued 1018 collectives; check whether rank 3 still runs, is \
             stuck in other work, or skipped this call"
        );
    }

    #[test]
    fn nccls_answer_stands_with_its_words_the_silent_and_what_to_check() {
        let error = NcclError::Nccl {
            rank: 1,
            suspects: vec![0, 2],
            operation: "all_gather(bf16[8])".into(),
            sequence: 4,
            step: 2,
            waited: Duration::from_millis(1500),
            status: Status::RemoteError,
            detail: "connection closed by 10.0.0.7".into(),
        };
        assert_eq!(
            error.to_string(),
            "rank 1: NCCL ended all_gather(bf16[8]) (collective 4, step 2) after 1.500 s with \
             ncclRemoteError (connection closed by 10.0.0.7); ranks 0, 2 send no heartbeats any \
             more; look at the logs of the other ranks for the first error, and check the network \
             between the machines"
        );
        assert_eq!(error.lost(), Some(0));
    }

    #[test]
    fn callers_of_every_backend_receive_the_first_error() {
        let poisoned = NcclError::Poisoned {
            rank: 0,
            operation: "broadcast(u8[1], root 0)".into(),
            first: Arc::new(timeout()),
        };
        let told = CollectiveError::from(&poisoned);
        assert!(
            matches!(&told, CollectiveError::Timeout { waiting_for, sequence: 1020, .. } if *waiting_for == [3]),
            "{told}"
        );
        let buffer = NcclError::Buffer {
            reason: "too long".into(),
        };
        assert!(matches!(
            CollectiveError::from(&buffer),
            CollectiveError::System { .. }
        ));
    }
}
