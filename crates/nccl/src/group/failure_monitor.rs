//! Failures of ranks that others than the NCCL group detect.

use everburn_collectives::group::{CollectiveError, GroupFailure, ProcessGroup};

use super::error::NcclError;

/// Detects failures of ranks for an NCCL group, and is notified when the group fails: the job's [`ProcessGroup`], whose
/// connections detect at once a lost rank that NCCL would wait for.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; pub use everburn_nccl as nccl; }
/// use everburn::collectives::group::GroupFailure;
/// use everburn::nccl::{FailureMonitor, NcclError};
///
/// /// Knows of no lost rank, and shows how the NCCL group failed.
/// struct Log;
/// impl FailureMonitor for Log {
///     fn ended(&self) -> Option<GroupFailure> { None }
///     fn failed(&self, error: &NcclError) { eprintln!("{error}"); }
/// }
/// ```
pub trait FailureMonitor: Send + Sync {
    /// Why the ranks cannot continue, or `None` while they can. Called often: it must not block.
    fn ended(&self) -> Option<GroupFailure>;

    /// This rank's NCCL group has failed with `error`. It must not wait for other ranks.
    fn failed(&self, error: &NcclError);
}

impl FailureMonitor for ProcessGroup {
    fn ended(&self) -> Option<GroupFailure> {
        self.failure()
    }

    fn failed(&self, error: &NcclError) {
        let error = CollectiveError::from(error);
        self.abort_because(&error, error.to_string());
    }
}
