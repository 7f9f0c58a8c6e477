//! What is known of each rank.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use everburn_record::{Event, EventKind, LiveRank, ProcessMetrics, RankLine, RankLoad, RankStep};

use super::RunState;
use super::bounds;
use super::history::own_work;

/// Over how many lines the times of a rank are averaged.
const RECENT: usize = 16;

/// Who works so much longer than the median keeps the others waiting; the report marks by the same.
const STRAGGLER: f64 = 1.25;

/// Differences below this many seconds are noise: no rank is called slow for them.
const NOISE: f64 = 0.000_2;

/// The status of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RankStatus {
    /// Unknown.
    #[default]
    Unknown,
    /// It is training.
    Working,
    /// Its work takes a quarter longer than the median's.
    Straggling,
    /// It sends no heartbeats.
    Silent,
    /// It was lost, and may come back.
    Lost,
    /// It has ended.
    Ended,
}

impl RankStatus {
    /// The word in the table.
    ///
    /// ```
    /// assert_eq!(everburn_monitor::RankStatus::Straggling.word(), "slow");
    /// ```
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Unknown => "-",
            Self::Working => "ok",
            Self::Straggling => "slow",
            Self::Silent => "silent",
            Self::Lost => "lost",
            Self::Ended => "ended",
        }
    }
}

/// A rank as a view shows it: [`RunState::ranks`].
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RankState {
    /// Its rank at the start of the job.
    pub rank: usize,
    /// Its status.
    pub status: RankStatus,
    /// Its newest known step.
    pub step: Option<u64>,
    /// That step is the one of its last heartbeat, which may be under way or two seconds old.
    pub step_by_heartbeat: bool,
    /// Its recent step times: the mean of the newest lines.
    pub times: Option<RankStep>,
    /// The collective in flight, or the last one.
    pub doing: Option<String>,
    /// The ranks for which it waits in that collective, the first of them where they are many.
    pub waiting_for: Vec<usize>,
    /// Its process: `pid 4711 on node07`.
    pub process: Option<String>,
    /// Seconds since its last heartbeat.
    pub silent_seconds: Option<f64>,
    /// The id of its process, if that is stopped on the machine of the run's folder.
    pub stopped: Option<u32>,
    /// Metrics of its process and device.
    pub process_metrics: ProcessMetrics,
}

/// The state by rank. Ranks are bounded before they come here, and so are all maps.
#[derive(Debug, Clone, Default)]
pub(super) struct Ranks {
    recent: BTreeMap<usize, VecDeque<RankStep>>,
    /// The newest step of each rank that is recorded: heartbeats come seldom, and may be older.
    recorded: BTreeMap<usize, u64>,
    live: BTreeMap<usize, LiveRank>,
    /// Who makes steps, where anybody has said so.
    members: BTreeSet<usize>,
    /// Since when, in milliseconds since 1970, ranks are known to be lost.
    lost: BTreeMap<usize, u64>,
    /// What is known of ranks that are waited for.
    pub(super) wait: Option<Wait>,
}

/// That ranks are waited for. Times are in milliseconds since 1970.
#[derive(Debug, Clone)]
pub(super) struct Wait {
    /// Who has joined.
    pub(super) joined: BTreeSet<usize>,
    /// When that was said; 0 where it is not known.
    pub(super) since_ms: u64,
    /// Until when the others are waited for.
    pub(super) until_ms: u64,
    /// Whom the store has refused, and why.
    pub(super) refused: Option<String>,
}

impl Ranks {
    pub(super) fn step(&mut self, line: &RankLine) {
        for step in &line.ranks {
            let recent = self.recent.entry(step.rank).or_default();
            if recent.len() == RECENT {
                recent.pop_front();
            }
            recent.push_back(*step);
            self.recorded.insert(step.rank, line.step);
            let since = self.lost.get(&step.rank);
            // By clocks of one machine, mostly: a step that ended before the loss says nothing of what came after.
            if since.is_some_and(|since| line.unix_time_ms.is_some_and(|at| at > *since)) {
                self.lost.remove(&step.rank);
            }
        }
        // Who took no part is no longer what it was.
        let present: BTreeSet<usize> = line.ranks.iter().map(|step| step.rank).collect();
        for (rank, recent) in &mut self.recent {
            if !present.contains(rank) {
                recent.clear();
            }
        }
    }

    /// `members` are the ranks that the event names.
    pub(super) fn event(&mut self, event: &Event, members: Option<BTreeSet<usize>>) {
        if let Some(until_ms) = event.waits_until_ms {
            let since_ms = event.unix_time_ms.unwrap_or(0);
            self.wait = members.map(|joined| Wait {
                joined,
                since_ms,
                until_ms,
                refused: event.refused().map(bounds::cut),
            });
            return;
        }
        match (event.kind, event.rank) {
            (EventKind::Loss | EventKind::Restart, Some(rank)) => {
                self.lost.insert(rank, event.unix_time_ms.unwrap_or(0));
            }
            (EventKind::Regroup | EventKind::Start | EventKind::Resume, _) => {
                if let Some(members) = members {
                    self.lost.retain(|rank, _| !members.contains(rank));
                    self.members = members;
                }
                self.wait = None;
            }
            (EventKind::Failure | EventKind::Stop, _) => self.wait = None,
            _ => {}
        }
    }

    pub(super) fn live(&mut self, ranks: Vec<LiveRank>, members: BTreeSet<usize>) {
        self.live
            .extend(ranks.into_iter().map(|rank| (rank.rank, rank)));
        if !members.is_empty() {
            self.members = members;
        }
    }

