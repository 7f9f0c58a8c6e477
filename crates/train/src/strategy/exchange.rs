//! How the ranks that hold the same model exchange tensors in a step.

use std::sync::Arc;

use everburn_collectives::group::ProcessGroup;
use everburn_distributed::{DdpError, DeviceExchange, ModuleRanks};

use super::RankLoop;
use crate::error::TrainError;
use crate::model::erased::AnyModel;

/// The way for tensors that stay on GPUs; `None` if all go through host memory.
type Exchange = Arc<dyn DeviceExchange>;

impl RankLoop {
    /// Chooses with the other ranks of `replicas` how they exchange, and connects them. All ranks call it.
    pub(super) fn connect_exchange(
        &self,
        replicas: &ProcessGroup,
    ) -> Result<Option<Exchange>, TrainError> {
        let exchange = match &self.setup.exchange {
            // Host memory, then: first values that ranks read in parts are for sharded parameters only, and else refused there.
            Some(_) if self.shards_parameters() || self.setup.initial_values.is_some() => None,
            Some(exchange) => exchange.connect(replicas)?,
            None => None,
        };
        let over = self.setup.over.as_ref();
        if let Some(exchange) = exchange.as_ref()
            && over.is_some_and(|over| over.cuts_layers())
        {
            // Layers that are cut may exchange on the same GPUs within passes.
            exchange.sum_after_passes();
        }
        Ok(exchange)
    }

    /// `model`, whose batch norms take their statistics over the samples of all ranks of `replicas`, if that is asked for:
    /// by `exchange`, if it has collectives. All ranks call it.
    pub(super) fn synchronize_batch_norms(
        &self,
        model: AnyModel,
        replicas: &ProcessGroup,
        exchange: Option<&Exchange>,
    ) -> Result<AnyModel, TrainError> {
        if !self.setup.config.sync_batch_norm {
            return Ok(model);
        }
        let mut ranks = ModuleRanks::new(replicas)?;
        if let Some(exchange) = exchange {
            ranks = ranks.with_exchange(exchange);
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
