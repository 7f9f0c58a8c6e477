//! How much of an update is kept, whatever the run's files or a server say.

use std::borrow::Cow;
use std::collections::BTreeSet;

use everburn_record::{Live, LiveRank, MetricLine, RankLine, plain};

/// Ranks with this number or a larger one are left out.
pub(super) const MOST_RANKS: usize = 4096;

/// How many characters of a text are kept; more than a line of a terminal has.
const LONGEST_TEXT: usize = 400;

/// The beginning of a text as one line, without what would command a terminal: views show it as it is.
pub(super) fn cut(text: &str) -> String {
    plain::line(text, LONGEST_TEXT)
}

/// How many metrics of an objective are kept.
const MOST_METRICS: usize = 32;

/// How many of the ranks that one waits for are kept: as many as training writes.
const MOST_AWAITED: usize = 8;

/// A line, with the first of its metrics, whose names are no longer than a line.
pub(super) fn metrics(line: &MetricLine) -> MetricLine {
    let first = line.metrics.iter().take(MOST_METRICS);
    MetricLine {
        metrics: first.map(|(name, mean)| (cut(name), *mean)).collect(),
        ..line.clone()
    }
}

/// The ranks of a list that are kept, each once; and whether that is all of them.
pub(super) fn members(ranks: &[usize]) -> (BTreeSet<usize>, bool) {
    let kept = ranks.iter().copied().filter(|rank| *rank < MOST_RANKS);
    (kept.collect(), ranks.iter().all(|rank| *rank < MOST_RANKS))
}

/// The steps of a line that are kept, one of each rank; and whether that is all of them.
pub(super) fn rank_line(line: &RankLine) -> (Cow<'_, RankLine>, bool) {
    let mut seen = BTreeSet::new();
    let is_kept = |rank: usize, seen: &mut BTreeSet<usize>| rank < MOST_RANKS && seen.insert(rank);
    if line.ranks.iter().all(|step| is_kept(step.rank, &mut seen)) {
        return (Cow::Borrowed(line), true);
    }
    seen.clear();
    let steps = line.ranks.iter();
    let kept = RankLine {
        ranks: steps
            .filter(|step| is_kept(step.rank, &mut seen))
            .copied()
            .collect(),
        ..*line
    };
    (Cow::Owned(kept), false)
}

/// The ranks that are kept, with texts that are no longer than a line; and whether that is all of them.
pub(super) fn live_ranks(live: &Live) -> (Vec<LiveRank>, bool) {
    let mut seen = BTreeSet::new();
    let kept = live
        .ranks
        .iter()
        .filter(|rank| rank.rank < MOST_RANKS && seen.insert(rank.rank));
    let shortened = |rank: &LiveRank| LiveRank {
        doing: rank.doing.as_deref().map(cut),
        host: rank.host.as_deref().map(cut),
        waiting_for: rank
            .waiting_for
            .iter()
            .take(MOST_AWAITED)
            .copied()
            .collect(),
        ..rank.clone()
    };
    let kept: Vec<LiveRank> = kept.map(shortened).collect();
    let all = kept.len() == live.ranks.len();
    (kept, all)
}
