//! By what the ranks that share the layers of a stage sum activations and their gradients.

use std::sync::{Arc, Mutex};

use everburn_distributed::{Connector, DeviceExchange, ModuleRanks};
use everburn_record::sync::lock;

use super::groups::Groups;
use crate::error::TrainError;

/// The way for sums that stay on GPUs; nothing before the ranks are connected, and where sums go through host memory.
#[derive(Default)]
pub(super) struct TensorExchange(Mutex<Option<Arc<dyn DeviceExchange>>>);

impl TensorExchange {
    /// The ranks of the tensor group, as layers see them: connected by what `connect` chooses with the others. All ranks call
    /// it.
    pub(super) fn connect(
        &self,
        groups: &Groups,
        connect: Option<&Connector>,
    ) -> Result<ModuleRanks, TrainError> {
        let ranks = ModuleRanks::within(&groups.tensor, &groups.job)?;
        let exchange = match connect {
            Some(connect) => connect.connect(&groups.tensor)?,
            None => None,
        };
        let ranks = match &exchange {
            Some(exchange) => ranks.with_exchange(exchange),
            None => ranks,
        };
        *lock(&self.0) = exchange;
        Ok(ranks)
    }

    /// Checks that no sum has failed by now: this thread has waited for none.
    pub(super) fn check(&self) -> Result<(), TrainError> {
        match &*lock(&self.0) {
            Some(exchange) => Ok(exchange.check()?),
            None => Ok(()),
        }
    }

    /// Waits until all sums are over, so that what was computed with them counts.
    pub(super) fn settle(&self) -> Result<(), TrainError> {
        match &*lock(&self.0) {
            Some(exchange) => Ok(exchange.settle()?),
            None => Ok(()),
        }
    }
}
