//! When the loss of a step is read from the device.

use std::time::Duration;

use burn::prelude::Device;
use everburn_distributed::is_gpu;
use serde::{Deserialize, Serialize};

/// When losses and counts are read from the device.
///
/// To read one is to wait until the device has come so far, and a GPU that is waited for has nothing queued to
/// continue with. Read late, several steps' numbers are read at once: the same numbers, recorded with the same
/// steps, a little later. A checkpoint, a comparison of ranks and the end of an epoch come after the numbers of
/// all steps before them.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::ReadMetrics;
///
/// assert_eq!("late".parse(), Ok(ReadMetrics::Late));
/// assert_eq!(ReadMetrics::default().to_string(), "auto");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReadMetrics {
    /// Late where the device computes by itself, as GPUs do; else with each step.
    #[default]
    Auto,
    /// With each step.
    EachStep,
    /// Late, on any device.
    Late,
}

impl ReadMetrics {
    pub(crate) fn is_late_on(self, device: &Device) -> bool {
        match self {
            // Operations there return before they are done.
            Self::Auto => is_gpu(device),
            Self::EachStep => false,
            Self::Late => true,
        }
    }
}

everburn_record::named!(ReadMetrics, "no time to read losses: use auto, each-step or late", Self::Auto => "auto", Self::EachStep => "each-step", Self::Late => "late");

/// How long the numbers of a step may be unread: as long as a dashboard or a user who wants to stop does not
/// notice.
const UNREAD_FOR: Duration = Duration::from_millis(250);

/// Of how many steps at most: enough for one wait in this many not to be felt.
const UNREAD_STEPS: usize = 32;

/// Of how many steps the numbers may be unread where one takes `seconds`.
pub(crate) fn steps_unread(seconds: f64) -> usize {
    let steps = UNREAD_FOR.as_secs_f64() / seconds.max(1e-9);
    (steps as usize).clamp(1, UNREAD_STEPS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_file() {
        for (value, name) in [
            (ReadMetrics::Auto, "auto"),
            (ReadMetrics::EachStep, "each-step"),
            (ReadMetrics::Late, "late"),
        ] {
            assert_eq!(value.to_string(), name);
            assert_eq!(name.parse(), Ok(value));
            let line = format!("value = \"{name}\"");
            let table: std::collections::BTreeMap<String, ReadMetrics> =
                toml::from_str(&line).unwrap();
            assert_eq!(table["value"], value);
        }
        let error = "never".parse::<ReadMetrics>().unwrap_err();
        assert!(error.contains("use auto, each-step or late"), "{error}");
    }

    #[test]
    fn slow_steps_are_read_one_by_one_and_fast_ones_together() {
        assert_eq!(steps_unread(2.0), 1);
        assert_eq!(steps_unread(0.1), 2);
        assert_eq!(steps_unread(0.001), UNREAD_STEPS);
        assert_eq!(steps_unread(0.0), UNREAD_STEPS);
        assert_eq!(steps_unread(f64::NAN), UNREAD_STEPS);
    }

    #[test]
    fn a_processor_has_computed_when_it_returns() {
        assert!(!ReadMetrics::Auto.is_late_on(&Device::flex()));
        assert!(ReadMetrics::Late.is_late_on(&Device::flex().autodiff()));
    }
}
