//! Flags of the kernels of GPUs.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Input")]
pub(crate) struct KernelFlags {
    /// Compile and tune the GPU kernels of this training, keep them, and exit: the training then starts at once.
    #[arg(long)]
    pub(crate) warmup: bool,

    /// The folder of compiled and tuned kernels [default: $EVERBURN_KERNEL_CACHE, then the user's cache].
    #[arg(long, value_name = "DIR")]
    pub(crate) kernel_cache: Option<PathBuf>,
}
