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
    /// The type of matrix products: f32, bf16, f16 (with loss scaling) or tf32 (GPUs). Weights, norms, softmax, losses
    /// and exchanged gradients stay f32 [default: f32].
    #[arg(long, value_name = "TYPE")]
    pub(crate) precision: Option<Precision>,

    /// Accumulate gradients over N parts of the local batch: the same step in less memory [default: 1].
    #[arg(long, value_name = "PARTS")]
    pub(crate) accumulate: Option<usize>,

    /// Divide each global batch into V logical shards and sum their results in a fixed tree order: the training has the
    /// same bits on 1 to V ranks [default: one shard per rank].
    #[arg(long, value_name = "V")]
    pub(crate) virtual_ranks: Option<usize>,

    /// Recompute activations in the backward pass: none, blocks (each block of the model), a number of blocks per
    /// segment, or burn (Burn's own strategy) [default: none].
    #[arg(long, value_name = "HOW")]
    pub(crate) activation_checkpointing: Option<ActivationCheckpointing>,

    /// Clip gradients to this norm over all parameters together [default: never].
    #[arg(long, value_name = "NORM", allow_negative_numbers = true)]
    pub(crate) max_gradient_norm: Option<f32>,

    /// Shard over the ranks: optimizer (its state), gradients (and the state) or parameters (and both): ZeRO 1, 2, 3
    /// [default: none].
    #[arg(long, value_name = "WHAT")]
    pub(crate) shard: Option<Shard>,

    /// Keep and update this rank's shard of the optimizer's state in host memory, with --shard.
    #[arg(long)]
    pub(crate) offload_optimizer: bool,

    /// The compression of exchanged gradients: none, fp16, bf16 or power-sgd:RANK [default: none].
    #[arg(long, value_name = "HOOK")]
    pub(crate) communication_hook: Option<CommunicationHookConfig>,

    /// Compute the statistics of batch norms over the samples of all ranks.
    #[arg(long)]
    pub(crate) sync_batch_norm: bool,

    /// Running statistics after an epoch: average (of all ranks) or broadcast (rank 0's) [default: average].
    #[arg(long, value_name = "HOW")]
    pub(crate) buffers: Option<BufferSync>,

    /// Every step uses the same parameters: the ranks skip the exchange of which.
    #[arg(long)]
    pub(crate) static_graph: bool,

    /// Exchange gradients after the backward pass, not while it runs.
    #[arg(long)]
    pub(crate) no_overlap: bool,

    /// The largest size of a bucket of gradients, in MiB [default: 25].
    #[arg(long)]
    pub(crate) bucket_mib: Option<usize>,
}
