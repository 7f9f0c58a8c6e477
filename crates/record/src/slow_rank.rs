//! Ranks whose own work keeps the others waiting.

/// Whose work takes this many times the median is slow.
const SLOW: f64 = 1.25;

/// Of fewer steps no rank is said to be waited for: the first ones warm up, and a core may be taken for a moment.
const FEWEST_STEPS: u64 = 8;

/// From which part of their steps on the waiting of ranks for a slow one is worth a word: on a busy machine, equal ranks wait
/// up to 22 %.
const CONSIDERABLE: f64 = 0.25;

/// How long some steps took a rank, and for how long of that it waited.
///
/// ```
/// use everburn_record::RankLoad;
///
/// let load = RankLoad { rank: 1, steps: 10, seconds: 2.0, waited: 0.5 };
/// assert_eq!(load.work(), 0.15);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct RankLoad {
    /// The rank.
    pub rank: usize,
    /// How many steps there were.
    pub steps: u64,
    /// How long they took together, in seconds.
    pub seconds: f64,
    /// For how long of that it waited for other ranks, in seconds.
    pub waited: f64,
}

impl RankLoad {
    /// The mean of a step's own work, in seconds.
    #[must_use]
    pub fn work(&self) -> f64 {
        (self.seconds - self.waited).max(0.0) / self.steps.max(1) as f64
    }
}

/// The ranks whose own work takes at least a quarter longer than the median rank's, with how many times as long it takes, the
/// slowest first.
///
/// ```
/// use everburn_record::{RankLoad, slow_ranks};
///
/// let load = |rank, waited| RankLoad { rank, steps: 4, seconds: 4.0, waited };
/// assert_eq!(slow_ranks(&[load(0, 3.0), load(1, 0.0)]), [(1, 4.0)]);
/// assert!(slow_ranks(&[load(0, 3.0), load(1, 3.0)]).is_empty());
/// ```
#[must_use]
pub fn slow_ranks(ranks: &[RankLoad]) -> Vec<(usize, f64)> {
    let mut works: Vec<f64> = ranks.iter().map(RankLoad::work).collect();
    works.sort_by(f64::total_cmp);
    // Of two ranks, the faster one.
    let median = works.get(works.len().saturating_sub(1) / 2);
    let Some(median) = median.filter(|work| **work > 0.0) else {
        return Vec::new();
    };
    let times = ranks.iter().map(|load| (load.rank, load.work() / median));
    let mut slow: Vec<(usize, f64)> = times.filter(|(_, times)| *times >= SLOW).collect();
    slow.sort_by(|one, other| other.1.total_cmp(&one.1));
    slow
}

/// The rank that the others have waited for, where one is [slow](slow_ranks) over eight steps or more and they waited at least
/// a quarter of their time, with that part. What the slow rank waits itself is not counted: that is the exchange's own.
///
/// ```
/// use everburn_record::{RankLoad, awaited_rank};
///
/// let load = |rank, waited| RankLoad { rank, steps: 8, seconds: 8.0, waited };
/// assert_eq!(awaited_rank(&[load(0, 6.0), load(1, 2.0)]), Some((1, 0.5)));
/// assert_eq!(awaited_rank(&[load(0, 2.0), load(1, 1.0)]), None);
/// ```
#[must_use]
pub fn awaited_rank(ranks: &[RankLoad]) -> Option<(usize, f64)> {
    let (slowest, _) = *slow_ranks(ranks).first()?;
    if ranks.iter().any(|load| load.steps < FEWEST_STEPS) {
        return None;
    }
    let part = |is_slowest: bool| {
        let (mut waited, mut seconds) = (0.0, 0.0);
        let those = ranks.iter();
        for load in those.filter(|load| (load.rank == slowest) == is_slowest) {
            waited += load.waited;
            seconds += load.seconds;
        }
        waited / seconds
    };
    let part = part(false) - part(true);
    (part >= CONSIDERABLE).then_some((slowest, part))
}
