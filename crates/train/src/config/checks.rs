//! Which values of a configuration can be used, by themselves and together.

use everburn_distributed::VirtualRanks;
use everburn_record::units::counted;

use super::{EarlyStopping, TrainingConfig};
use crate::config::balance::Balance;
use crate::config::conflicts::RunFeatures;
use crate::config::lora::LoraConfig;
use crate::error::TrainError;

impl TrainingConfig {
    /// Checks what can be checked before any work is done.
    ///
    /// # Errors
    /// [`TrainError::Config`] naming the first value that cannot be used.
    pub fn validate(&self, world_size: usize) -> Result<(), TrainError> {
        let refuse = |message: String| Err(TrainError::Config(message));
        if self.epochs == 0 {
            return refuse("`training.epochs` must be at least 1".to_string());
        }
        if self.steps == Some(0) {
            return refuse("`training.steps` must be at least 1".to_string());
        }
        if self.batch_size < world_size {
            return refuse(format!(
                "a global batch of {} cannot be shared by {world_size} ranks: \
                 use `training.batch_size = {world_size}` or more, or fewer ranks",
                counted(self.batch_size, "sample")
            ));
        }
        if self.accumulate == 0 {
            return refuse("`training.accumulate` must be at least 1".to_string());
        }
        self.validate_hashes()?;
        self.validate_virtual_ranks(world_size)?;
        self.validate_balance(world_size)?;
        self.input.validate()?;
        self.ddp
            .validate()
            .map_err(|error| TrainError::Config(error.to_string()))?;
        if self.log_every == 0 {
            return refuse("`training.log_every` must be at least 1".to_string());
        }
        if self.keep_checkpoints == 0 {
            return refuse("`training.keep_checkpoints` must be at least 1".to_string());
        }
        self.lora.as_ref().map_or(Ok(()), LoraConfig::check)?;
        if let Some(EarlyStopping { patience }) = self.early_stopping {
            if patience == 0 {
                return refuse("`training.early_stopping.patience` must be at least 1".to_string());
            }
            if self.validation_samples == Some(0) {
                return refuse(
                    "`training.early_stopping.patience` looks at the validation loss: give `training.validation_samples`"
                        .to_string(),
                );
            }
        }
        if !self.best_by.is_loss() && self.validation_samples == Some(0) {
            return refuse(
                "`training.best_by` looks at the validation: give `training.validation_samples`"
                    .to_string(),
            );
        }
        self.optimizer.check()?;
        self.validate_sync()?;
        self.validate_sharding()?;
        self.validate_chaos()?;
        self.check_conflicts(RunFeatures::default())?;
        if let Some(ema) = &self.ema {
            ema.validate()?;
        }
        // How many steps there will be is not known yet.
        let steps = self.schedule_numbers.warmup_of(0).saturating_add(1);
        for group in &self.optimizer.groups {
            let factor = group.learning_rate_factor.unwrap_or(1.0);
            let wrong =
                |error| TrainError::Config(format!("the group `{}`: {error}", group.matches));
            self.scheduler_at(factor, steps).map_err(wrong)?;
        }
        self.scheduler(steps).map(drop)
    }

    /// Checks what is said of the validation against `samples` training samples and the set that the data have for it, of
    /// `own` samples.
    ///
    /// # Errors
    /// [`TrainError::Config`] if samples are to be held out all the same, the set is empty, or no sample is left to learn
    /// from.
    pub fn check_validation(&self, samples: usize, own: Option<usize>) -> Result<(), TrainError> {
        let refuse = |message: String| Err(TrainError::Config(message));
        match (own, self.validation_samples) {
            (Some(0), _) => refuse(
                "the data have a validation set of their own, and it is empty: `TrainingData::validation` is None \
                 where training samples are to be held out"
                    .to_string(),
            ),
            (Some(own), Some(_)) => refuse(format!(
                "`training.validation_samples` holds out training samples, and the data have a validation set of their own, \
                 of {}: leave it out",
                counted(own, "sample")
            )),
            _ if samples == 0 => refuse("the training set is empty".to_owned()),
            (None, Some(held_out)) if held_out >= samples => refuse(format!(
                "`training.validation_samples = {held_out}` leaves none of the {}",
                counted(samples, "training sample")
            )),
            _ => Ok(()),
        }
    }

    /// Checks that there are test samples, before a test or a training that ends with one.
    ///
    /// # Errors
    /// [`TrainError::Config`] if there are none.
    pub fn check_test(&self, samples: usize) -> Result<(), TrainError> {
        match samples {
            0 => Err(TrainError::Config(
                "the test set is empty, and there is nothing to measure: give the data test samples, or the validation set \
                 for both"
                    .to_owned(),
            )),
            _ => Ok(()),
        }
    }

    fn validate_hashes(&self) -> Result<(), TrainError> {
        let refuse = |message: &str| Err(TrainError::Config(message.to_string()));
        match (self.hash_every, &self.hash_key) {
            (Some(0), _) => refuse("`training.hash_every` must be at least 1"),
            (None, Some(_)) => refuse(
                "`training.hash_key` signs hashes, and none are written: give `training.hash_every` too",
            ),
            _ => Ok(()),
        }
    }

    fn validate_virtual_ranks(&self, world_size: usize) -> Result<(), TrainError> {
        let Some(count) = self.virtual_ranks else {
            return Ok(());
        };
        VirtualRanks::new(count, 0, world_size)
            .map_err(|error| TrainError::Config(error.to_string()))?;
        match self.batch_size < count {
            true => Err(TrainError::Config(format!(
                "a global batch of {} cannot be divided into {count} logical shards: use \
                 `training.batch_size = {count}` or more",
                counted(self.batch_size, "sample")
            ))),
            false => Ok(()),
        }
    }

    fn validate_balance(&self, world_size: usize) -> Result<(), TrainError> {
        match &self.balance {
            Balance::Weights(weights) if weights.ranks() != world_size => {
                Err(TrainError::Config(format!(
                    "`training.balance = {weights}` is for {}, and there are {world_size}: use a weight for each \
                     rank, or `training.balance = auto`",
                    counted(weights.ranks(), "rank")
                )))
            }
            _ => Ok(()),
        }
    }

    fn validate_sharding(&self) -> Result<(), TrainError> {
        match self.offload_optimizer && self.ddp.shard.is_none() {
            true => Err(TrainError::Config(
                "`training.offload_optimizer` is for an optimizer whose state is sharded: add \
                 `training.ddp.shard = optimizer`"
                    .to_string(),
            )),
            false => Ok(()),
        }
    }

    fn validate_chaos(&self) -> Result<(), TrainError> {
        match self.chaos.overflows() && !self.precision.scales_losses() {
            true => Err(TrainError::Config(
                "`training.chaos = overflow` is for `training.precision = f16`: other types do not overflow"
                    .to_string(),
            )),
            false => Ok(()),
        }
    }

    fn validate_sync(&self) -> Result<(), TrainError> {
        self.outer
            .validate()
            .map_err(|error| TrainError::Config(error.to_string()))?;
        if let (Some(fragments), Some(every)) = (self.outer.fragments, self.sync.steps())
            && fragments > every
        {
            return Err(TrainError::Config(format!(
                "`training.outer.fragments = {fragments}` is more than `training.sync = every={every}`: a round has at \
                 least one step, so use at most {every}"
            )));
        }
        let wrong = |times: f64| !(times.is_finite() && times >= 1.0);
        match self.outer_patience.is_some_and(wrong) {
            true => Err(TrainError::Config(
                "`training.outer_patience` must be a number of at least 1".to_string(),
            )),
            false => Ok(()),
        }
    }
}
