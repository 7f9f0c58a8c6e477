//! When checkpoints are written.

use std::fmt;
use std::num::NonZeroUsize;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// How often a checkpoint is written: `100steps`, `10min` or `1epoch`. An epoch that is the best so far has one
/// whatever this says.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::CheckpointEvery;
///
/// let every: CheckpointEvery = "100steps".parse()?;
/// assert!(every.is_due_after_step(200) && !every.is_due_after_step(201));
/// assert_eq!("1epoch".parse(), Ok(CheckpointEvery::default()));
/// assert!("often".parse::<CheckpointEvery>().is_err());
/// # Ok::<(), String>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckpointEvery {
    /// After this many steps, and at the end of an epoch.
    Steps(NonZeroUsize),
    /// When this many minutes have gone since the last one, and at the end of an epoch.
    Minutes(NonZeroUsize),
    /// At the end of N epochs, and of the last one.
    Epochs(NonZeroUsize),
}

impl CheckpointEvery {
    /// Whether one is due within an epoch, after step `step`.
    pub fn is_due_after_step(self, step: usize) -> bool {
        matches!(self, Self::Steps(steps) if step.is_multiple_of(steps.get()))
    }

    /// Whether one is due at the end of epoch `epoch` of `epochs`.
    pub(crate) fn is_due_after_epoch(self, epoch: usize, epochs: usize) -> bool {
        match self {
            Self::Epochs(every) => epoch.is_multiple_of(every.get()) || epoch >= epochs,
            Self::Steps(_) | Self::Minutes(_) => true,
        }
    }

    /// How long after a checkpoint the next one is due, where time decides.
    pub(crate) fn interval(self) -> Option<Duration> {
        match self {
            Self::Minutes(minutes) => Some(Duration::from_secs(60) * minutes.get() as u32),
            Self::Steps(_) | Self::Epochs(_) => None,
        }
    }
}

impl Default for CheckpointEvery {
    fn default() -> Self {
        Self::Epochs(NonZeroUsize::MIN)
    }
}

impl fmt::Display for CheckpointEvery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Steps(count) => write!(f, "{count}steps"),
            Self::Minutes(count) => write!(f, "{count}min"),
            Self::Epochs(count) => write!(f, "{count}epoch"),
        }
    }
}

impl FromStr for CheckpointEvery {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = || {
            format!(
                "`{text}` is not an interval: write a number from 1 and its unit, as in 100steps, 10min or 1epoch"
            )
        };
        let digits = text.find(|c: char| !c.is_ascii_digit());
        let (count, unit) = text.split_at(digits.ok_or_else(invalid)?);
        let count = count.parse().map_err(|_| invalid())?;
        match unit.trim() {
            "step" | "steps" => Ok(Self::Steps(count)),
            "min" | "minute" | "minutes" if count.get() <= MOST_MINUTES => Ok(Self::Minutes(count)),
            "epoch" | "epochs" => Ok(Self::Epochs(count)),
            _ => Err(invalid()),
        }
    }
}

/// A year: more is a mistake.
const MOST_MINUTES: usize = 366 * 24 * 60;

everburn_record::serde_as_text!(CheckpointEvery);

#[derive(Debug)]
pub(crate) struct Clock {
    interval: Option<Duration>,
    last: Instant,
}

impl Clock {
    pub(crate) fn start(every: CheckpointEvery) -> Self {
        Self {
            interval: every.interval(),
            last: Instant::now(),
        }
    }

    pub(crate) fn is_due(&self) -> bool {
        self.interval
            .is_some_and(|interval| self.last.elapsed() >= interval)
    }

    pub(crate) fn restart(&mut self) {
        self.last = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for text in ["100steps", "10min", "3epoch"] {
            assert_eq!(text.parse::<CheckpointEvery>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "steps",
            "0steps",
            "-1epoch",
            "10",
            "10h",
            "1 000steps",
            "99999999min",
        ] {
            assert!(text.parse::<CheckpointEvery>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_last_epoch_has_one_always() {
        let every: CheckpointEvery = "2epochs".parse().unwrap();
        let due = (1..=5).filter(|epoch| every.is_due_after_epoch(*epoch, 5));
        assert_eq!(due.collect::<Vec<_>>(), [2, 4, 5]);
        assert!(!every.is_due_after_step(2));
    }
}
