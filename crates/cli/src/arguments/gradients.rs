//! Flags of gradients, from one step's batch to what travels.

use std::str::FromStr;

use clap::Args;
use everburn_distributed::{BufferSync, CommunicationHookConfig, ShardStage};
use everburn_train::{ActivationCheckpointing, Precision};

/// `--shard`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shard(pub(crate) Option<ShardStage>);

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self(None)),
            text => match text.parse() {
                Ok(stage) => Ok(Self(Some(stage))),
                Err(_) => Err("use none, optimizer, gradients or parameters".to_string()),
            },
        }
    }
}

#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Gradients")]
pub(crate) struct GradientFlags {
    /// In which type products are computed: f32, bf16, f16 (with a loss that is scaled) or tf32 (GPUs). Weights,
    /// norms, softmax, losses and what ranks exchange are f32 whatever it is [default: f32].
    #[arg(long, value_name = "TYPE")]
    pub(crate) precision: Option<Precision>,

    /// Run a rank's share of a global batch in so many parts, one after the other: the same step
    /// in less memory [default: 1].
    #[arg(long, value_name = "PARTS")]
    pub(crate) accumulate: Option<usize>,

    /// Cut each global batch into V shares, whatever the number of ranks, and add up what they yield in one
    /// order: the training then has the same bits on 1 to V ranks [default: a share for each rank].
    #[arg(long, value_name = "V")]
    pub(crate) virtual_ranks: Option<usize>,

    /// Compute activations again in the backward pass and do not keep them: none, blocks (each block of the
    /// model by itself), a number of blocks to a segment, or burn (Burn's own strategy) [default: none].
    #[arg(long, value_name = "HOW")]
    pub(crate) activation_checkpointing: Option<ActivationCheckpointing>,

    /// Scale gradients down to this norm, over all parameters together [default: never].
    #[arg(long, value_name = "NORM", allow_negative_numbers = true)]
    pub(crate) max_gradient_norm: Option<f32>,

    /// Leave each rank a part, not the whole, of: optimizer (its state), gradients (and the optimizer's state)
    /// or parameters (and both); ZeRO 1, 2 and 3 [default: none].
    #[arg(long, value_name = "WHAT")]
    pub(crate) shard: Option<Shard>,

    /// Keep this rank's part of the optimizer's state in the host's memory, and update it there; with --shard.
    #[arg(long)]
    pub(crate) offload_optimizer: bool,

    /// How gradients travel: none (as they are), fp16, bf16 or power-sgd:RANK [default: none].
    #[arg(long, value_name = "HOOK")]
    pub(crate) communication_hook: Option<CommunicationHookConfig>,

    /// Batch norms compute their statistics over the samples of all ranks.
    #[arg(long)]
    pub(crate) sync_batch_norm: bool,

    /// What becomes of running statistics: average (of all ranks) or broadcast (rank 0's)
    /// [default: average].
    #[arg(long, value_name = "HOW")]
    pub(crate) buffers: Option<BufferSync>,

    /// Every step uses the same parameters: saves telling the other ranks which.
    #[arg(long)]
    pub(crate) static_graph: bool,

    /// Exchange gradients after the backward pass, not while it runs.
    #[arg(long)]
    pub(crate) no_overlap: bool,

    /// The largest size of a bucket of gradients, in MiB [default: 25].
    #[arg(long)]
    pub(crate) bucket_mib: Option<usize>,
}
