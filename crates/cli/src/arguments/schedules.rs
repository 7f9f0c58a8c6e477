//! The old flag of both schedules.

use everburn_schedules::ScheduleKind;
use everburn_train::LrSchedule;

use serde::Deserialize;
use serde::de::value::{Error, StrDeserializer};

/// A value of `--schedule`, the old name of `--lr-schedule` and `--pipeline-schedule`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScheduleFlag {
    LearningRate(LrSchedule),
    Pipeline(ScheduleKind),
}

impl std::str::FromStr for ScheduleFlag {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let learning_rate = LrSchedule::deserialize(StrDeserializer::<Error>::new(name));
        let learning_rate = learning_rate.map(Self::LearningRate);
        let pipeline = || name.parse().map(Self::Pipeline);
        learning_rate.or_else(|_| pipeline()).map_err(|_| {
            "use constant, cosine, linear or step for the learning rate, or gpipe, 1f1b, interleaved or zb-h1 \
             for a pipeline"
                .to_string()
        })
    }
}
