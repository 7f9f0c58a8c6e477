//! Collectives on devices of the ranks that hold the same model, and of their batch norms.

use std::sync::Arc;

use everburn_collectives::group::ProcessGroup;
use everburn_distributed::{DdpError, DeviceCommunicator, ModuleRanks};

use super::RankLoop;
use crate::error::TrainError;
use crate::model::erased::AnyModel;

impl RankLoop {
    /// Connects the ranks of `replicas` for tensors that stay on GPUs, if they all can; `None` if all go through host memory.
    /// All ranks call it.
    pub(super) fn connect_communicator(
        &self,
        replicas: &ProcessGroup,
    ) -> Result<Option<Arc<dyn DeviceCommunicator>>, TrainError> {
        let communicator = match &self.setup.connector {
            // Host memory, then: first values that ranks read in parts are for sharded parameters only, and else refused there.
            Some(_) if self.shards_parameters() || self.setup.initial_values.is_some() => None,
            Some(connector) if self.elastic.is_host_only => connector.connect_by_host(replicas)?,
            Some(connector) => connector.connect(replicas)?,
            None => None,
        };
        let over = self.setup.over.as_ref();
        if let Some(communicator) = communicator.as_ref()
            && over.is_some_and(|over| over.cuts_layers())
        {
            // Layers that are cut may have collectives on the same GPUs within passes.
            communicator.sum_after_passes();
        }
        Ok(communicator)
    }

    /// `model`, whose batch norms take their statistics over the samples of all ranks of `replicas`, if that is asked for:
    /// by `communicator`, if it has collectives. All ranks call it.
    pub(super) fn synchronize_batch_norms(
        &self,
        model: AnyModel,
        replicas: &ProcessGroup,
        communicator: Option<&Arc<dyn DeviceCommunicator>>,
    ) -> Result<AnyModel, TrainError> {
        if !self.setup.config.sync_batch_norm {
            return Ok(model);
        }
        let mut ranks = ModuleRanks::new(replicas)?;
        if let Some(communicator) = communicator {
            ranks = ranks.with_communicator(communicator);
        }
        let model = everburn_nn::synchronize_batch_norms(model, Arc::new(ranks));
        let model = model.map_err(DdpError::from)?;
        if !everburn_nn::spans_ranks(&model) && self.setup.group.world_size() > 1 {
            return Err(TrainError::Config(
                "`training.sync_batch_norm` is for models with batch norms, and this one has none"
                    .to_string(),
            ));
        }
        Ok(model)
    }
}
