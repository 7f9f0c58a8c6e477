//! Flags of the learning rate and of schedules.

use clap::Args;
use everburn_schedules::ScheduleKind;
use everburn_train::Schedule;

use super::kebab;

/// A value of `--schedule`, the old name of `--lr-schedule` and `--pipeline-schedule`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScheduleFlag {
    /// Of the learning rate.
    LearningRate(Schedule),
    /// Of a pipeline.
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
    /// Raise the learning rate linearly over this many steps, before the schedule begins [default: 0].
    #[arg(long, value_name = "STEPS")]
    pub(crate) warmup_steps: Option<usize>,

    /// The final learning rate of --lr-schedule cosine and linear [default: 0].
    #[arg(long, value_name = "RATE", allow_negative_numbers = true)]
    pub(crate) final_learning_rate: Option<f64>,

    /// The number of steps after which --lr-schedule step lowers the learning rate, again and again.
    #[arg(long, value_name = "STEPS")]
    pub(crate) decay_every: Option<usize>,

    /// The factor by which --lr-schedule step lowers the learning rate [default: 0.1].
    #[arg(long, value_name = "FACTOR", allow_negative_numbers = true)]
    pub(crate) decay_factor: Option<f64>,
}
