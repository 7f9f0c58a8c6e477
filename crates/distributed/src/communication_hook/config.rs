//! Which hook is used.

use std::fmt;
use std::num::NonZeroUsize;
use std::str::FromStr;

use super::{AllReduce, Bf16, CommunicationHook, Fp16, PowerSgd};

/// Steps of plain all-reduce before PowerSGD begins, unless said otherwise.
///
/// The first gradients of a training are the largest and turn the fastest, and a factor that
/// starts at random fits them worst. Ten steps cost little of what the compression saves.
const DEFAULT_START_AFTER: u64 = 10;

/// Which communication hook is used.
///
/// Written `none`, `fp16`, `bf16`, `power-sgd:RANK` or `power-sgd:RANK:START_AFTER`, on the
/// command line and in files.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use everburn::distributed::CommunicationHookConfig;
///
/// let config: CommunicationHookConfig = "power-sgd:4".parse()?;
/// assert_eq!(config.to_string(), "power-sgd:4");
/// assert_eq!(config.build().name(), "power-sgd(4)");
/// # Ok::<(), String>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum CommunicationHookConfig {
    /// Gradients as they are: [`AllReduce`].
    #[default]
    None,
    /// 16 bits with a 5-bit exponent: [`Fp16`].
    Fp16,
    /// 16 bits with an 8-bit exponent: [`Bf16`].
    Bf16,
    /// Low-rank factors: [`PowerSgd`].
    PowerSgd {
        /// How many columns a factor has.
        rank: NonZeroUsize,
        /// How many steps of plain all-reduce come first.
        start_after: u64,
    },
}

impl CommunicationHookConfig {
    /// A new hook, without memory of any step.
    #[must_use]
    pub fn build(self) -> Box<dyn CommunicationHook> {
        match self {
            Self::None => Box::new(AllReduce),
            Self::Fp16 => Box::new(Fp16::default()),
            Self::Bf16 => Box::new(Bf16::default()),
            Self::PowerSgd { rank, start_after } => Box::new(PowerSgd::new(rank, start_after)),
        }
    }

    /// The hook for gradients in host memory; `None` where they go as they are.
    pub(crate) fn in_host_memory(self) -> Option<Box<dyn CommunicationHook>> {
        (self != Self::None).then(|| self.build())
    }

    /// Whether gradients need not be in host memory: a GPU does the hook's work on its buckets.
    pub(crate) fn takes_buckets_of_devices(self) -> bool {
        !matches!(self, Self::PowerSgd { .. })
    }
}

impl fmt::Display for CommunicationHookConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Fp16 => f.write_str("fp16"),
            Self::Bf16 => f.write_str("bf16"),
            Self::PowerSgd { rank, start_after } if *start_after == DEFAULT_START_AFTER => {
                write!(f, "power-sgd:{rank}")
            }
            Self::PowerSgd { rank, start_after } => write!(f, "power-sgd:{rank}:{start_after}"),
        }
    }
}

impl FromStr for CommunicationHookConfig {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.splitn(3, ':');
        let name = parts.next().unwrap_or_default();
        match (name, parts.next(), parts.next()) {
            ("none", None, None) => Ok(Self::None),
            ("fp16", None, None) => Ok(Self::Fp16),
            ("bf16", None, None) => Ok(Self::Bf16),
            ("power-sgd", None, None) => {
                Err("power-sgd needs the rank of its factors: write it, as in power-sgd:4".into())
            }
            ("power-sgd", Some(rank), start_after) => power_sgd(rank, start_after),
            _ => Err(format!(
                "there is no communication hook `{text}`: use none, fp16, bf16 or power-sgd:RANK"
            )),
        }
    }
}

fn power_sgd(rank: &str, start_after: Option<&str>) -> Result<CommunicationHookConfig, String> {
    let rank = rank.parse::<NonZeroUsize>().map_err(|_| {
        format!("`{rank}` cannot be the rank of power-sgd: use a whole number of at least 1, such as power-sgd:4")
    })?;
    let start_after = match start_after {
        None => DEFAULT_START_AFTER,
        Some(steps) => steps.parse().map_err(|_| {
            format!("power-sgd cannot start after `{steps}` steps: use a whole number, such as power-sgd:{rank}:100")
        })?,
    };
    Ok(CommunicationHookConfig::PowerSgd { rank, start_after })
}

everburn_record::serde_as_text!(CommunicationHookConfig);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_hook_is_read_as_it_is_written() {
        let written = [
            ("none", "none"),
            ("fp16", "fp16"),
            ("bf16", "bf16"),
            ("power-sgd:1", "power-sgd(1)"),
            ("power-sgd:4:0", "power-sgd(4)"),
            ("power-sgd:32:100", "power-sgd(32)"),
        ];
        for (text, name) in written {
            let config: CommunicationHookConfig = text.parse().unwrap();
            assert_eq!(config.to_string(), text);
            assert_eq!(config.build().name(), name);
        }
        let spelled_out = format!("power-sgd:2:{DEFAULT_START_AFTER}");
        let config: CommunicationHookConfig = spelled_out.parse().unwrap();
        assert_eq!(config.to_string(), "power-sgd:2");
    }

    #[test]
    fn files_hold_what_the_command_line_takes() {
        let config: CommunicationHookConfig = serde_json::from_str("\"power-sgd:4:7\"").unwrap();
        let rank = NonZeroUsize::new(4).unwrap();
        let expected = CommunicationHookConfig::PowerSgd {
            rank,
            start_after: 7,
        };
        assert_eq!(config, expected);
        assert_eq!(serde_json::to_string(&config).unwrap(), "\"power-sgd:4:7\"");
        let refused = serde_json::from_str::<CommunicationHookConfig>("\"fp8\"");
        assert!(
            refused
                .unwrap_err()
                .to_string()
                .contains("no communication hook `fp8`")
        );
    }

    #[test]
    fn what_names_no_hook_is_answered_with_what_to_write() {
        let refused = [
            ("", "use none, fp16, bf16 or power-sgd:RANK"),
            ("fp8", "no communication hook `fp8`"),
            ("fp16:2", "no communication hook `fp16:2`"),
            ("power-sgd", "as in power-sgd:4"),
            ("power-sgd:", "`` cannot be the rank"),
            ("power-sgd:0", "`0` cannot be the rank"),
            ("power-sgd:-1", "at least 1"),
            ("power-sgd:4:soon", "after `soon` steps"),
            ("power-sgd:4:1:2", "after `1:2` steps"),
        ];
        for (text, expected) in refused {
            let error = text.parse::<CommunicationHookConfig>().unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        }
    }
}
