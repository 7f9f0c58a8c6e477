//! Why waiting ends without what was waited for.

use std::sync::Arc;

use crate::group::CollectiveError;

/// Why a group can no longer be used.
#[derive(Debug, Clone, Default)]
pub(crate) struct Failure {
    /// The rank that noticed it first.
    pub(crate) by: usize,
    /// The rank that was lost, if that is what happened.
    pub(crate) lost: Option<usize>,
    /// The number of its machine, if that is silent as a whole.
    pub(crate) silent_machine: Option<usize>,
    /// In words.
    pub(crate) reason: String,
    /// The error as this rank has reported it; `None` if another rank did.
    pub(crate) first: Option<Arc<CollectiveError>>,
    /// This rank has destroyed the group.
    pub(crate) destroyed: bool,
    /// A rank missed a deadline or its heartbeat timeout.
    pub(crate) hang: bool,
    /// The job ranks that `by` waited for, where its deadline passed.
    pub(crate) waiting_for: Vec<usize>,
}

/// How a rank went.
#[derive(Debug, Clone)]
pub(crate) struct Parting {
    /// It said so before; all that it had begun was finished or had failed.
    pub(crate) in_order: bool,
    /// In words.
    pub(crate) cause: String,
}

/// Why waiting ended without what was waited for.
#[derive(Debug, Clone)]
pub(crate) enum Interruption {
    /// The group failed.
    Failed(Failure),
    /// A rank that is waited for is gone.
    Gone { peer: usize, cause: String },
    /// The deadline passed; these ranks have sent nothing.
    Deadline { missing: Vec<usize> },
}
