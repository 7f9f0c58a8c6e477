//! Features of a run that exclude each other: one table for the trainer and the command line.

mod table;

use everburn_distributed::{CommunicationHookConfig, ShardStage};

use self::table::{CONFLICTS, Feature, Feature as F};
use super::TrainingConfig;
use crate::config::activation_checkpointing::ActivationCheckpointing;
use crate::config::balance::Balance;
use crate::config::divergence::OnDivergence;
use crate::config::precision::Precision;
use crate::config::sync_interval::SyncInterval;
use crate::error::TrainError;

/// What a run does besides what its [`TrainingConfig`] says, as far as it excludes settings of that.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::{RunFeatures, TrainingConfig};
///
/// let config = TrainingConfig { hash_every: Some(10), ..TrainingConfig::default() };
/// assert!(config.check_conflicts(RunFeatures::default()).is_ok());
/// let mesh = RunFeatures { parallel_model: true, ..RunFeatures::default() };
/// let error = config.check_conflicts(mesh).unwrap_err().to_string();
/// assert!(error.contains("`training.hash_every`") && error.contains("`parallel.mesh`"));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RunFeatures {
    /// Several ranks hold one model: the mesh has a pipeline or a tensor axis.
    pub parallel_model: bool,
    /// The mesh has a pipeline axis.
    pub pipeline: bool,
    /// Ranks share layers: the mesh has a tensor axis.
    pub tensor: bool,
    /// The training continues when a rank is lost.
    pub elastic: bool,
    /// Steps are recorded for a profile.
    pub profile: bool,
    /// The ranks are threads of one process.
    pub threads: bool,
    /// A rank's model is divided over several devices.
    pub split_model: bool,
    /// The task has an optimizer of its own.
    pub own_optimizer: bool,
    /// It is a short trial, by which a finder measures.
    pub trial: bool,
}

impl TrainingConfig {
    /// Refuses features that exclude each other, in this configuration and in `run`.
    ///
    /// # Errors
    /// [`TrainError::Config`] naming the two, the reason, and what to do.
    pub fn check_conflicts(&self, run: RunFeatures) -> Result<(), TrainError> {
        let conflict = CONFLICTS
            .iter()
            .find(|(first, second, _)| self.has(*first, run) && self.has(*second, run));
        match conflict {
            None => Ok(()),
            Some((first, second, why)) => Err(TrainError::Config(format!(
                "{} and {} do not go together: {why}",
                self.named(*first),
                self.named(*second)
            ))),
        }
    }

    fn has(&self, feature: Feature, run: RunFeatures) -> bool {
        let shard = |divides: fn(ShardStage) -> bool| self.ddp.shard.is_some_and(divides);
        let communication = self.ddp.communication;
        match feature {
            F::Accumulate => self.accumulate > 1,
            F::ActivationCheckpointing => {
                self.activation_checkpointing != ActivationCheckpointing::None
            }
            F::Balance => self.balance != Balance::Equal,
            F::BalanceAuto => self.balance == Balance::Auto,
            F::BalanceWeights => matches!(self.balance, Balance::Weights(_)),
            F::Chaos => !self.chaos.is_none(),
            F::CommunicationHook => communication != CommunicationHookConfig::default(),
            F::Corrupt => self.chaos.corrupts(),
            F::Elastic => run.elastic,
            F::Ema => self.ema.is_some(),
            F::F16 => self.precision.scales_losses(),
            F::Fragments => self.sync.steps().and(self.outer.fragments).is_some(),
            F::HalfPrecision => self.precision.compute_type().low().is_some(),
            F::HashEvery => self.hash_every.is_some(),
            F::LocalSteps => self.sync != SyncInterval::Step,
            F::LogicalShards => self.virtual_ranks.is_some(),
            F::Lora => self.lora.is_some(),
            F::NoOverlap => !self.overlap,
            F::OuterPatience => self.outer_patience.is_some(),
            F::OwnOptimizer => run.own_optimizer,
            F::ParallelModel => run.parallel_model,
            F::ParameterGroups => self.optimizer.has_groups(),
            F::Pipeline => run.pipeline,
            F::PowerSgd => matches!(communication, CommunicationHookConfig::PowerSgd { .. }),
            F::Profile => run.profile,
            F::Repair => self.on_divergence == OnDivergence::Repair,
            F::Shard => shard(|_| true),
            F::ShardGradients => shard(ShardStage::shards_gradients),
            F::ShardParameters => shard(ShardStage::shards_parameters),
            F::SplitModel => run.split_model,
            F::SyncBatchNorm => self.sync_batch_norm,
            F::Tensor => run.tensor,
            F::Threads => run.threads,
            F::Trial => run.trial,
            F::WholeParameters => !self.optimizer.kind.is_elementwise(),
        }
    }

    /// The feature by its key in the configuration, where it has one.
    fn named(&self, feature: Feature) -> String {
        let key = |path: &str| format!("`{path}`");
        match feature {
            F::Accumulate => format!("`training.accumulate = {}`", self.accumulate),
            F::ActivationCheckpointing => key("training.activation_checkpointing"),
            F::Balance | F::BalanceAuto | F::BalanceWeights => {
                format!("`training.balance = {}`", self.balance)
            }
            F::Chaos => key("training.chaos"),
            F::CommunicationHook | F::PowerSgd => {
                format!("`training.ddp.communication = {}`", self.ddp.communication)
            }
            F::Corrupt => key("training.chaos = corrupt"),
            F::Elastic => key("ranks.elastic"),
            F::Ema => key("training.ema.decay"),
            F::F16 | F::HalfPrecision => precision(self.precision),
            F::Fragments => key("training.outer.fragments"),
            F::HashEvery => key("training.hash_every"),
            F::LocalSteps => match self.sync.steps() {
                Some(steps) => format!("`training.sync = {steps}`"),
                None => key("training.sync"),
            },
            F::LogicalShards => match self.virtual_ranks {
                Some(count) => format!("`training.virtual_ranks = {count}`"),
                None => key("training.virtual_ranks"),
            },
            F::Lora => key("training.lora.rank"),
            F::NoOverlap => key("training.overlap = false"),
            F::OuterPatience => key("training.outer_patience"),
            F::OwnOptimizer => "a task's own optimizer".to_string(),
            F::ParallelModel => "a model over several ranks (`parallel.mesh`)".to_string(),
            F::ParameterGroups => match self.optimizer.layer_decay {
                Some(_) => key("training.optimizer.layer_decay"),
                None => key("[[training.optimizer.groups]]"),
            },
            F::Pipeline => "a pipeline".to_string(),
            F::Profile => "a profile".to_string(),
            F::Repair => key("training.on_divergence = repair"),
            F::Shard | F::ShardGradients | F::ShardParameters => {
                let stage = self.ddp.shard.map_or_else(String::new, |it| it.to_string());
                format!("`training.ddp.shard = {stage}`")
            }
            F::SplitModel => key("ranks.strategy = model-parallel"),
            F::SyncBatchNorm => key("training.sync_batch_norm"),
            F::Tensor => "layers that several ranks share".to_string(),
            F::Threads => key("ranks.strategy = data-parallel"),
            F::Trial => "a finder".to_string(),
            F::WholeParameters => format!("`training.optimizer.kind = {}`", self.optimizer.kind),
        }
    }
}

fn precision(precision: Precision) -> String {
    format!("`training.precision = {precision}`")
}

#[cfg(test)]
mod tests;
