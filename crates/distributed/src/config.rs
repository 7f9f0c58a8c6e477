//! How gradients are synchronised.

use std::num::ParseIntError;

use clap::Args;
use serde::{Deserialize, Serialize};

use crate::bucket::BucketLimits;
use crate::communication_hook::CommunicationHookConfig;
use crate::error::DdpError;
use crate::sharding::ShardStage;

/// The size of a bucket unless another is given: 25 MiB, as in PyTorch.
const DEFAULT_BUCKET_BYTES: usize = 25 * 1024 * 1024;

/// The size of the first bucket unless another is given: 1 MiB, as in PyTorch.
const DEFAULT_FIRST_BUCKET_BYTES: usize = 1024 * 1024;

/// What is done with running statistics (batch norm's, say), which replicas compute from different
/// samples.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use everburn::distributed::{BufferSync, DdpConfig};
///
/// assert_eq!("broadcast".parse(), Ok(BufferSync::Broadcast));
/// assert_eq!(DdpConfig::default().buffers, BufferSync::Average);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BufferSync {
    /// Every rank gets the mean of all ranks' ones.
    #[default]
    Average,
    /// Every rank gets rank 0's, as in PyTorch.
    Broadcast,
}

everburn_record::named!(BufferSync, "neither `average` nor `broadcast`", Self::Average => "average", Self::Broadcast => "broadcast");

/// How gradients are synchronised; the same on all ranks.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use everburn::distributed::DdpConfig;
///
/// let config = DdpConfig { max_gradient_norm: Some(1.0), ..DdpConfig::default() };
/// config.validate()?;
/// assert_eq!(config.bucket_limits().others, config.bucket_bytes);
/// # Ok::<(), everburn_distributed::DdpError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Gradients")]
#[serde(deny_unknown_fields, default)]
pub struct DdpConfig {
    /// The largest size of a bucket of gradients, in bytes. A model of less than eight such buckets is divided
    /// finer, down to 1 MiB.
    #[arg(
        long = "bucket-mib",
        value_name = "MIB",
        value_parser = mib,
        help = "The largest size of a bucket of gradients, in MiB [default: 25]"
    )]
    #[doc(alias = "bucket_cap_mb")]
    pub bucket_bytes: usize,
    /// The largest size of the bucket that leaves first, in bytes.
    #[arg(skip)]
    pub first_bucket_bytes: usize,
    /// Every step uses the same parameters, so the ranks do not exchange which ones they have used.
    #[arg(long)]
    pub static_graph: bool,
    /// Clip gradients to this norm over all parameters together [default: never].
    #[arg(long, value_name = "NORM", allow_negative_numbers = true)]
    #[doc(alias = "clip_grad_norm_")]
    pub max_gradient_norm: Option<f32>,
    /// The compression of exchanged gradients: none, fp16, bf16 or power-sgd:RANK [default: none].
    #[arg(long = "communication-hook", value_name = "HOOK")]
    pub communication: CommunicationHookConfig,
    /// Running statistics after an epoch and in a checkpoint: average (of all ranks) or broadcast (rank 0's) [default: average].
    #[arg(long, value_name = "HOW")]
    pub buffers: BufferSync,
    /// Shard over the ranks: optimizer (its state), gradients (and the state) or parameters (and both): ZeRO 1, 2, 3
    /// [default: none].
    #[arg(long, value_name = "WHAT", value_parser = stage_or_none)]
    #[serde(
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::sharding::stage_or_none"
    )]
    pub shard: Option<ShardStage>,
}

/// A number of MiB, in bytes.
fn mib(text: &str) -> Result<usize, ParseIntError> {
    Ok(text.parse::<usize>()?.saturating_mul(1 << 20))
}

/// Checks the name of a stage, or `none`.
fn stage_or_none(text: &str) -> Result<ShardStage, &'static str> {
    match text {
        // What counts is that it is given: see `deserialize_with`.
        "none" => Ok(ShardStage::Optimizer),
        text => text
            .parse()
            .map_err(|_| "use none, optimizer, gradients or parameters"),
    }
}

impl Default for DdpConfig {
    fn default() -> Self {
        Self {
            bucket_bytes: DEFAULT_BUCKET_BYTES,
            first_bucket_bytes: DEFAULT_FIRST_BUCKET_BYTES,
            static_graph: false,
            max_gradient_norm: None,
            communication: CommunicationHookConfig::default(),
            buffers: BufferSync::default(),
            shard: None,
        }
    }
}

impl DdpConfig {
    /// Checks the numbers.
    ///
    /// # Errors
    /// [`DdpError::Config`] naming the first that is out of range.
    pub fn validate(&self) -> Result<(), DdpError> {
        if self.bucket_bytes == 0 {
            return Err(DdpError::Config(
                "`training.ddp.bucket_bytes` must be at least 1".to_string(),
            ));
        }
        if self.shards_gradients() && self.communication != CommunicationHookConfig::None {
            return Err(DdpError::Config(format!(
                "`training.ddp.communication = {}` changes full gradients, and with `training.ddp.shard = gradients` or \
                 `training.ddp.shard = parameters` no rank has them: leave it out, or use `training.ddp.shard = optimizer`",
                self.communication
            )));
        }
        match self.max_gradient_norm {
            Some(norm) if !(norm.is_finite() && norm > 0.0) => Err(DdpError::Config(format!(
                "`training.ddp.max_gradient_norm` must be a positive number, not {norm}"
            ))),
            _ => Ok(()),
        }
    }

    /// Whether each rank keeps only its shards of the mean gradients.
    pub(crate) fn shards_gradients(&self) -> bool {
        self.shard.is_some_and(ShardStage::shards_gradients)
    }

    /// Whether each rank keeps only its shards of the parameters.
    pub(crate) fn shards_parameters(&self) -> bool {
        self.shard.is_some_and(ShardStage::shards_parameters)
    }

    /// The sizes of buckets.
    pub fn bucket_limits(&self) -> BucketLimits {
        BucketLimits {
            first: self.first_bucket_bytes.min(self.bucket_bytes),
            others: self.bucket_bytes,
        }
    }
}
