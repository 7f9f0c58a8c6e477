//! Flags of low-rank adaptation.

use clap::Args;

/// What of a pretrained model is trained.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Fine-tuning")]
pub(crate) struct LoraFlags {
    /// Train low-rank factors of this rank beside the weights of --init-from, and merge them at the end (LoRA).
    #[arg(long, value_name = "RANK")]
    pub(crate) lora: Option<usize>,

    /// The factors' product counts ALPHA / RANK times [default: twice the rank].
    #[arg(long, value_name = "ALPHA")]
    pub(crate) lora_alpha: Option<f64>,

    /// Which weights, by a name on their path or a pattern of it [default: q,v,q_proj,v_proj].
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) lora_targets: Option<Vec<String>>,

    /// The learning rate of each layer is FACTOR times that of the layer behind it, as in 0.8 [default: the same for all].
    #[arg(long, value_name = "FACTOR")]
    pub(crate) layer_decay: Option<f64>,
}
