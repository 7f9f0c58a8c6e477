//! Features of a run that exclude each other: one table for the trainer and the command line.

use everburn_distributed::{CommunicationHookConfig, ShardStage};

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

/// What can exclude something else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Feature {
    Accumulate,
    ActivationCheckpointing,
    Balance,
    BalanceAuto,
    BalanceWeights,
    Chaos,
    CommunicationHook,
    Corrupt,
    Elastic,
    Ema,
    F16,
    Fragments,
    HalfPrecision,
    HashEvery,
    LocalSteps,
    LogicalShards,
    Lora,
    NoOverlap,
    OuterPatience,
    OwnOptimizer,
    ParallelModel,
    ParameterGroups,
    Pipeline,
    PowerSgd,
    Profile,
    Repair,
    Shard,
    ShardGradients,
    ShardParameters,
    SplitModel,
    SyncBatchNorm,
    Tensor,
    Threads,
    Trial,
    WholeParameters,
}

use Feature as F;

/// Why an optimizer that is not elementwise is not for ranks with parts of parameters.
const OF_WHOLE_PARAMETERS: &str = "a rank has a part of each parameter, and this optimizer looks at whole ones; use one \
    that does not, such as `training.optimizer.kind = adam-w`";

/// Pairs that exclude each other, each with the reason and what to do.
const CONFLICTS: &[(Feature, Feature, &str)] = &[
    (
        F::Accumulate,
        F::LogicalShards,
        "a logical shard is computed at once, and more of them make it smaller",
    ),
    (
        F::SyncBatchNorm,
        F::LogicalShards,
        "a rank computes its logical shards one after the other, each with statistics of its own",
    ),
    (
        F::CommunicationHook,
        F::LogicalShards,
        "the rounding of gradients depends on the number of ranks",
    ),
    (
        F::Shard,
        F::LogicalShards,
        "the sum of logical shards has an order of its own, for which each rank needs all gradients",
    ),
    (
        F::Shard,
        F::LocalSteps,
        "a rank that takes steps by itself needs all parameters and the optimizer's whole state",
    ),
    (
        F::Shard,
        F::HashEvery,
        "no rank has the optimizer's whole state",
    ),
    (
        F::Shard,
        F::Repair,
        "no other rank has a rank's shard of the optimizer's state",
    ),
    (
        F::Shard,
        F::OwnOptimizer,
        "a rank has a shard of each parameter, and the optimizer may need whole ones",
    ),
    (F::WholeParameters, F::Shard, OF_WHOLE_PARAMETERS),
    (F::WholeParameters, F::Tensor, OF_WHOLE_PARAMETERS),
    (
        F::ShardGradients,
        F::NoOverlap,
        "gradients that wait for the end of the backward pass are all in memory at once; use \
         `training.ddp.shard = optimizer`",
    ),
    (
        F::ShardParameters,
        F::Ema,
        "the average follows full parameters; use `training.ddp.shard = gradients`",
    ),
    (
        F::ShardParameters,
        F::Corrupt,
        "between steps no rank has full parameters; use `training.ddp.shard = gradients`",
    ),
    (
        F::F16,
        F::LocalSteps,
        "ranks that take steps by themselves would skip different steps and scale their losses differently; use \
         `training.precision = bf16`, which needs no scaling",
    ),
    (
        F::F16,
        F::PowerSgd,
        "the error of a step that overflows would be added to the next; use `training.ddp.communication = bf16` or \
         `training.precision = bf16`",
    ),
    (
        F::LocalSteps,
        F::LogicalShards,
        "between two exchanges ranks differ, so the result depends on their number",
    ),
    (
        F::LocalSteps,
        F::SyncBatchNorm,
        "statistics would be exchanged in each step; running statistics are averaged at the exchanges",
    ),
    (
        F::LocalSteps,
        F::CommunicationHook,
        "no gradients are exchanged; `training.outer.compression = int8` compresses the differences",
    ),
    (
        F::OuterPatience,
        F::Fragments,
        "with fragments ranks notice a slow one only at the end of their own next round; leave one of them out",
    ),
    (
        F::Balance,
        F::LocalSteps,
        "ranks that take steps by themselves do not wait for each other in each step; `training.outer_patience` is for \
         slow ranks",
    ),
    (
        F::Balance,
        F::ParallelModel,
        "ranks that hold one model have the same samples; shares are for ranks that each have the whole model",
    ),
    (
        F::Balance,
        F::SplitModel,
        "shares are for ranks that each have the whole model on one device",
    ),
    (
        F::BalanceAuto,
        F::Shard,
        "passes wait for the parameters of other ranks, so their times are not a rank's own; give weights, as in \
         `training.balance = 3,1`",
    ),
    (
        F::BalanceAuto,
        F::SyncBatchNorm,
        "passes wait for the statistics of other ranks, so their times are not a rank's own; give weights, as in \
         `training.balance = 3,1`",
    ),
    (
        F::BalanceWeights,
        F::Elastic,
        "weights are for as many ranks as there are at the start; use `training.balance = auto`, which measures again",
    ),
    (F::Lora, F::Ema, "leave one of them out"),
    (F::Lora, F::ParameterGroups, "leave one of them out"),
    (F::Lora, F::ActivationCheckpointing, "leave one of them out"),
    (
        F::Lora,
        F::ParallelModel,
        "train with ranks that each have the whole model",
    ),
    (
        F::Lora,
        F::SplitModel,
        "train with ranks that each have the whole model on one device",
    ),
    (
        F::Pipeline,
        F::Accumulate,
        "a pipeline divides its samples by `parallel.micro_batches`",
    ),
    (
        F::ParallelModel,
        F::LogicalShards,
        "logical shards are for replicas; leave one of them out",
    ),
    (
        F::ParallelModel,
        F::HashEvery,
        "no rank has the whole state; leave one of them out",
    ),
    (
        F::ParallelModel,
        F::LocalSteps,
        "local steps need the whole model on each rank; leave one of them out",
    ),
    (
        F::ParallelModel,
        F::Ema,
        "no rank has the whole model; leave one of them out",
    ),
    (
        F::ParallelModel,
        F::Shard,
        "a mesh divides the model itself; leave one of them out",
    ),
    (
        F::ParallelModel,
        F::SyncBatchNorm,
        "leave it out: statistics are then those of each micro-batch",
    ),
    (
        F::ParallelModel,
        F::HalfPrecision,
        "ranks of one model exchange f32; use `training.precision = f32`, or replicas without a mesh",
    ),
    (
        F::ParallelModel,
        F::Threads,
        "the ranks of a mesh are processes; use `ranks.strategy = ddp`",
    ),
    (
        F::ParallelModel,
        F::SplitModel,
        "the ranks of a mesh have one device each; use `ranks.strategy = ddp`",
    ),
    (
        F::Elastic,
        F::ParallelModel,
        "a lost rank takes its part of the model with it; resume from a checkpoint after a loss",
    ),
    (
        F::Elastic,
        F::Shard,
        "no other rank has a lost rank's shard; resume from a checkpoint after a loss, on any number of ranks",
    ),
    (
        F::Elastic,
        F::Threads,
        "only ranks that are processes, each with the whole model, can be lost and replaced",
    ),
    (
        F::Elastic,
        F::SplitModel,
        "only ranks that are processes, each with the whole model, can be lost and replaced",
    ),
    (
        F::Profile,
        F::Elastic,
        "a lost rank takes its recording with it; profile without `ranks.elastic`",
    ),
    (
        F::Profile,
        F::LocalSteps,
        "steps between two exchanges are not recorded; profile without `training.sync`",
    ),
    (
        F::Profile,
        F::Threads,
        "allocations and CPU time are counted per process; profile with `ranks.strategy = ddp`",
    ),
    (
        F::Trial,
        F::Elastic,
        "all ranks measure together, from the first step to the last",
    ),
    (
        F::Trial,
        F::ParallelModel,
        "each rank must have the whole model",
    ),
    (
        F::Trial,
        F::SplitModel,
        "each rank must have the whole model on one device",
    ),
    (F::Trial, F::Profile, "its steps are not recorded"),
    (
        F::Trial,
        F::Balance,
        "a finder measures equal shares: find a learning rate without the other setting, which does not change it, and give a \
         batch size for other shares by hand",
    ),
    (F::Trial, F::LocalSteps, "ranks measure each step together"),
    (F::Trial, F::Chaos, "faults would be measured"),
    (
        F::Chaos,
        F::Threads,
        "faults are injected into ranks that are processes",
    ),
];

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
