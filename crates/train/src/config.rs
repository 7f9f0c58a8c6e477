//! The configuration of a training run, as in `config.toml`.

pub(crate) mod activation_checkpointing;
pub(crate) mod best_by;
pub(crate) mod chaos;
pub(crate) mod checkpoint_every;
pub(crate) mod checkpoint_failure;
mod combinations;
pub(crate) mod divergence;
pub(crate) mod input;
pub(crate) mod lora;
pub(crate) mod loss_scaling;
pub(crate) mod optimizer;
pub(crate) mod parallel;
pub(crate) mod parameter_groups;
pub(crate) mod precision;
pub(crate) mod read_metrics;
pub(crate) mod schedule;
pub(crate) mod sync_interval;

use std::ops::RangeInclusive;

use burn::lr_scheduler::LrSchedulerConfig;
use burn::lr_scheduler::module_lr_scheduler::{ModuleLrScheduler, ModuleLrSchedulerConfig};
use burn::prelude::Device;
use everburn_distributed::{DdpConfig, OuterConfig};
use serde::{Deserialize, Serialize};

use crate::checkpoint::ema::EmaConfig;
use crate::config::activation_checkpointing::ActivationCheckpointing;
use crate::config::best_by::BestBy;
use crate::config::chaos::Chaos;
use crate::config::checkpoint_every::CheckpointEvery;
use crate::config::checkpoint_failure::OnCheckpointFailure;
use crate::config::divergence::OnDivergence;
use crate::config::input::InputConfig;
use crate::config::lora::LoraConfig;
use crate::config::optimizer::OptimizerConfig;
use crate::config::parameter_groups::Parameters;
use crate::config::precision::Precision;
use crate::config::read_metrics::ReadMetrics;
use crate::config::schedule::{Schedule, ScheduleNumbers, initialised};
use crate::config::sync_interval::SyncInterval;
use crate::error::TrainError;
use crate::seeds::mix;

/// When to stop before the last epoch.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::{EarlyStopping, TrainingConfig};
///
/// let config = TrainingConfig {
///     early_stopping: Some(EarlyStopping { patience: 2 }),
///     ..TrainingConfig::default()
/// };
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EarlyStopping {
    /// Stop after this many epochs without a better one, by [`TrainingConfig::best_by`].
    pub patience: usize,
}

/// The part of a run's configuration that says how to train, whatever the model and the data.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::TrainingConfig;
///
/// let config = TrainingConfig { epochs: 2, ..TrainingConfig::default() };
/// let text = toml::to_string(&config).unwrap();
/// assert_eq!(toml::from_str::<TrainingConfig>(&text).unwrap(), config);
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainingConfig {
    /// How often the training set is read.
    pub epochs: usize,
    /// Stop after this many steps, if that comes before the last epoch's end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<usize>,
    /// How many samples all ranks together read a step.
    pub batch_size: usize,
    /// In how many parts, one after the other, a rank runs its share of a global batch: the same
    /// step in less memory.
    pub accumulate: usize,
    /// Into how many shares each global batch is cut, whatever the number of ranks: the training then has
    /// the same bits on any. If absent, there is one for each rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub virtual_ranks: Option<usize>,
    /// Fingerprints of all that is learnt are written every N steps; never if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hash_every: Option<usize>,
    /// Metrics are written for TensorBoard, too.
    pub tensorboard: bool,
    /// Which activations are computed again in the backward pass, and not kept for it.
    pub activation_checkpointing: ActivationCheckpointing,
    /// Gradients travel while the backward pass still runs.
    pub overlap: bool,
    /// In which type of number is computed.
    pub precision: Precision,
    /// Batch norms that can, compute their statistics over all ranks' samples.
    pub sync_batch_norm: bool,
    /// The seed of initial weights, shuffling and dropout.
    pub seed: u64,
    /// How many samples at the end of the training set are held out to validate on; if absent, a
    /// tenth of them, but no more than 5,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validation_samples: Option<usize>,
    /// How many checkpoints are kept, besides the best.
    pub keep_checkpoints: usize,
    /// How often a checkpoint is written.
    pub checkpoint_every: CheckpointEvery,
    /// What happens when a checkpoint cannot be written.
    pub on_checkpoint_failure: OnCheckpointFailure,
    /// A line of `metrics.jsonl` is written every N steps.
    pub log_every: usize,
    /// When losses are read from the device.
    pub read_metrics: ReadMetrics,
    /// The ranks compare their parameters every N steps; never if 0.
    pub compare_every: usize,
    /// What becomes of a rank whose parameters have changed.
    pub on_divergence: OnDivergence,
    /// Faults on purpose, for tests and demonstrations.
    #[serde(skip_serializing_if = "Chaos::is_none")]
    pub chaos: Chaos,
    /// How the learning rate changes.
    pub schedule: Schedule,
    /// The numbers of that.
    #[serde(skip_serializing_if = "is_default")]
    pub schedule_numbers: ScheduleNumbers,
    /// When ranks become equal.
    pub sync: SyncInterval,
    /// How they do where that is not after each step.
    #[serde(skip_serializing_if = "is_default")]
    pub outer: OuterConfig,
    /// A rank that has made fewer steps joins the others' exchange with those, when it has had this many times
    /// the time that most needed; if absent, all wait for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outer_patience: Option<f64>,
    /// A moving average of the parameters; none if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ema: Option<EmaConfig>,
    /// Low-rank adaptation in place of training all parameters; none if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lora: Option<LoraConfig>,
    /// When to stop early; never if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub early_stopping: Option<EarlyStopping>,
    /// By which metric of the validation the best epoch is chosen, whose checkpoint is kept.
    #[serde(skip_serializing_if = "is_default")]
    pub best_by: BestBy,
    /// The optimizer.
    pub optimizer: OptimizerConfig,
    /// The optimizer's state is in the host's memory, where its slice is updated.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub offload_optimizer: bool,
    /// How gradients are synchronised.
    pub ddp: DdpConfig,
    /// How samples come to the device.
    pub input: InputConfig,
}

