//! The gradients of a rank's local shards.

use burn::module::Module;
use burn::optim::GradientsParams;
use everburn_collectives::group::ReduceOp;

use super::ParameterShards;
use crate::error::DdpError;
use crate::sharding::gradients::GradientShards;
use crate::sharding::module_shards;
use crate::synchronization::{SyncedGradients, total_norm};

impl ParameterShards {
    /// This rank's shards of gradients that every rank has in full.
    ///
    /// # Errors
    /// [`DdpError::Read`] if a tensor cannot be read.
    pub fn shard_gradients<M: Module>(
        &mut self,
        model: &M,
        gradients: GradientsParams,
    ) -> Result<GradientsParams, DdpError> {
        let (shared, home) = (self.ddp.shared(), self.home.clone().inner());
        let numbers = &shared.numbers;
        let (sharded, bytes) = module_shards::shard_gradients(
            model,
            gradients,
            numbers,
            shared.shard_layout(),
            &home,
        )?;
        self.held.gradients = self.held.gradients.max(bytes);
        Ok(sharded)
    }

    /// The gradients of this rank's shards for a step, clipped by the norm over all ranks if
    /// [`DdpConfig::max_gradient_norm`](crate::DdpConfig::max_gradient_norm) is set. Every rank calls it.
    ///
    /// # Errors
    /// [`DdpError::GradientNotFinite`], on all ranks, if the norm is not finite; [`DdpError::Collective`] if
    /// the exchange fails; [`DdpError::Read`] if shards on a device cannot be read, which ends the group.
    pub fn average(&mut self, shards: GradientShards) -> Result<SyncedGradients, DdpError> {
        self.held.gradients = self.held.gradients.max(shards.num_bytes());
        let (mut norm, mut factor) = (None, 1.0);
        if let Some(max) = self.ddp.shared().config.max_gradient_norm {
            let group = self.ddp.group();
            let squares = shards.sums_of_squares();
            // The other ranks would wait for those of this one.
            let squares = squares.inspect_err(|error| group.abort(error.to_string()));
            // All ranks add up the same numbers in the same order.
            let mut squares = squares?;
            group.all_reduce_in_place(&mut squares, ReduceOp::Sum)?;
            let squares = squares.into_iter().enumerate();
            let (found, clips) = total_norm(squares, self.ddp.parameters(), max)?;
            (norm, factor) = (Some(found), clips);
        }
        let device = self.home.clone().inner();
        let mut gradients = GradientsParams::new();
        let parameters = self.ddp.parameters().iter();
        for (entry, shard) in parameters.zip(shards.shards) {
            let Some(shard) = shard else { continue };
            gradients.register(entry.id, shard.tensor(factor, &device));
        }
        Ok(SyncedGradients {
            gradients,
            samples: shards.samples,
            norm,
            communication: shards.communication,
        })
    }
}
