//! Failures of ranks that others than the NCCL group detect.

use everburn_collectives::group::{CollectiveError, ProcessGroup};

use super::error::NcclError;

/// Why the ranks can no longer continue together.
///
/// ```
/// # mod everburn { pub use everburn_nccl as nccl; }
/// let ended = everburn::nccl::Ended { by: 2, lost: None, reason: "out of memory".to_owned() };
/// assert_eq!(ended.by, 2);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// The job rank that detected it first.
    pub by: usize,
    /// The job rank that was lost, if that is what happened.
    pub lost: Option<usize>,
    /// The reason as text.
    pub reason: String,
}

/// Detects failures of ranks for an NCCL group, and is notified when the group fails: the job's [`ProcessGroup`], whose
/// connections detect at once a lost rank that NCCL would wait for.
///
/// ```
/// # mod everburn { pub use everburn_nccl as nccl; }
/// use everburn::nccl::{Ended, FailureMonitor, NcclError};
///
/// /// Knows of no lost rank, and shows how the NCCL group failed.
/// struct Log;
/// impl FailureMonitor for Log {
///     fn ended(&self) -> Option<Ended> { None }
///     fn failed(&self, error: &NcclError) { eprintln!("{error}"); }
/// }
/// ```
pub trait FailureMonitor: Send + Sync {
    /// Why the ranks cannot continue, or `None` while they can. Called often: it must not block.
    fn ended(&self) -> Option<Ended>;

    /// This rank's NCCL group has failed with `error`. It must not wait for other ranks.
    fn failed(&self, error: &NcclError);
}

impl FailureMonitor for ProcessGroup {
    fn ended(&self) -> Option<Ended> {
        self.failure().map(|failure| Ended {
            by: failure.by,
            lost: failure.lost,
            reason: failure.reason,
        })
    }

    fn failed(&self, error: &NcclError) {
        let error = CollectiveError::from(error);
        self.abort_because(&error, error.to_string());
    }
}
