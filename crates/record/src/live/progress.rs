//! How far a run has come that continues, by its `live.json`.

use super::{Live, Phase};
use crate::{ranges, units};

/// A training without a step for this many seconds, and this many times as long as a step takes, has stalled.
const STALL_SECONDS: f64 = 10.0;
const STALL_STEPS: f64 = 20.0;

impl Live {
    /// How far the run has come at this time: what it does, at which step, on which ranks, and when the newest step was.
    ///
    /// ```
    /// use everburn_record::{Live, LiveRank, Phase};
    ///
    /// let live = Live {
    ///     phase: Phase::Training,
    ///     step: 5_204,
    ///     steps: Some(172_000),
    ///     moved_unix_ms: Some(1_000),
    ///     members: vec![0, 2],
    ///     ranks: (0..3).map(|rank| LiveRank { rank, ..LiveRank::default() }).collect(),
    ///     ..Live::default()
    /// };
    /// let text = live.progress(1_250);
    /// assert_eq!(text, "training at step 5,204 of 172,000 on 2 of 3 ranks (0, 2), the last step 250 ms ago");
    /// assert_eq!(live.out(), [1]);
    /// ```
    pub fn progress(&self, now_ms: u64) -> String {
        let mut text = format!("{} at step {}", self.phase.text(), units::count(self.step));
        if let Some(steps) = self.steps {
            text += &format!(" of {}", units::count(steps));
        }
        let all = self.ranks.len().max(self.members.len()).max(1);
        text += &match self.out().is_empty() {
            true => format!(" on {}", units::counted(all, "rank")),
            false => format!(
                " on {} of {} ({})",
                self.members.len(),
                units::counted(all, "rank"),
                ranges(&self.members)
            ),
        };
        if let Some(at) = self.moved_unix_ms {
            let ago = units::seconds(now_ms.saturating_sub(at) as f64 / 1e3);
            text += &match self.phase {
                Phase::Training => format!(", the last step {ago} ago"),
                _ => format!(", for {ago}"),
            };
        }
        text
    }

    /// The ranks that are known of and make no steps: they were lost, and the others continue.
    pub fn out(&self) -> Vec<usize> {
        let takes_part = |rank: usize| self.members.is_empty() || self.members.contains(&rank);
        let numbers = self.ranks.iter().map(|it| it.rank);
        numbers.filter(|rank| !takes_part(*rank)).collect()
    }

    /// For how many seconds a training makes no step, where that is too long: 10 s, and 20 times as long as a step takes.
    ///
    /// ```
    /// use everburn_record::{Live, Phase};
    ///
    /// let live = Live { phase: Phase::Training, moved_unix_ms: Some(1_000), ..Live::default() };
    /// assert_eq!([10_999, 12_000].map(|now_ms| live.stalled(now_ms)), [None, Some(11.0)]);
    /// assert_eq!(Live { seconds_a_step: Some(3.0), ..live.clone() }.stalled(12_000), None);
    /// assert_eq!(Live { phase: Phase::Validating, ..live }.stalled(12_000), None);
    /// ```
    pub fn stalled(&self, now_ms: u64) -> Option<f64> {
        let since = self
            .moved_unix_ms
            .filter(|_| self.phase == Phase::Training)?;
        let seconds = now_ms.saturating_sub(since) as f64 / 1e3;
        let usual = self.seconds_a_step.unwrap_or_default();
        (seconds >= STALL_SECONDS.max(STALL_STEPS * usual)).then_some(seconds)
    }
}
