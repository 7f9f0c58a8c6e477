//! By what the ranks that share the layers of a stage sum activations and their gradients.

use std::sync::{Arc, Mutex};

use everburn_distributed::{Connector, DeviceCommunicator, ModuleRanks};
use everburn_record::sync::lock;

use super::groups::Groups;
use crate::error::TrainError;

/// The communicator of sums that stay on GPUs; none before the ranks are connected, and where sums go through host memory.
#[derive(Default)]
pub(super) struct TensorCommunicator(Mutex<Option<Arc<dyn DeviceCommunicator>>>);

impl TensorCommunicator {
    /// The ranks of the tensor group, as layers see them: connected by what `connector` chooses with the others. All ranks call
    /// it.
    pub(super) fn connect(
        &self,
        groups: &Groups,
        connector: Option<&Connector>,
    ) -> Result<ModuleRanks, TrainError> {
        let ranks = ModuleRanks::within(&groups.tensor, &groups.job)?;
        let communicator = match connector {
            Some(connector) => connector.connect(&groups.tensor)?,
            None => None,
        };
        let ranks = match &communicator {
            Some(communicator) => ranks.with_communicator(communicator),
            None => ranks,
        };
        *lock(&self.0) = communicator;
        Ok(ranks)
    }

    /// Checks that no sum has failed by now: this thread has waited for none.
    pub(super) fn check(&self) -> Result<(), TrainError> {
        match &*lock(&self.0) {
            Some(communicator) => Ok(communicator.check()?),
            None => Ok(()),
        }
    }

    /// Waits until all sums are over, so that what was computed with them counts.
    pub(super) fn settle(&self) -> Result<(), TrainError> {
        match &*lock(&self.0) {
            Some(communicator) => Ok(communicator.settle()?),
            None => Ok(()),
        }
    }
}
