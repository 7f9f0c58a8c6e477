//! The features that exclude each other.

/// What can exclude something else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Feature {
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
pub(super) const CONFLICTS: &[(Feature, Feature, &str)] = &[
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
