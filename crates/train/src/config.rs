//! What a training run can be told, all of it written to `config.toml`.

use burn::lr_scheduler::constant::ConstantLr;
use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamConfig, AdamWConfig, ModuleOptimizer, SgdConfig};
use burn::prelude::Device;
use everburn_distributed::{CommunicationHookConfig, DdpConfig, VirtualRanks};
use serde::{Deserialize, Serialize};

use crate::activation_checkpointing::ActivationCheckpointing;
use crate::chaos::Chaos;
use crate::checkpoint_every::CheckpointEvery;
use crate::checkpoint_failure::OnCheckpointFailure;
use crate::divergence::OnDivergence;
use crate::error::TrainError;
use crate::seeds::mix;

/// The rule by which gradients change parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OptimizerKind {
    /// Kingma and Ba 2015.
    #[default]
    Adam,
    /// Loshchilov and Hutter 2019: weight decay apart from the gradient.
    AdamW,
    /// Stochastic gradient descent, with momentum if it is not zero.
    Sgd,
}

/// An optimizer and its numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OptimizerConfig {
    /// The rule.
    pub kind: OptimizerKind,
    /// The learning rate at the start.
    pub learning_rate: f64,
    /// The share of the last update that SGD keeps; 0 for none.
    pub momentum: f64,
    /// How strongly parameters are pulled to zero.
    pub weight_decay: f64,
    /// The share of the last second moment of gradients that Adam and AdamW keep: less of it follows
    /// gradients that change quickly, as those of a short run do.
    pub beta_2: f64,
    /// What Adam and AdamW add to the root of the second moment.
    pub epsilon: f64,
}

impl Default for OptimizerConfig {
    fn default() -> Self {
        Self {
            kind: OptimizerKind::Adam,
            learning_rate: 1e-3,
            momentum: 0.0,
            weight_decay: 0.0,
            beta_2: 0.999,
            epsilon: 1e-8,
        }
    }
}

impl OptimizerConfig {
    /// Burn's optimizer of this configuration.
    ///
    /// # Errors
    /// [`TrainError::Config`] if a number is out of its range.
    pub fn init(&self) -> Result<ModuleOptimizer, TrainError> {
        let refuse = |what: &str| {
            Err(TrainError::Config(format!(
                "{what}, in [training.optimizer]"
            )))
        };
        if !(self.learning_rate.is_finite() && self.learning_rate > 0.0) {
            return refuse("the learning rate must be a positive number");
        }
        if !(0.0..1.0).contains(&self.momentum) {
            return refuse("the momentum must be at least 0 and below 1");
        }
        if !(self.weight_decay.is_finite() && self.weight_decay >= 0.0) {
            return refuse("the weight decay must not be negative");
        }
        if self.momentum != 0.0 && self.kind != OptimizerKind::Sgd {
            return refuse("momentum goes with --optimizer sgd only");
        }
        if !(0.0..1.0).contains(&self.beta_2) {
            return refuse("beta_2 must be at least 0 and below 1");
        }
        if !(self.epsilon.is_finite() && self.epsilon > 0.0) {
            return refuse("epsilon must be a positive number");
        }
        let decay =
            (self.weight_decay > 0.0).then(|| WeightDecayConfig::new(self.weight_decay as f32));
        Ok(match self.kind {
            OptimizerKind::Adam => AdamConfig::new()
                .with_weight_decay(decay)
                .with_beta_2(self.beta_2 as f32)
                .with_epsilon(self.epsilon as f32)
                .init(),
            OptimizerKind::AdamW => AdamWConfig::new()
                .with_weight_decay(self.weight_decay as f32)
                .with_beta_2(self.beta_2 as f32)
                .with_epsilon(self.epsilon as f32)
                .init(),
            OptimizerKind::Sgd => SgdConfig::new()
                .with_weight_decay(decay)
                .with_momentum((self.momentum > 0.0).then(|| {
                    MomentumConfig::new()
                        .with_momentum(self.momentum)
                        .with_dampening(0.0)
                }))
                .init(),
        })
    }
}

/// How the learning rate changes over the steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Schedule {
    /// It stays as it is.
    #[default]
    Constant,
    /// It falls to zero along a half cosine (Loshchilov and Hutter 2017).
    Cosine,
}

impl Schedule {
    pub(crate) fn init(
        self,
        learning_rate: f64,
        total_steps: usize,
    ) -> Result<ModuleLrScheduler, TrainError> {
        match self {
            Self::Constant => Ok(ModuleLrScheduler::new(ConstantLr::new(learning_rate))),
            Self::Cosine => {
                CosineAnnealingLrSchedulerConfig::new(learning_rate, total_steps.max(1))
                    .init()
                    .map_err(TrainError::Config)
            }
        }
    }
}

/// When to stop before the last epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EarlyStopping {
    /// Stop after this many epochs without a lower validation loss.
    pub patience: usize,
}

/// The part of a run's configuration that says how to train, whatever the model and the data.
///
/// ```
/// use everburn_train::TrainingConfig;
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
    /// Fingerprints of all that is learnt are written every so many steps; never if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hash_every: Option<usize>,
    /// Which activations are computed again in the backward pass, and not kept for it.
    pub activation_checkpointing: ActivationCheckpointing,
    /// Gradients travel while the backward pass still runs.
    pub overlap: bool,
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
    /// A line of `metrics.jsonl` is written every so many steps.
    pub log_every: usize,
    /// The ranks compare their parameters every so many steps; never if 0.
    pub compare_every: usize,
    /// What becomes of a rank whose parameters have changed.
    pub on_divergence: OnDivergence,
    /// Faults on purpose, for tests and demonstrations.
    #[serde(skip_serializing_if = "Chaos::is_none")]
    pub chaos: Chaos,
    /// How the learning rate changes.
    pub schedule: Schedule,
    /// When to stop early; never if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub early_stopping: Option<EarlyStopping>,
    /// The optimizer.
    pub optimizer: OptimizerConfig,
    /// How gradients are synchronised.
    pub ddp: DdpConfig,
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
            activation_checkpointing: ActivationCheckpointing::None,
            overlap: true,
            sync_batch_norm: false,
            seed: 42,
            validation_samples: None,
            keep_checkpoints: 2,
            checkpoint_every: CheckpointEvery::default(),
            on_checkpoint_failure: OnCheckpointFailure::default(),
            log_every: 10,
            compare_every: 100,
            on_divergence: OnDivergence::default(),
            chaos: Chaos::default(),
            schedule: Schedule::Constant,
            early_stopping: None,
            optimizer: OptimizerConfig::default(),
            ddp: DdpConfig::default(),
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
        self.optimizer.init()?;
        let schedule = self.schedule.init(self.optimizer.learning_rate, 1);
        schedule.map(drop).map_err(|error| {
            TrainError::Config(format!("--schedule with this --learning-rate: {error}"))
        })
    }

    fn validate_virtual_ranks(&self, world_size: usize) -> Result<(), TrainError> {
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
        assert!(refused(|c| c.optimizer.momentum = 0.9).contains("sgd"));
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
