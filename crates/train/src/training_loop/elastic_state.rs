//! What a rank keeps from one group to the next.

use std::time::Instant;

use everburn_distributed::Buffers;

use super::interrupted_round::{FailedGroup, InterruptedRound};
use super::lateness::Lateness;
use super::records::Recent;
use crate::model::erased::AnyModel;

/// What a rank keeps to continue after ranks were lost or have come. A repair needs the snapshot, too.
pub(super) struct ElasticState {
    /// The model to roll back to, after the newest finished step: in elastic jobs, or after a repair.
    pub(super) snapshot: Option<(AnyModel, Buffers)>,
    /// Local steps of this rank that a failure has kept from the outer step.
    pub(super) interrupted_round: Option<InterruptedRound>,
    /// Whether a rank of the present group has such a round: the first outer step then comes at once.
    pub(super) resumes_round: bool,
    /// Whether the ranks of the present group know that they exchange tensors through host memory.
    pub(super) is_host_only: bool,
    /// The failure of the present group, while this rank makes steps by itself.
    pub(super) failed_group: FailedGroup,
    /// What the newest step and epoch had to record.
    pub(super) recent: Recent,
    /// Whether this rank has been in a group before.
    pub(super) entered: bool,
    /// How often in a row the group was formed anew without a step between.
    pub(super) futile: usize,
    /// How late this rank comes to the next step.
    pub(super) lateness: Lateness,
    /// When the newest step was finished.
    pub(super) finished_at: Instant,
    /// Ranks were lost or came since then.
    pub(super) interrupted: bool,
}

impl ElasticState {
    pub(super) fn new() -> Self {
        Self {
            snapshot: None,
            interrupted_round: None,
            resumes_round: false,
            is_host_only: false,
            failed_group: FailedGroup::default(),
            recent: Recent::default(),
            entered: false,
            futile: 0,
            lateness: Lateness::new(),
            finished_at: Instant::now(),
            interrupted: false,
        }
    }

    /// Step `step` counts.
    pub(super) fn advance(&mut self, step: usize) {
        self.recent.begin(step);
        self.futile = 0;
    }
}
