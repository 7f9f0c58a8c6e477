//! How the learning rate changes over the steps.

use std::fmt;

use burn::lr_scheduler::LrSchedulerConfig;
use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::lr_scheduler::linear::LinearLrSchedulerConfig;
use burn::lr_scheduler::module_lr_scheduler::{ModuleLrScheduler, ModuleLrSchedulerConfig};
use burn::lr_scheduler::sequential::SequentialLrSchedulerConfig;
use burn::lr_scheduler::step::StepLrSchedulerConfig;
use clap::Args;
use everburn_record::units::counted;
use serde::{Deserialize, Serialize};

use crate::error::TrainError;

/// By how much [`LrSchedule::Step`] multiplies the learning rate, unless another number is given.
const DECAY_FACTOR: f64 = 0.1;

/// How the learning rate changes over the steps, after those of a warm-up.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::{LrSchedule, TrainingConfig};
///
/// let config = TrainingConfig { schedule: LrSchedule::Cosine, ..TrainingConfig::default() };
/// assert_ne!(config.schedule, LrSchedule::default());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LrSchedule {
    /// It stays as it is.
    #[default]
    Constant,
    /// It falls along a half cosine (Loshchilov and Hutter 2017), to
    /// [`ScheduleNumbers::final_learning_rate`] at the end of the run.
    Cosine,
    /// It falls along a line, to [`ScheduleNumbers::final_learning_rate`] at the end of the run.
    Linear,
    /// It is multiplied by [`ScheduleNumbers::decay_factor`] after each
    /// [`ScheduleNumbers::decay_every`] steps.
    Step,
}

/// The numbers of a schedule; what is absent is not asked for, or has its usual value.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::{LrSchedule, ScheduleNumbers, TrainingConfig};
///
/// let numbers = ScheduleNumbers { warmup_steps: 2.0, ..ScheduleNumbers::default() };
/// let config = TrainingConfig {
///     schedule: LrSchedule::Linear,
///     schedule_numbers: numbers,
///     ..TrainingConfig::default()
/// };
/// config.check_schedule(60_000).unwrap();
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Default, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Training")]
#[serde(deny_unknown_fields, default)]
pub struct ScheduleNumbers {
    /// Raise the learning rate linearly over this many steps, before the schedule begins; a number below 1 is a share of
    /// all steps of the run [default: 0].
    #[arg(long, value_name = "STEPS", allow_negative_numbers = true)]
    pub warmup_steps: f64,
    /// The final learning rate of --lr-schedule cosine and linear [default: 0].
    #[arg(long, value_name = "RATE", allow_negative_numbers = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub final_learning_rate: Option<f64>,
    /// Lower the learning rate every N steps, with --lr-schedule step.
    #[arg(long, value_name = "STEPS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decay_every: Option<usize>,
    /// The factor by which --lr-schedule step lowers the learning rate [default: 0.1].
    #[arg(long, value_name = "FACTOR", allow_negative_numbers = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decay_factor: Option<f64>,
}

impl LrSchedule {
    /// Whether it falls to an end.
    const fn has_an_end(self) -> bool {
        matches!(self, Self::Cosine | Self::Linear)
    }
}

impl fmt::Display for LrSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl ScheduleNumbers {
    /// What tells one schedule from another; numbers as far as they survive a file.
    pub(crate) fn describe(&self, schedule: LrSchedule) -> String {
        let Self {
            warmup_steps,
            final_learning_rate,
            decay_every,
            decay_factor,
        } = *self;
        let mut text = format!("{schedule:?}");
        if warmup_steps > 0.0 {
            text.push_str(&format!(" after a warm-up of {}", warmup_steps as f32));
        }
        if let Some(rate) = final_learning_rate {
            text.push_str(&format!(" to {}", rate as f32));
        }
        if let Some(steps) = decay_every {
            let factor = decay_factor.unwrap_or(DECAY_FACTOR) as f32;
            text.push_str(&format!(" by {factor} every {steps}"));
        }
        text
    }

    /// Refuses numbers that say nothing with `schedule`, or are out of range.
    fn check(&self, schedule: LrSchedule, learning_rate: f64) -> Result<(), TrainError> {
        let refuse = |message: String| Err(TrainError::Config(message));
        let warmup = self.warmup_steps;
        let is_whole = warmup >= 1.0 && warmup.fract() == 0.0;
        if !is_whole && !(0.0..1.0).contains(&warmup) {
            return refuse(format!(
                "`training.schedule_numbers.warmup_steps = {warmup}` must be a whole number of steps, or a share of the run's \
                 from 0 to below 1"
            ));
        }
        if let Some(rate) = self.final_learning_rate {
            if !schedule.has_an_end() {
                return refuse(format!(
                    "`training.schedule_numbers.final_learning_rate` is for `training.schedule = cosine` or linear, not for {schedule}"
                ));
            }
            if !(0.0..=learning_rate).contains(&rate) {
                return refuse(format!(
                    "`training.schedule_numbers.final_learning_rate = {rate}` must be at least 0, and no more than the learning rate \
                     {learning_rate}"
                ));
            }
        }
        let steps = matches!(schedule, LrSchedule::Step);
        match self.decay_every {
            Some(0) => {
                return refuse(
                    "`training.schedule_numbers.decay_every` must be at least 1".to_string(),
                );
            }
            None if steps => {
                return refuse(
                    "`training.schedule = step` needs `training.schedule_numbers.decay_every`, the number of steps between two decreases"
                        .to_string(),
                );
            }
            Some(_) if !steps => {
                return refuse(format!(
                    "`training.schedule_numbers.decay_every` is for `training.schedule = step`, not for {schedule}"
                ));
            }
            _ => {}
        }
        match self.decay_factor {
            Some(_) if !steps => refuse(format!(
                "`training.schedule_numbers.decay_factor` is for `training.schedule = step`, not for {schedule}"
            )),
            Some(factor) if !(factor > 0.0 && factor <= 1.0) => refuse(format!(
                "`training.schedule_numbers.decay_factor = {factor}` must be above 0 and no more than 1"
            )),
            _ => Ok(()),
        }
    }

