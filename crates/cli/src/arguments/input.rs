//! Flags about the way of samples to the device, and of losses from it.

use std::path::PathBuf;

use clap::Args;
use everburn_train::ReadMetrics;

#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Input")]
pub(crate) struct InputFlags {
    /// How many threads of each rank assemble batches while it trains; with 0, the rank does [default: 1 for a
    /// GPU, 0 for the processor].
    #[arg(long, value_name = "N")]
    pub(crate) workers: Option<usize>,

    /// How many batches may lie ready, with --workers [default: 2].
    #[arg(long, value_name = "N")]
    pub(crate) prefetch: Option<usize>,

    /// Keep the whole data set on the device and pick each batch there.
    #[arg(long)]
    pub(crate) data_on_device: bool,

    /// When losses are read from the device: each-step, late (those of some steps together, which lets a GPU
    /// work on) or auto, which is late for GPUs [default: auto].
    #[arg(long, value_name = "WHEN")]
    pub(crate) read_metrics: Option<ReadMetrics>,

    /// Compile and tune what a GPU needs for this training, keep it, and exit: the training then begins at once.
    #[arg(long)]
    pub(crate) warmup: bool,

    /// Where compiled and tuned kernels are kept [default: $EVERBURN_KERNEL_CACHE, then the user's cache].
    #[arg(long, value_name = "DIR")]
    pub(crate) kernel_cache: Option<PathBuf>,
}
