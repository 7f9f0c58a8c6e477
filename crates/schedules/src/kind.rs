//! The schedules that are known by name.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::ScheduleError;

/// A schedule by name. Flags, files and [`Display`](fmt::Display) use the same names.
///
/// What each costs is at [`theoretical_idle`](crate::theoretical_idle).
///
/// ```
/// # mod everburn { pub use everburn_schedules as schedules; }
/// use everburn::schedules::ScheduleKind;
///
/// let kind: ScheduleKind = "1f1b".parse()?;
/// assert_eq!(kind, ScheduleKind::OneForwardOneBackward);
/// assert_eq!(kind.to_string(), "1f1b");
/// assert!("2f2b".parse::<ScheduleKind>().unwrap_err().to_string().contains("gpipe"));
/// # Ok::<(), everburn_schedules::ScheduleError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ScheduleKind {
    /// `gpipe`: all forward passes, then all backward passes (Huang et al. 2019, "GPipe: Efficient
    /// Training of Giant Neural Networks using Pipeline Parallelism", section 2.3). Every
    /// micro-batch is live at once.
    #[serde(rename = "gpipe")]
    #[doc(alias = "ScheduleGPipe")]
    GPipe,
    /// `1f1b`: after a warm-up, a forward and a backward pass in turn (Narayanan et al. 2021,
    /// "Memory-Efficient Pipeline-Parallel DNN Training", PipeDream-Flush). As idle as GPipe, but at
    /// most as many micro-batches as ranks are live.
    #[serde(rename = "1f1b")]
    #[doc(alias = "Schedule1F1B")]
    OneForwardOneBackward,
    /// `interleaved`: 1F1B over several chunks a rank (Narayanan et al. 2021, "Efficient Large-Scale
    /// Language Model Training on GPU Clusters Using Megatron-LM", section 2.2). Idle for less
    /// time; more messages, more live activations.
    #[serde(rename = "interleaved")]
    #[doc(alias = "ScheduleInterleaved1F1B")]
    Interleaved1F1B,
    /// `zb-h1`: 1F1B whose backward pass is cut in two, so that the gradients of weights fill the
    /// bubble (Qi et al. 2023, "Zero Bubble Pipeline Parallelism", section 2.1). As many live
    /// micro-batches as 1F1B has on its first rank.
    #[serde(rename = "zb-h1")]
    ZeroBubbleH1,
}

impl ScheduleKind {
    /// Every kind, in the order in which they are usually listed.
    pub const ALL: [Self; 4] = [
        Self::GPipe,
        Self::OneForwardOneBackward,
        Self::Interleaved1F1B,
        Self::ZeroBubbleH1,
    ];

    /// The name that flags and files use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::GPipe => "gpipe",
            Self::OneForwardOneBackward => "1f1b",
            Self::Interleaved1F1B => "interleaved",
            Self::ZeroBubbleH1 => "zb-h1",
        }
    }

    /// Whether a rank may have more than one chunk of the model.
    #[must_use]
    pub const fn has_chunks(self) -> bool {
        matches!(self, Self::Interleaved1F1B)
    }

    /// Whether the backward pass is cut in two: for inputs and for weights.
    #[must_use]
    pub const fn splits_backward(self) -> bool {
        matches!(self, Self::ZeroBubbleH1)
    }
}

impl fmt::Display for ScheduleKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for ScheduleKind {
    type Err = ScheduleError;

    fn from_str(name: &str) -> Result<Self, ScheduleError> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.name() == name)
            .ok_or_else(|| ScheduleError::UnknownKind { name: name.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_files_and_errors_share_the_names() {
        for kind in ScheduleKind::ALL {
            assert_eq!(kind.name().parse::<ScheduleKind>().unwrap(), kind);
            let in_a_file = serde_json::to_string(&kind).unwrap();
            assert_eq!(in_a_file, format!("\"{kind}\""));
        }
        let error = "1F1B".parse::<ScheduleKind>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "there is no schedule `1F1B`: use gpipe, 1f1b, interleaved or zb-h1"
        );
    }
}
