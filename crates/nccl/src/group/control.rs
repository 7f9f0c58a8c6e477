//! What else knows of the ranks' fate.

use everburn_collectives::group::{CollectiveError, ProcessGroup};

use super::error::NcclError;

/// That the ranks can no longer go on together, as others than the NCCL group know it.
///
/// ```
/// let news = everburn_nccl::Ended { by: 2, lost: None, reason: "out of memory".to_owned() };
/// assert_eq!(news.by, 2);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// The job rank that noticed it first.
    pub by: usize,
    /// The job rank that was lost, if that is what happened.
    pub lost: Option<usize>,
    /// In words.
    pub reason: String,
}

/// Whoever watches over the ranks beside an NCCL group, and is told when that fails: the job's
/// [`ProcessGroup`], whose connections notice at once what NCCL would wait for.
pub trait Control: Send + Sync {
    /// Why the ranks cannot go on, once they cannot. Asked often: it must not wait.
    fn ended(&self) -> Option<Ended>;

    /// This rank's NCCL group has failed of `error`. It must not wait for other ranks.
    fn failed(&self, error: &NcclError);
}

impl Control for ProcessGroup {
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