    /// Whether the rates after step `step` are not the same in a run of `before` steps and in one of `after`.
    pub(crate) fn differ_after(
        &self,
        step: usize,
        schedule: LrSchedule,
        [before, after]: [usize; 2],
    ) -> bool {
        let (before, after) = (self.warmup_of(before), self.warmup_of(after));
        let over = step >= before.max(after);
        schedule.has_an_end() || before != after && (schedule == LrSchedule::Step || !over)
    }

    /// How many of `total_steps` steps the warm-up takes; a share is rounded, and leaves at least one step.
    pub(crate) fn warmup_of(&self, total_steps: usize) -> usize {
        match self.warmup_steps < 1.0 {
            true => {
                let steps = (self.warmup_steps * total_steps as f64).round() as usize;
                steps.min(total_steps.saturating_sub(1))
            }
            false => self.warmup_steps as usize,
        }
    }

    /// The same of a learning rate that is this many times this one's.
    pub(crate) fn times(self, factor: f64) -> Self {
        Self {
            final_learning_rate: self.final_learning_rate.map(|rate| rate * factor),
            ..self
        }
    }

    /// What Burn's scheduler of a run of `total_steps` steps is made of.
    ///
    /// # Errors
    /// [`TrainError::Config`] if a number cannot be used, the run ends within the warm-up, or Burn's schedule takes no learning
    /// rate as high.
    pub(crate) fn config(
        &self,
        schedule: LrSchedule,
        learning_rate: f64,
        total_steps: usize,
    ) -> Result<LrSchedulerConfig, TrainError> {
        self.check(schedule, learning_rate)?;
        let has_warmup = self.warmup_steps > 0.0;
        if learning_rate > 1.0 && (schedule.has_an_end() || has_warmup) {
            let (what, without) = match has_warmup {
                false => (format!("`training.schedule = {schedule}`"), ""),
                true => (
                    format!(
                        "a warm-up (`training.schedule_numbers.warmup_steps = {}`)",
                        self.warmup_steps
                    ),
                    " without a warm-up",
                ),
            };
            return Err(TrainError::Config(format!(
                "{what} takes a `training.optimizer.learning_rate` of at most 1, and this one is {learning_rate}: \
                 `training.schedule = constant`{without} takes more"
            )));
        }
        let warmup = self.warmup_of(total_steps);
        if schedule.has_an_end() && warmup > 0 && warmup >= total_steps {
            return Err(TrainError::Config(format!(
                "a warm-up of {} does not end before the run, which makes {total_steps}: use \
                 fewer `training.schedule_numbers.warmup_steps`, or more `training.epochs` or `training.steps`",
                counted(warmup, "step")
            )));
        }
        let rest = total_steps.saturating_sub(warmup).max(1);
        let end = self.final_learning_rate.unwrap_or(0.0);
        let main: LrSchedulerConfig = match schedule {
            LrSchedule::Constant => LrSchedulerConfig::Constant(learning_rate),
            LrSchedule::Cosine => CosineAnnealingLrSchedulerConfig::new(learning_rate, rest)
                .with_min_lr(end)
                .into(),
            LrSchedule::Linear => LinearLrSchedulerConfig::new(learning_rate, end, rest).into(),
            LrSchedule::Step => {
                let factor = self.decay_factor.unwrap_or(DECAY_FACTOR);
                StepLrSchedulerConfig::new(learning_rate, self.decay_every.unwrap_or(rest))
                    .with_gamma(factor)
                    .into()
            }
        };
        Ok(match warmup {
            0 => main,
            steps => {
                let first = learning_rate / (steps + 1) as f64;
                let rise = LinearLrSchedulerConfig::new(first, learning_rate, steps);
                SequentialLrSchedulerConfig::new(vec![rise.into(), main], vec![steps]).into()
            }
        })
    }
}

/// Burn's scheduler of this configuration.
///
/// # Errors
/// [`TrainError::Config`] if Burn does not take its numbers.
pub(crate) fn initialised(
    config: &ModuleLrSchedulerConfig,
) -> Result<ModuleLrScheduler, TrainError> {
    config.init().map_err(|error| {
        TrainError::Config(format!(
            "`training.schedule` with this `training.optimizer.learning_rate`: {error}"
        ))
    })
}

#[cfg(test)]
mod tests;
