//! What does not go together in a configuration.

use everburn_distributed::{CommunicationHookConfig, VirtualRanks};

use super::TrainingConfig;
use crate::config::divergence::OnDivergence;
use crate::config::optimizer::OptimizerKind;
use crate::config::sync_interval::SyncInterval;
use crate::error::TrainError;

impl TrainingConfig {
    /// Checks what is said of the validation against the set that the data have for it, of this many samples.
    ///
    /// # Errors
    /// [`TrainError::Config`] if samples are to be held out all the same, or the set is empty.
    pub fn check_validation(&self, own: Option<usize>) -> Result<(), TrainError> {
        let refuse = |message: String| Err(TrainError::Config(message));
        match (own, self.validation_samples) {
            (Some(0), _) => refuse(
                "the data have a validation set of their own, and it is empty: `TrainingData::validation` is None \
                 where training samples are to be held out"
                    .to_string(),
            ),
            (Some(own), Some(_)) => refuse(format!(
                "--validation-samples holds out training samples, and the data have a validation set of their own, \
                 of {own} samples: leave it out"
            )),
            _ => Ok(()),
        }
    }

    /// Refuses an optimizer that looks at whole parameters where ranks have parts of some, because they share layers.
    ///
    /// # Errors
    /// [`TrainError::Config`] naming it.
    pub fn check_shared_layers(&self, shared: bool) -> Result<(), TrainError> {
        let kind = self.optimizer.kind;
        match shared && !kind.is_elementwise() {
            true => Err(TrainError::Config(format!(
                "--optimizer {kind} and layers that several ranks share do not go together: a rank has a part of each \
                 matrix, and {kind} looks at whole ones; use {}, or a mesh with tensor=1",
                OptimizerKind::list(OptimizerKind::is_elementwise)
            ))),
            false => Ok(()),
        }
    }

    pub(super) fn validate_virtual_ranks(&self, world_size: usize) -> Result<(), TrainError> {
        let Some(count) = self.virtual_ranks else {
            return Ok(());
        };
        let refuse = |message: String| Err(TrainError::Config(message));
        VirtualRanks::new(count, 0, world_size)
            .map_err(|error| TrainError::Config(error.to_string()))?;
        if self.batch_size < count {
            let batch_size = self.batch_size;
            return refuse(format!(
                "a global batch of {batch_size} samples cannot be shared by {count} virtual ranks: use \
                 --batch-size {count} or more"
            ));
        }
        if self.accumulate > 1 {
            return refuse(
                "--accumulate and --virtual-ranks do not go together: the share of a virtual rank is \
                 computed at once, and more of them make it smaller"
                    .to_string(),
            );
        }
        if self.sync_batch_norm {
            return refuse(
                "--sync-batch-norm and --virtual-ranks do not go together: a rank computes its virtual \
                 ranks one after the other, each with statistics of its own"
                    .to_string(),
            );
        }
        if self.ddp.communication != CommunicationHookConfig::default() {
            return refuse(
                "--communication-hook and --virtual-ranks do not go together: gradients that are \
                 rounded on the way depend on the number of ranks"
                    .to_string(),
            );
        }
        Ok(())
    }

    /// Refuses what does not go with `--shard`: optimizers that look at whole parameters, for one.
    pub(super) fn validate_sharding(&self) -> Result<(), TrainError> {
        let refuse = |message: &str| Err(TrainError::Config(message.to_string()));
        let Some(stage) = self.ddp.shard else {
            return match self.offload_optimizer {
                true => refuse(
                    "--offload-optimizer is for an optimizer whose state is kept apart from the model: add \
                     --shard optimizer",
                ),
                false => Ok(()),
            };
        };
        self.ddp
            .validate()
            .map_err(|error| TrainError::Config(error.to_string()))?;
        if !self.optimizer.kind.is_elementwise() {
            let cut = OptimizerKind::list(OptimizerKind::is_elementwise);
            let kind = self.optimizer.kind;
            return refuse(&format!(
                "--shard and --optimizer {kind} do not go together: a rank has a slice of each parameter, and {kind} \
                 looks at whole ones; {cut} treat each number by itself"
            ));
        }
        if self.virtual_ranks.is_some() {
            return refuse(
                "--shard and --virtual-ranks do not go together: virtual ranks add gradients up in an order \
                 of their own, for which each rank needs all of them",
            );
        }
        if self.sync != SyncInterval::Step {
            return refuse(
                "--shard and --local-steps H do not go together: a rank that takes steps by itself needs all \
                 parameters and the optimizer's whole state",
            );
        }
        if self.hash_every.is_some() {
            return refuse(
                "--shard and --hash-every do not go together: no rank has the optimizer's whole state",
            );
        }
        if self.on_divergence == OnDivergence::Repair {
            return refuse(
                "--shard and --on-divergence repair do not go together: no other rank has a rank's shard of the optimizer's state",
            );
        }
        if stage.shards_gradients() && !self.overlap {
            return refuse(
                "--shard gradients, --shard parameters and --no-overlap do not go together: gradients that \
                 stay until the backward pass has ended are all there at once; use --shard optimizer",
            );
        }
        if stage.shards_parameters() && self.ema.is_some() {
            return refuse(
                "--shard parameters and --ema do not go together: the average follows whole parameters; use \
                 --shard gradients",
            );
        }
        if stage.shards_parameters() && self.chaos.corrupts() {
            return refuse(
                "--shard parameters and --chaos corrupt do not go together: between steps no rank has whole \
                 parameters; use --shard gradients",
            );
        }
        Ok(())
    }

    pub(super) fn validate_precision(&self) -> Result<(), TrainError> {
        let refuse = |message: &str| Err(TrainError::Config(message.to_string()));
        if !self.precision.scales_losses() {
            return match self.chaos.overflows() {
                true => {
                    refuse("--chaos overflow is for --precision f16: other types do not overflow")
                }
                false => Ok(()),
            };
        }
        if self.sync != SyncInterval::Step {
            return refuse(
                "--precision f16 and --local-steps H do not go together: ranks that take steps by themselves \
                 would each skip others, and scale their losses differently; use --precision bf16, which needs \
                 no scaling",
            );
        }
        if let CommunicationHookConfig::PowerSgd { .. } = self.ddp.communication {
            return refuse(
                "--precision f16 and --communication-hook power-sgd do not go together: what a step that \
                 overflows has lost would be added to the next; use --communication-hook bf16, or --precision \
                 bf16",
            );
        }
        Ok(())
    }

    pub(super) fn validate_sync(&self) -> Result<(), TrainError> {
        let refuse = |message: &str| Err(TrainError::Config(message.to_string()));
        self.outer
            .validate()
            .map_err(|error| TrainError::Config(error.to_string()))?;
        if self
            .outer_patience
            .is_some_and(|times| !(times.is_finite() && times >= 1.0))
        {
            return refuse("--outer-patience must be a number of at least 1");
        }
        if self.sync == SyncInterval::Step {
            return Ok(());
        }
        if self.virtual_ranks.is_some() {
            return refuse(
                "--local-steps H and --virtual-ranks do not go together: between two exchanges ranks differ, \
                 so that the result depends on their number",
            );
        }
        if self.sync_batch_norm {
            return refuse(
                "--local-steps H and --sync-batch-norm do not go together: that exchanges statistics in each \
                 step; running statistics are averaged at the exchanges",
            );
        }
        if self.ddp.communication != CommunicationHookConfig::default() {
            return refuse(
                "--local-steps H and --communication-hook do not go together: no gradients travel; \
                 --compress-outer int8 makes what does smaller",
            );
        }
        Ok(())
    }
}