impl Default for TrainingConfig {
    fn default() -> Self {
        Self {
            epochs: 3,
            steps: None,
            batch_size: 64,
            accumulate: 1,
            virtual_ranks: None,
            hash_every: None,
            tensorboard: false,
            activation_checkpointing: ActivationCheckpointing::None,
            overlap: true,
            precision: Precision::F32,
            sync_batch_norm: false,
            seed: 42,
            validation_samples: None,
            keep_checkpoints: 2,
            checkpoint_every: CheckpointEvery::default(),
            on_checkpoint_failure: OnCheckpointFailure::default(),
            log_every: 10,
            read_metrics: ReadMetrics::default(),
            compare_every: 100,
            on_divergence: OnDivergence::default(),
            chaos: Chaos::default(),
            schedule: Schedule::Constant,
            schedule_numbers: ScheduleNumbers::default(),
            sync: SyncInterval::Step,
            outer: OuterConfig::default(),
            outer_patience: None,
            ema: None,
            lora: None,
            early_stopping: None,
            best_by: BestBy::default(),
            optimizer: OptimizerConfig::default(),
            offload_optimizer: false,
            ddp: DdpConfig::default(),
            input: InputConfig::default(),
        }
    }
}

impl TrainingConfig {
    /// How many of `samples` training samples are held out to validate on.
    pub fn held_out_of(&self, samples: usize) -> usize {
        self.validation_samples.unwrap_or((samples / 10).min(5_000))
    }

    /// How many steps the whole run makes on `samples` samples an epoch.
    pub fn total_steps(&self, samples: usize) -> usize {
        let all = samples.div_ceil(self.batch_size.max(1)) * self.epochs;
        self.steps.map_or(all, |limit| limit.min(all))
    }

    /// Whether the ranks compare their parameters after step `step`.
    pub(crate) fn compares_after(&self, step: usize) -> bool {
        self.compare_every > 0 && step.is_multiple_of(self.compare_every)
    }

    /// Whether they do after one of `steps`; where each rank takes steps by itself, these end with all of them equal.
    pub(crate) fn compares_after_any(&self, mut steps: RangeInclusive<usize>) -> bool {
        match self.sync.steps() {
            Some(_) => self.compare_every > 0,
            None => steps.any(|step| self.compares_after(step)),
        }
    }

    /// Seeds `device` for a model's initial weights.
    pub fn seed_for_weights(&self, device: &Device) {
        device.seed(mix(self.seed));
    }

    /// Checks what can be checked before any work is done.
    ///
    /// # Errors
    /// [`TrainError::Config`] naming the first value that cannot be used.
    pub fn validate(&self, world_size: usize) -> Result<(), TrainError> {
        let refuse = |message: String| Err(TrainError::Config(message));
        if self.epochs == 0 {
            return refuse("--epochs must be at least 1".to_string());
        }
        if self.steps == Some(0) {
            return refuse("--steps must be at least 1".to_string());
        }
        if self.batch_size < world_size {
            return refuse(format!(
                "a global batch of {} samples cannot be shared by {world_size} ranks: \
                 use --batch-size {world_size} or more, or fewer ranks",
                self.batch_size
            ));
        }
        if self.accumulate == 0 {
            return refuse("--accumulate must be at least 1".to_string());
        }
        if self.hash_every == Some(0) {
            return refuse("--hash-every must be at least 1".to_string());
        }
        self.validate_virtual_ranks(world_size)?;
        self.input.validate()?;
        if self.ddp.bucket_bytes == 0 {
            return refuse("--bucket-mib must be at least 1".to_string());
        }
        if let Some(norm) = self.ddp.max_gradient_norm
            && !(norm.is_finite() && norm > 0.0)
        {
            return refuse("--max-gradient-norm must be a positive number".to_string());
        }
        if self.log_every == 0 {
            return refuse("--log-every must be at least 1".to_string());
        }
        if self.keep_checkpoints == 0 {
            return refuse("--keep-checkpoints must be at least 1".to_string());
        }
        self.validate_lora()?;
        if let Some(EarlyStopping { patience }) = self.early_stopping {
            if patience == 0 {
                return refuse("--early-stopping must be at least 1".to_string());
            }
            if self.validation_samples == Some(0) {
                return refuse(
                    "--early-stopping looks at the validation loss: give --validation-samples"
                        .to_string(),
                );
            }
        }
        if !self.best_by.is_loss() && self.validation_samples == Some(0) {
            return refuse(
                "--best-by looks at the validation: give --validation-samples".to_string(),
            );
        }
        self.optimizer.check()?;
        self.validate_sync()?;
        self.validate_sharding()?;
        self.validate_precision()?;
        if let Some(ema) = &self.ema {
            ema.validate()?;
        }
        // How many steps there will be is not known yet.
        let steps = self.schedule_numbers.warmup_steps.saturating_add(1);
        for group in &self.optimizer.groups {
            let factor = group.learning_rate_factor.unwrap_or(1.0);
            let wrong =
                |error| TrainError::Config(format!("{error}, of the group `{}`", group.matches));
            self.scheduler_at(factor, steps).map_err(wrong)?;
        }
        self.scheduler(steps).map(drop)
    }

