//! Flags of local steps and of averaged parameters.

use clap::Args;
use everburn_distributed::{OuterCompression, OuterOptimizer};
use everburn_train::SyncInterval;

#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Fewer bytes")]
pub(crate) struct SyncFlags {
    /// Exchange parameters after this many local steps of each rank (DiLoCo, local SGD), in place of gradients in
    /// each step. 0: gradients in each step [default: 0].
    #[arg(long = "local-steps", alias = "sync", value_name = "STEPS")]
    pub(crate) sync: Option<SyncInterval>,

    /// The outer optimizer of the averaged differences: nesterov (DiLoCo) or average (local SGD)
    /// [default: nesterov].
    #[arg(long, value_name = "RULE")]
    pub(crate) outer_optimizer: Option<OuterOptimizer>,

    /// The learning rate of the outer optimizer nesterov [default: 0.7].
    #[arg(long, value_name = "RATE", allow_negative_numbers = true)]
    pub(crate) outer_learning_rate: Option<f64>,

    /// The momentum of the outer optimizer nesterov [default: 0.9].
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true)]
    pub(crate) outer_momentum: Option<f64>,

    /// The compression of the differences: none or int8 (about a quarter of the bytes) [default: none].
    #[arg(long, value_name = "HOW")]
    pub(crate) compress_outer: Option<OuterCompression>,

    /// A slow rank joins the exchange with fewer steps when its round has taken this many times the median
    /// [default: the others wait].
    #[arg(long, value_name = "TIMES", allow_negative_numbers = true)]
    pub(crate) outer_patience: Option<f64>,
}

impl SyncFlags {
    /// The first flag that needs --local-steps.
    pub(crate) fn of_rounds(&self) -> Option<&'static str> {
        let given = [
            (self.outer_optimizer.is_some(), "--outer-optimizer"),
            (self.outer_learning_rate.is_some(), "--outer-learning-rate"),
            (self.outer_momentum.is_some(), "--outer-momentum"),
            (self.compress_outer.is_some(), "--compress-outer"),
            (self.outer_patience.is_some(), "--outer-patience"),
        ];
        let first = given.into_iter().find(|(given, _)| *given);
        first.map(|(_, flag)| flag)
    }
}

#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Training")]
pub(crate) struct EmaFlags {
    /// Keep an exponential moving average of the parameters with this decay per step, such as 0.999
    /// [default: none].
    #[arg(long, value_name = "DECAY", allow_negative_numbers = true)]
    pub(crate) ema: Option<f64>,

    /// With --ema: shard the average over the ranks; without, rank 0 keeps all of it.
    #[arg(long)]
    pub(crate) ema_sharded: bool,

    /// With --ema: validate and test the averaged model; it decides which epoch is the best, and when to
    /// stop early.
    #[arg(long)]
    pub(crate) ema_validate: bool,
}
