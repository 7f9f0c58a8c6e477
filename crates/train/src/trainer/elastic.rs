//! What a training whose ranks may be lost cannot be.

use super::Trainer;
use crate::error::TrainError;

impl Trainer {
    /// Refuses what does not outlive the loss of a rank: what no other rank has.
    pub(super) fn check_elastic(&self, over_ranks: bool) -> Result<(), TrainError> {
        if self.regroup.is_none() {
            return Ok(());
        }
        let refuse = |message: &str| Err(TrainError::Config(message.to_string()));
        if over_ranks {
            return refuse(
                "a model over several ranks does not outlive the loss of one: train it without --elastic",
            );
        }
        if self.config.ddp.shard.is_some() {
            return refuse(
                "--shard and --elastic do not go together: what a lost rank has kept, no other rank has; \
                 leave --elastic out, and use --resume after a loss",
            );
        }
        Ok(())
    }
}
