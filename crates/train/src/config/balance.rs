//! How ranks of different speed share a global batch.

use std::fmt;
use std::num::NonZeroUsize;
use std::str::FromStr;

use everburn_distributed::RankWeights;

/// How ranks share the samples of each global batch: `equal`, `auto` (in proportion to the speed that they measure), or
/// a weight for each rank, as in `3,1`. Which samples a global batch has does not depend on it.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::Balance;
///
/// let balance: Balance = "3,1".parse()?;
/// assert!(matches!(&balance, Balance::Weights(weights) if weights.counts(64) == [48, 16]));
/// assert_eq!("equal".parse(), Ok(Balance::default()));
/// assert!("3,0".parse::<Balance>().is_err());
/// # Ok::<(), String>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Balance {
    /// As many for each rank.
    #[default]
    Equal,
    /// In proportion to how fast each rank computes.
    Auto,
    /// In proportion to these weights.
    Weights(RankWeights),
}

impl fmt::Display for Balance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Equal => f.write_str("equal"),
            Self::Auto => f.write_str("auto"),
            Self::Weights(weights) => weights.fmt(f),
        }
    }
}

/// The largest weight: more is a mistake, and the sum of many must be a number.
const LARGEST: usize = 1_000_000;

impl FromStr for Balance {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let weight = |text: &str| {
            let weight = text.trim().parse::<NonZeroUsize>().ok();
            weight.filter(|weight| weight.get() <= LARGEST)
        };
        match text {
            "equal" => Ok(Self::Equal),
            "auto" => Ok(Self::Auto),
            weights => {
                let weights = weights.split(',').map(weight).collect::<Option<_>>();
                weights.map(Self::Weights).ok_or_else(|| {
                    format!(
                        "`{text}` is no way for ranks to share samples: use equal, auto, or a whole number from 1 for each rank, as in 3,1"
                    )
                })
            }
        }
    }
}

everburn_record::serde_as_text!(Balance);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_all_else_refused() {
        for text in ["equal", "auto", "1", "3,1", "1,1000000,7"] {
            assert_eq!(text.parse::<Balance>().unwrap().to_string(), text);
        }
        assert_eq!("3, 1".parse(), "3,1".parse::<Balance>());
        for text in [
            "", "Auto", "0", "3,", "3,0", "-1,2", "1.5,1", "3;1", "1000001",
        ] {
            assert!(text.parse::<Balance>().is_err(), "{text}");
        }
    }
}
