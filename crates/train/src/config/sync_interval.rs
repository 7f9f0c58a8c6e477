//! Synchronous or local steps.

use std::fmt;
use std::num::NonZeroUsize;
use std::str::FromStr;

/// When ranks exchange what they have learnt: gradients in each `step`, or parameters after `every=H` local steps
/// ([`OuterLoop`](everburn_distributed::OuterLoop)). A number of steps alone is short for the latter, and 0 for `step`.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::SyncInterval;
///
/// let sync: SyncInterval = "every=50".parse()?;
/// assert_eq!(sync.steps(), Some(50));
/// assert_eq!("50".parse(), Ok(sync));
/// assert_eq!("step".parse(), Ok(SyncInterval::Step));
/// assert!("every=0".parse::<SyncInterval>().is_err());
/// # Ok::<(), String>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SyncInterval {
    /// Averaged gradients in each step.
    #[default]
    Step,
    /// Parameters after this many local steps, and at the end of an epoch and of the run.
    Every(NonZeroUsize),
}

impl SyncInterval {
    /// The number of local steps; `None` for synchronous steps.
    pub const fn steps(self) -> Option<usize> {
        match self {
            Self::Step => None,
            Self::Every(steps) => Some(steps.get()),
        }
    }
}

impl fmt::Display for SyncInterval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Step => f.write_str("step"),
            Self::Every(steps) => write!(f, "every={steps}"),
        }
    }
}

impl FromStr for SyncInterval {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = || {
            format!(
                "`{text}` is not a number of local steps: use one, as in 50 (\"every=50\" in a file), or 0 for synchronous steps"
            )
        };
        match text.split_once('=') {
            None if text == "step" => Ok(Self::Step),
            None => match text.parse().map_err(|_| invalid())? {
                0 => Ok(Self::Step),
                steps => NonZeroUsize::new(steps)
                    .map(Self::Every)
                    .ok_or_else(invalid),
            },
            Some(("every", steps)) => steps.parse().map(Self::Every).map_err(|_| invalid()),
            _ => Err(invalid()),
        }
    }
}

everburn_record::serde_as_text!(SyncInterval);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_all_else_refused() {
        assert_eq!("0".parse(), Ok(SyncInterval::Step));
        assert_eq!("7".parse::<SyncInterval>().unwrap().steps(), Some(7));
        for text in ["step", "every=1", "every=500"] {
            assert_eq!(text.parse::<SyncInterval>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "steps",
            "every",
            "every=",
            "every=0",
            "every=-1",
            "every=1.5",
            "=50",
            "step=2",
        ] {
            assert!(text.parse::<SyncInterval>().is_err(), "{text}");
        }
    }
}