    /// The ranks that are stopped and still take part, with their processes.
    pub(super) fn stopped(&self) -> impl Iterator<Item = (usize, u32)> {
        let takes_part = |rank: &usize| {
            !self.lost.contains_key(rank)
                && (self.members.is_empty() || self.members.contains(rank))
        };
        let stopped = self.live.values().filter(|live| live.stopped);
        let stopped = stopped.filter(move |live| takes_part(&live.rank));
        stopped.filter_map(|live| Some((live.rank, live.pid?)))
    }

    /// What the newest lines have of each rank that takes part.
    pub(super) fn loads(&self) -> Vec<RankLoad> {
        let takes_part = |(rank, recent): &(&usize, &VecDeque<RankStep>)| {
            !recent.is_empty() && !self.lost.contains_key(*rank)
        };
        let of_rank = |(rank, recent): (&usize, &VecDeque<RankStep>)| RankLoad {
            rank: *rank,
            steps: recent.len() as u64,
            seconds: recent.iter().map(|step| step.seconds).sum(),
            waited: recent.iter().map(|step| step.waited).sum(),
        };
        self.recent.iter().filter(takes_part).map(of_rank).collect()
    }

    /// About how many bytes it holds.
    #[cfg(any(test, fuzzing))]
    pub(super) fn held(&self) -> usize {
        let recent: usize = self.recent.values().map(VecDeque::len).sum();
        let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let of_rank = |rank: &LiveRank| {
            text(&rank.doing) + text(&rank.host) + size_of_val(&rank.waiting_for[..])
        };
        let texts: usize = self.live.values().map(of_rank).sum();
        let joined = self.wait.as_ref().map_or(0, |wait| wait.joined.len());
        let numbers = self.recorded.len() + self.lost.len() + self.members.len() + joined;
        let live = self.live.len() * size_of::<LiveRank>();
        recent * size_of::<RankStep>() + texts + live + 16 * numbers
    }

    pub(super) fn all(&self, state: &RunState) -> Vec<RankState> {
        let planned = 0..state.planned_ranks;
        let mut numbers: Vec<usize> = planned
            .chain(self.recent.keys().copied())
            .chain(self.live.keys().copied())
            .collect();
        numbers.sort_unstable();
        numbers.dedup();
        let is_member = |rank: usize| self.members.is_empty() || self.members.contains(&rank);
        let is_awaited = |live: &LiveRank| {
            let is_lost = self.lost.contains_key(&live.rank) || !is_member(live.rank);
            !is_lost && (live.stopped || live.silent_seconds.is_some())
        };
        let times = |rank: &usize| {
            let recent = self.recent.get(rank).filter(|recent| !recent.is_empty())?;
            Some(RankStep {
                rank: *rank,
                ..RankStep::mean(recent)
            })
        };
        let mut work: Vec<f64> = numbers
            .iter()
            .filter_map(|rank| Some(own_work(&times(rank)?)))
            .collect();
        work.sort_by(f64::total_cmp);
        // The lower one of two: the slower of two ranks is slow.
        let median = work.get(work.len().saturating_sub(1) / 2).copied();
        let silence = state.silence();
        // While a rank holds the run up, the newest times are those of who waits for it.
        let is_held_up = silence.or(state.stall()).is_some() || self.live.values().any(is_awaited);
        // The age of a file that cannot be written is not the silence of a rank.
        let unheard = silence.filter(|_| state.live.unwritable.is_none());
        let rank = |rank: usize| {
            let live = self.live.get(&rank);
            let stopped = live.filter(|live| live.stopped && state.goes_on());
            // Who writes of the others does not write of its own silence.
            let silent_seconds = match live.and_then(|live| live.silent_seconds) {
                None => unheard.filter(|_| rank == state.writer),
                Some(seconds) => Some(seconds + unheard.unwrap_or_default()),
            };
            let times = times(&rank);
            let is_slow = |times: &RankStep| {
                let work = own_work(times);
                !is_held_up
                    && median
                        .is_some_and(|median| work > STRAGGLER * median && work > median + NOISE)
            };
            let wait = self.wait.as_ref();
            let has_joined = wait.is_some_and(|wait| wait.joined.contains(&rank));
            let status = if !state.goes_on() {
                RankStatus::Ended
            } else if self.lost.contains_key(&rank) {
                RankStatus::Lost
            } else if live.is_some() && (silent_seconds.is_some() || stopped.is_some()) {
                RankStatus::Silent
            } else if !is_member(rank) {
                RankStatus::Lost
            } else if times.as_ref().is_some_and(is_slow) {
                RankStatus::Straggling
            } else if live.is_some() || times.is_some() || has_joined {
                RankStatus::Working
            } else {
                RankStatus::Unknown
            };
            let heard = live.and_then(|live| live.step);
            let recorded = self.recorded.get(&rank).copied();
            // The step of `live.json` is finished, and so is all that a report is of.
            let is_exact = heard == Some(state.live.step) || state.finished;
            RankState {
                rank,
                status,
                step: heard.max(recorded),
                step_by_heartbeat: heard > recorded && !is_exact,
                times,
                doing: live.and_then(|live| live.doing.clone()),
                waiting_for: live.map_or_else(Vec::new, |live| live.waiting_for.clone()),
                process: live.and_then(process),
                silent_seconds,
                stopped: stopped.and_then(|live| live.pid),
                process_metrics: live
                    .map(|live| live.process_metrics.clone())
                    .unwrap_or_default(),
            }
        };
        numbers.into_iter().map(rank).collect()
    }
}

/// `pid 4711 on node07`
fn process(live: &LiveRank) -> Option<String> {
    let pid = live.pid?;
    Some(match &live.host {
        Some(host) => format!("pid {pid} on {host}"),
        None => format!("pid {pid}"),
    })
}

#[cfg(test)]
mod tests;
