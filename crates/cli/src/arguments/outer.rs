//! Flags of ranks that take steps by themselves, and of averaged parameters.

use clap::Args;
use everburn_distributed::{OuterCompression, OuterOptimizer};
use everburn_train::SyncInterval;

#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Fewer bytes")]
pub(crate) struct SyncFlags {
    /// When ranks become equal: step (in each, by its gradients), or every=H: each rank takes H steps by
    /// itself, then their differences are averaged (DiLoCo, local SGD) [default: step].
    #[arg(long, value_name = "WHEN")]
    pub(crate) sync: Option<SyncInterval>,

    /// What is made of the averaged differences: nesterov (DiLoCo) or average (local SGD)
    /// [default: nesterov].
    #[arg(long, value_name = "RULE")]
    pub(crate) outer_optimizer: Option<OuterOptimizer>,

    /// The learning rate of the outer optimizer nesterov [default: 0.7].
    #[arg(long, value_name = "RATE", allow_negative_numbers = true)]
    pub(crate) outer_learning_rate: Option<f64>,

    /// The momentum of the outer optimizer nesterov [default: 0.9].
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true)]
    pub(crate) outer_momentum: Option<f64>,

    /// How differences travel: none (as they are) or int8 (about a quarter of the bytes) [default: none].
    #[arg(long, value_name = "HOW")]
    pub(crate) compress_outer: Option<OuterCompression>,

    /// A slow rank joins the others' exchange with the steps that it has made, when its round has taken so
    /// many times what it takes most ranks [default: the others wait].
    #[arg(long, value_name = "TIMES", allow_negative_numbers = true)]
    pub(crate) outer_patience: Option<f64>,
}

impl SyncFlags {
    /// The first flag that says nothing unless ranks take steps by themselves.
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
    /// Keep a moving average of the parameters too, of which this share stays in a step: 0.999, say
    /// [default: none].
    #[arg(long, value_name = "DECAY", allow_negative_numbers = true)]
    pub(crate) ema: Option<f64>,

    /// With --ema: each rank keeps a part of the average, and not rank 0 all of it.
    #[arg(long)]
    pub(crate) ema_sharded: bool,

    /// With --ema: validate and test the averaged model; it decides which epoch is the best, and when to
    /// stop early.
    #[arg(long)]
    pub(crate) ema_validate: bool,
}
