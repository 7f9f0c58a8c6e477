//! What the heartbeats of a group show, and the diagnosis from that and from the reports of its ranks.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::{Evidence, HangReport, LogOf, RankActivity, RankReport, last_beats};
use crate::heartbeat::beat::Beat;
use crate::heartbeat::diagnosis::{
    RankState, doing, has_called, late, stalled, waits_itself, wanted_in,
};
use crate::heartbeat::log::last_lines;
use crate::heartbeat::machine::SilentMachine;
use crate::heartbeat::thread::{Followed, Heartbeat};
use crate::sync::lock;

/// What the heartbeats of a group show at one time.
#[derive(Clone)]
pub(super) struct Known {
    /// By rank.
    pub(super) beats: Vec<RankReport>,
    /// When the store last answered.
    answered: Instant,
    /// By rank, the time since the last new beat: [`Heartbeat::silence_of`].
    silent_for: Vec<Option<Duration>>,
    store_silent_for: Option<Duration>,
    timeout: Option<Duration>,
    interval: Duration,
    ranks_per_machine: Option<usize>,
}

impl Known {
    pub(super) fn now(heartbeat: &Heartbeat, followed: &Followed) -> Self {
        let members = followed.members.iter();
        let answered = lock(&heartbeat.state).answered;
        Self {
            beats: last_beats(heartbeat, followed),
            answered,
            silent_for: members
                .map(|member| heartbeat.silence_of(*member))
                .collect(),
            store_silent_for: heartbeat.store_silent_for(),
            timeout: followed.core.upgrade().map(|core| core.timeout()),
            interval: heartbeat.options.interval,
            ranks_per_machine: heartbeat.options.ranks_per_machine,
        }
    }

    /// What they show now. The monitor may follow the next group already, in which nobody counts as silent yet: a rank without a new
    /// beat has been silent all the time.
    pub(super) fn later(&self, heartbeat: &Heartbeat, followed: &Followed) -> Self {
        let mut now = Self::now(heartbeat, followed);
        let since = now.answered.saturating_duration_since(self.answered);
        let before = self.beats.iter().zip(&self.silent_for);
        for (rank, (beat, silent_for)) in before.enumerate() {
            let is_unchanged = beat.counter() == now.beats[rank].counter();
            if is_unchanged
                && now.store_silent_for.is_none()
                && let Some(silence) = silent_for
            {
                now.silent_for[rank] = Some(*silence + since);
            }
        }
        Self {
            beats: self.beats.clone(),
            timeout: self.timeout,
            ..now
        }
    }

    pub(super) fn diagnose(
        &self,
        followed: &Followed,
        reports: &[RankReport],
        log_of: LogOf<'_>,
    ) -> HangReport {
        let asked = |report: &&RankReport| report.evidence != Evidence::NotAsked;
        let stopped = said_by_answers(reports, |beat| &beat.stopped);
        let states: Vec<RankState> = reports
            .iter()
            .enumerate()
            .map(|(rank, report)| {
                let state = self.state_of(rank, report);
                let stopped = stopped.contains(&rank) && state.asked && !state.answered;
                RankState {
                    alive: state.alive && !stopped,
                    stopped,
                    ..state
                }
            })
            .collect();
        let stalled = stalled(&states);
        let wanted = stalled.and_then(|rank| wanted_in(&states, rank));
        let of_stalled = stalled.map(|rank| &states[rank]).zip(wanted);
        let log = stalled.and_then(|rank| log_of(*followed.members.get(rank)?));
        let waits = |rank: &usize| {
            let mut records = states[*rank].records.iter();
            let waits_for =
                |stalled: usize| records.any(|entry| entry.waiting_for.contains(&stalled));
            states[*rank].answered && stalled.is_some_and(waits_for)
        };
        let said = said_by_answers(reports, |beat| &beat.silent);
        let is_silent = |rank: usize| {
            let silent_for = self.silent_for[rank];
            (silent_for.is_some() || said.contains(&rank)) && !states[rank].alive
        };
        let per_machine = self.ranks_per_machine;
        HangReport {
            reporter: followed.rank,
            stalled,
            machine: stalled.and_then(|rank| {
                SilentMachine::of(rank, &followed.members, per_machine, is_silent)
            }),
            waiting: (0..states.len()).filter(waits).collect(),
            has_called: of_stalled.and_then(|(state, wanted)| has_called(state, wanted)),
            waits_itself: of_stalled
                .and_then(|(state, wanted)| waits_itself(state, wanted).cloned()),
            late: of_stalled.and_then(|(state, wanted)| late(state, wanted)),
            timeout: self.timeout,
            wanted: wanted.cloned(),
            lines: log.as_deref().map_or(Ok(Vec::new()), last_lines),
            log,
            ranks: self.activities(followed, reports, &states),
            own_pause: None,
            store_silent_for: self.store_silent_for,
            others: reports.len() - reports.iter().filter(asked).count(),
            is_printed_here: true,
        }
    }

    fn state_of(&self, rank: usize, report: &RankReport) -> RankState {
        let answered = report.evidence == Evidence::Answer;
        let silent_for = self.silent_for[rank];
        // Allows for one late beat and one polling interval.
        let beats = silent_for.is_some_and(|silence| silence < 3 * self.interval);
        let beat = report.beat.clone().unwrap_or_default();
        RankState {
            asked: report.evidence != Evidence::NotAsked,
            answered,
            alive: answered || beats || report.beats,
            stopped: false,
            waiting_for: beat.waiting_for,
            failed_for: beat.failed_for,
            records: beat.records,
        }
    }

    fn activities(
        &self,
        followed: &Followed,
        reports: &[RankReport],
        states: &[RankState],
    ) -> Vec<RankActivity> {
        let activity = |(rank, (report, state)): (usize, (&RankReport, &RankState))| RankActivity {
            rank,
            member: followed.members[rank],
            evidence: report.evidence,
            silent_for: self.silent_for[rank]
                .filter(|_| rank != followed.rank)
                .filter(|_| report.beat.as_ref().is_some_and(|beat| !beat.goodbye)),
            alive: state.alive,
            stopped: state.stopped,
            pid: report.beat.as_ref().and_then(|beat| beat.pid),
            host: report.beat.as_ref().and_then(|beat| beat.host.clone()),
            step: report.beat.as_ref().map(|beat| beat.step),
            doing: doing(&state.records).cloned(),
        };
        let both = reports.iter().zip(states).enumerate();
        both.filter(|(_, (_, state))| state.asked)
            .map(activity)
            .collect()
    }
}

/// The ranks that an answer names, as silent or as stopped. A rank of a large group does not watch all others, and sees only the
/// processes of its own machine.
fn said_by_answers(reports: &[RankReport], of: impl Fn(&Beat) -> &Vec<usize>) -> BTreeSet<usize> {
    let answers = reports.iter().filter(|it| it.evidence == Evidence::Answer);
    let beats = answers.filter_map(|report| report.beat.as_ref());
    beats.flat_map(|beat| of(beat).iter().copied()).collect()
}
