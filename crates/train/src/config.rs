//! The configuration of a training run, as in `config.toml`.

pub(crate) mod activation_checkpointing;
pub(crate) mod balance;
pub(crate) mod best_by;
pub(crate) mod chaos;
pub(crate) mod checkpoint_every;
pub(crate) mod checkpoint_failure;
mod checks;
pub(crate) mod conflicts;
pub(crate) mod divergence;
pub(crate) mod fault;
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
use std::path::PathBuf;

use burn::lr_scheduler::LrSchedulerConfig;
use burn::lr_scheduler::module_lr_scheduler::{ModuleLrScheduler, ModuleLrSchedulerConfig};
use burn::prelude::Device;
use clap::{ArgAction, Args};
use everburn_distributed::{DdpConfig, OuterConfig};
use serde::de::DeserializeOwned;
use serde::de::value::{Error, StrDeserializer};
use serde::{Deserialize, Serialize};

use crate::checkpoint::ema::EmaConfig;
use crate::config::activation_checkpointing::ActivationCheckpointing;
use crate::config::balance::Balance;
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
use crate::config::schedule::{LrSchedule, ScheduleNumbers, initialised};
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
#[derive(Debug, Clone, PartialEq, Eq, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Training")]
#[serde(deny_unknown_fields)]
pub struct EarlyStopping {
    /// Stop after this many epochs without improvement of --best-by [default: never].
    #[arg(long = "early-stopping", value_name = "EPOCHS")]
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
#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Training")]
#[serde(deny_unknown_fields, default)]
pub struct TrainingConfig {
    /// The number of epochs [default: 3].
    #[arg(long)]
    pub epochs: usize,
    /// Stop after this many steps, if that comes first.
    #[arg(long)]
    pub steps: Option<usize>,
    /// Samples per step, over all ranks together [default: 64].
    #[arg(long)]
    pub batch_size: usize,
    /// Accumulate gradients over N parts of the local batch: the same step in less memory [default: 1].
    #[arg(long, value_name = "PARTS", help_heading = "Gradients")]
    pub accumulate: usize,
    /// Divide each global batch into V logical shards and sum their results in a fixed tree order: the training has the
    /// same bits on 1 to V ranks [default: one shard per rank].
    #[arg(long, value_name = "V", help_heading = "Gradients")]
    pub virtual_ranks: Option<usize>,
    /// How ranks share the samples of a global batch: equal, auto (in proportion to their measured speed), or a weight
    /// for each rank, such as 3,1 [default: equal].
    #[arg(long, value_name = "HOW", help_heading = "Gradients")]
    pub balance: Balance,
    /// Write hashes of all parameters, buffers and optimizer states to hashes.jsonl every N steps, to compare runs bit by
    /// bit [default: never].
    #[arg(long, value_name = "STEPS")]
    pub hash_every: Option<usize>,
    /// Sign each line of hashes.jsonl with the secret in this file, for `audit --key` [default: no signatures].
    #[arg(long, value_name = "FILE")]
    pub hash_key: Option<PathBuf>,
    /// Also write the metrics for TensorBoard, to the run's folder tensorboard.
    #[arg(long)]
    pub tensorboard: bool,
    /// Recompute activations in the backward pass: none, blocks (each block of the model), a number of blocks per
    /// segment, or burn (Burn's own strategy) [default: none].
    #[arg(long, value_name = "HOW", help_heading = "Gradients")]
    pub activation_checkpointing: ActivationCheckpointing,
    /// Exchange gradients while the backward pass still runs.
    #[arg(
        long = "no-overlap",
        action = ArgAction::SetFalse,
        help = "Exchange gradients after the backward pass, not while it runs",
        help_heading = "Gradients"
    )]
    pub overlap: bool,
    /// The type of matrix products: f32, bf16, f16 (with loss scaling) or tf32 (GPUs). Weights, norms, softmax, losses
    /// and exchanged gradients stay f32 [default: f32].
    #[arg(long, value_name = "TYPE", help_heading = "Gradients")]
    pub precision: Precision,
    /// Compute the statistics of batch norms over the samples of all ranks.
    #[arg(long, help_heading = "Gradients")]
    pub sync_batch_norm: bool,
    /// The seed of initial weights, shuffling and dropout [default: 42].
    #[arg(long)]
    pub seed: u64,
    /// The number of training samples held out for validation [default: a tenth, at most 5000].
    #[arg(long)]
    pub validation_samples: Option<usize>,
    /// The number of checkpoints to keep besides the best [default: 2].
    #[arg(long)]
    pub keep_checkpoints: usize,
    /// How often to write a checkpoint: 100steps, 10min or 1epoch. With steps and minutes, one is also written at the end
    /// of each epoch. The best epoch is always written [default: 1epoch].
    #[arg(long, value_name = "HOW OFTEN")]
    pub checkpoint_every: CheckpointEvery,
    /// What to do when a checkpoint cannot be written, as on a full disk: stop with the error, or continue with
    /// a warning and try again when the next one is due [default: continue].
    #[arg(long, value_name = "stop|continue")]
    pub on_checkpoint_failure: OnCheckpointFailure,
    /// Write a line of metrics.jsonl every N steps [default: 10].
    #[arg(long)]
    pub log_every: usize,
    /// When to read losses from the device: each-step, late (several steps together, so that a GPU need not wait) or
    /// auto: late for GPUs [default: auto].
    #[arg(long, value_name = "WHEN", help_heading = "Input")]
    pub read_metrics: ReadMetrics,
    /// Compare the parameters of the ranks every N steps; 0: never [default: 100].
    #[arg(long, value_name = "STEPS")]
    pub compare_every: usize,
    /// What to do with a rank whose parameters differ from the others': stop the run, or repair it with the state of
    /// the majority [default: stop].
    #[arg(long, value_name = "WHAT", value_parser = kebab::<OnDivergence>)]
    pub on_divergence: OnDivergence,
    /// Inject faults, separated by commas: kill=2@step:100, stall=1@step:50, slow=3@step:10:200ms, drop=0-2@step:30,
    /// corrupt=1@step:70, overflow=1@step:90.
    #[arg(long, value_name = "FAULTS")]
    #[serde(skip_serializing_if = "Chaos::is_none")]
    pub chaos: Chaos,
    /// The schedule of the learning rate: constant, cosine, linear or step [default: constant].
    #[arg(long = "lr-schedule", value_parser = kebab::<LrSchedule>)]
    pub schedule: LrSchedule,
    /// The numbers of the schedule. They are always written: a task's preset may have others.
    #[arg(skip)]
    pub schedule_numbers: ScheduleNumbers,
    /// Exchange parameters after this many local steps of each rank (DiLoCo, local SGD), instead of gradients in each
    /// step. 0: gradients in each step [default: 0].
    #[arg(
        long = "local-steps",
        value_name = "STEPS",
        alias = "sync",
        help_heading = "Fewer bytes"
    )]
    pub sync: SyncInterval,
    /// The outer optimizer of local steps.
    #[arg(skip)]
    #[serde(skip_serializing_if = "is_default")]
    pub outer: OuterConfig,
    /// A slow rank joins the exchange with fewer steps when its round has taken this many times the median
    /// [default: the others wait].
    #[arg(
        long,
        value_name = "TIMES",
        allow_negative_numbers = true,
        help_heading = "Fewer bytes"
    )]
    pub outer_patience: Option<f64>,
    /// A moving average of the parameters; none if absent.
    #[arg(skip)]
    pub ema: Option<EmaConfig>,
    /// Low-rank adaptation in place of training all parameters; none if absent.
    #[arg(skip)]
    pub lora: Option<LoraConfig>,
    /// When to stop early; never if absent.
    #[arg(skip)]
    pub early_stopping: Option<EarlyStopping>,
    /// The validation metric of the best epoch, whose checkpoint is kept: loss, accuracy, or another metric as min:NAME
    /// or max:NAME [default: loss].
    #[arg(long, value_name = "METRIC")]
    #[serde(skip_serializing_if = "is_default")]
    pub best_by: BestBy,
    /// The optimizer.
    #[arg(skip)]
    pub optimizer: OptimizerConfig,
    /// Keep and update this rank's shard of the optimizer's state in host memory, with --shard.
    #[arg(long, help_heading = "Gradients")]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub offload_optimizer: bool,
    /// How gradients are synchronised.
    #[arg(skip)]
    pub ddp: DdpConfig,
    /// How samples come to the device.
    #[arg(skip)]
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
            balance: Balance::default(),
            hash_every: None,
            hash_key: None,
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
            schedule: LrSchedule::Constant,
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

    /// Whether they do after one of `steps`; where each rank takes steps by itself and waits for the others, these end with all of
    /// them equal.
    pub(crate) fn compares_after_any(&self, mut steps: RangeInclusive<usize>) -> bool {
        match self.sync.steps() {
            Some(_) if self.outer.fragments.is_none() => self.compare_every > 0,
            _ => steps.any(|step| self.compares_after(step)),
        }
    }

    /// Seeds `device` for a model's initial weights.
    pub fn seed_for_weights(&self, device: &Device) {
        device.seed(mix(self.seed));
    }

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

    /// Why a run that has made `step` of `total_steps` steps trains no more; `None` while steps are left.
    pub fn nothing_left(&self, step: usize, total_steps: usize) -> Option<String> {
        let advice = match self.steps {
            _ if step < total_steps => return None,
            Some(limit) if step >= limit => {
                format!("the limit `training.steps = {limit}` stays until another is given")
            }
            _ => "more `training.epochs` continue it".to_string(),
        };
        let made = match step > total_steps {
            true => format!("{step} steps have been made, and {total_steps} were requested"),
            false => format!("{step} of {total_steps} steps have been made"),
        };
        Some(format!("nothing to train: {made}; {advice}"))
    }

    /// Checks that the schedule fits a run on `samples` training samples, before any work is done.
    ///
    /// # Errors
    /// [`TrainError::Config`] if the run ends before its warm-up.
    pub fn check_schedule(&self, samples: usize) -> Result<(), TrainError> {
        self.scheduler(self.total_steps(samples)).map(drop)
    }
}

/// Parses a unit variant by serde's name of it, so that flags and files agree.
pub(crate) fn kebab<T: DeserializeOwned>(text: &str) -> Result<T, Error> {
    T::deserialize(StrDeserializer::new(text))
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[cfg(test)]
mod tests;