    /// Burn's scheduler of the learning rate, in a run of `total_steps` steps.
    pub(crate) fn scheduler(&self, total_steps: usize) -> Result<ModuleLrScheduler, TrainError> {
        initialised(&ModuleLrSchedulerConfig::new(
            self.scheduler_at(1.0, total_steps)?,
        ))
    }

    /// The same, with the rates of the groups of `parameters`.
    pub(crate) fn scheduler_of(
        &self,
        parameters: &Parameters,
        total_steps: usize,
    ) -> Result<ModuleLrScheduler, TrainError> {
        let mut config = ModuleLrSchedulerConfig::new(self.scheduler_at(1.0, total_steps)?);
        for (factor, group) in parameters.by_learning_rate() {
            config = config.with_group(group, self.scheduler_at(factor, total_steps)?);
        }
        initialised(&config)
    }

    /// The schedule at this many times the learning rate.
    fn scheduler_at(
        &self,
        factor: f64,
        total_steps: usize,
    ) -> Result<LrSchedulerConfig, TrainError> {
        let rate = self.optimizer.learning_rate * factor;
        let numbers = self.schedule_numbers.times(factor);
        let config = numbers.config(self.schedule, rate, total_steps)?;
        initialised(&ModuleLrSchedulerConfig::new(config.clone()))?;
        Ok(config)
    }

    /// The learning rate of each step of a run of `total_steps` steps.
    ///
    /// # Errors
    /// [`TrainError::Config`] if the schedule cannot be had, because the run ends before its warm-up say.
    pub fn learning_rates(&self, total_steps: usize) -> Result<Vec<f64>, TrainError> {
        let mut scheduler = self.scheduler(total_steps)?;
        let steps = 0..total_steps;
        Ok(steps.map(|_| scheduler.step().base()).collect())
    }

    /// Checks that the schedule fits a run on `samples` training samples, before any work is done.
    ///
    /// # Errors
    /// [`TrainError::Config`] if the run ends before its warm-up.
    pub fn check_schedule(&self, samples: usize) -> Result<(), TrainError> {
        self.scheduler(self.total_steps(samples)).map(drop)
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_out_of_range_are_named() {
        let refused = |change: fn(&mut TrainingConfig)| {
            let mut config = TrainingConfig::default();
            change(&mut config);
            config.validate(4).unwrap_err().to_string()
        };
        assert!(refused(|c| c.epochs = 0).contains("--epochs"));
        assert!(refused(|c| c.batch_size = 3).contains("4 ranks"));
        assert!(refused(|c| c.accumulate = 0).contains("--accumulate"));
        assert!(refused(|c| c.ddp.max_gradient_norm = Some(0.0)).contains("--max-gradient-norm"));
        assert!(refused(|c| c.optimizer.learning_rate = -1.0).contains("learning rate"));
        assert!(refused(|c| c.optimizer.momentum = Some(0.9)).contains("sgd"));
        assert!(refused(|c| c.early_stopping = Some(EarlyStopping { patience: 0 })).contains("1"));
        let too_high_for_cosine = refused(|c| {
            c.schedule = Schedule::Cosine;
            c.optimizer.learning_rate = 2.0;
        });
        assert!(
            too_high_for_cosine.contains("--learning-rate"),
            "{too_high_for_cosine}"
        );
        assert!(TrainingConfig::default().validate(4).is_ok());
    }

    #[test]
    fn an_unknown_key_is_refused() {
        let error = toml::from_str::<TrainingConfig>("epoch = 3")
            .unwrap_err()
            .to_string();
        assert!(error.contains("epoch"), "{error}");
    }
}
