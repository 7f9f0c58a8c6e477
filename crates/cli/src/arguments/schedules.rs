//! Flags about the learning rate, and what `--schedule` says.

use clap::Args;
use everburn_schedules::ScheduleKind;
use everburn_train::Schedule;

use super::kebab;

/// What `--schedule` says: there are two kinds of schedules, and no name is of both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScheduleFlag {
    /// How the learning rate changes.
    LearningRate(Schedule),
    /// What the ranks of a pipeline do.
    Pipeline(ScheduleKind),
}

impl std::str::FromStr for ScheduleFlag {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let learning_rate = kebab(name).map(Self::LearningRate);
        let pipeline = || name.parse().map(Self::Pipeline);
        learning_rate.or_else(|_| pipeline()).map_err(|_| {
            "use constant, cosine, linear or step for the learning rate, or gpipe, 1f1b, interleaved or zb-h1 \
             for a pipeline"
                .to_string()
        })
    }
}

/// The numbers of a schedule of the learning rate.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Training")]
pub(crate) struct RateFlags {
    /// Let the learning rate rise along a line over so many steps; the schedule begins behind them
    /// [default: 0].
    #[arg(long, value_name = "STEPS")]
    pub(crate) warmup_steps: Option<usize>,

    /// Where the learning rate ends with --schedule cosine or linear [default: 0].
    #[arg(long, value_name = "RATE", allow_negative_numbers = true)]
    pub(crate) final_learning_rate: Option<f64>,

    /// After how many steps --schedule step lowers the learning rate, each time anew.
    #[arg(long, value_name = "STEPS")]
    pub(crate) decay_every: Option<usize>,

    /// By what --schedule step multiplies the learning rate [default: 0.1].
    #[arg(long, value_name = "FACTOR", allow_negative_numbers = true)]
    pub(crate) decay_factor: Option<f64>,
}
