//! Flags of the input: loading, prefetching, reading metrics.

use std::path::PathBuf;

use clap::Args;
use everburn_train::ReadMetrics;

#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Input")]
pub(crate) struct InputFlags {
    /// Loader threads per rank; 0: the rank loads its batches itself [default: 1 for a GPU
    /// and for resnet18, else 0].
    #[arg(long, value_name = "N")]
    pub(crate) workers: Option<usize>,

    /// Prefetched batches, with --workers [default: 2].
    #[arg(long, value_name = "N")]
    pub(crate) prefetch: Option<usize>,

    /// Keep the whole data set on the device and pick each batch there.
    #[arg(long)]
    pub(crate) data_on_device: bool,

    /// When to read losses from the device: each-step, late (several steps together, so that a GPU need not wait) or
    /// auto: late for GPUs [default: auto].
    #[arg(long, value_name = "WHEN")]
    pub(crate) read_metrics: Option<ReadMetrics>,

    /// Compile and tune the GPU kernels of this training, keep them, and exit: the training then starts at once.
    #[arg(long)]
    pub(crate) warmup: bool,

    /// The folder of compiled and tuned kernels [default: $EVERBURN_KERNEL_CACHE, then the user's cache].
    #[arg(long, value_name = "DIR")]
    pub(crate) kernel_cache: Option<PathBuf>,
}
