//! How often ranks become equal.

use std::fmt;
use std::num::NonZeroUsize;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// How often ranks become equal: in each `step`, by its gradients; or `every=H` steps, by what those have
/// made of each rank's parameters ([`OuterLoop`](everburn_distributed::OuterLoop)).
///
/// ```
/// use everburn_train::SyncInterval;
///
/// let sync: SyncInterval = "every=50".parse()?;
/// assert_eq!(sync.steps(), Some(50));
/// assert_eq!("step".parse(), Ok(SyncInterval::Step));
/// assert!("every=0".parse::<SyncInterval>().is_err());
/// # Ok::<(), everburn_train::InvalidSyncInterval>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum SyncInterval {
    /// In each step, by averaged gradients.
    #[default]
    Step,
    /// After so many steps of each rank by itself, at the end of an epoch, and at that of the run.
    Every(NonZeroUsize),
}

impl SyncInterval {
    /// How many steps each rank makes by itself; `None` if it makes none.
    #[must_use]
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

/// A text that says nothing of [`SyncInterval`].
///
/// ```
/// use everburn_train::SyncInterval;
///
/// let error = "often".parse::<SyncInterval>().unwrap_err();
/// assert!(error.to_string().contains("every=50"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` does not say how often ranks become equal: use step, or every= and a number of steps from 1, \
     as in every=50"
)]
pub struct InvalidSyncInterval(String);

impl FromStr for SyncInterval {
    type Err = InvalidSyncInterval;

    fn from_str(text: &str) -> Result<Self, InvalidSyncInterval> {
        let invalid = || InvalidSyncInterval(text.to_string());
        match text.split_once('=') {
            None if text == "step" => Ok(Self::Step),
            Some(("every", steps)) => steps.parse().map(Self::Every).map_err(|_| invalid()),
            _ => Err(invalid()),
        }
    }
}

impl TryFrom<String> for SyncInterval {
    type Error = InvalidSyncInterval;

    fn try_from(text: String) -> Result<Self, InvalidSyncInterval> {
        text.parse()
    }
}

impl From<SyncInterval> for String {
    fn from(sync: SyncInterval) -> Self {
        sync.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_all_else_refused() {
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
