//! Hang reports: collects the state of all ranks after one of them stalled.

mod gathering;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use self::gathering::gather;
use super::beat::{Beat, BeatEntry};
use super::diagnosis::{RankState, doing, has_called, late, stalled, waits_itself, wanted_in};
use super::log::last_lines;
use super::machine::SilentMachine;
use super::thread::{Followed, Heartbeat};
use crate::group::{CollectiveError, FlightEntry, waited_for};
use crate::sync::lock;
use crate::transport::Failure;

/// The source of a rank's activity.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::heartbeat::Evidence;
///
/// assert_ne!(Evidence::Answer, Evidence::Beat);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Evidence {
    /// The rank's own report after the failure.
    Answer,
    /// Its last beat.
    Beat,
    /// Its report or beat is unreadable.
    Unreadable,
    /// It has published nothing, or the store did not answer.
    Nothing,
    /// Its report was not looked for: others do not wait for it, and it is not in the sample.
    NotAsked,
}

/// The activity of one rank.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::heartbeat::HangReport;
///
/// fn steps(report: &HangReport) -> Vec<Option<u64>> {
///     report.ranks.iter().map(|activity| activity.step).collect()
/// }
/// ```
#[derive(Debug, Clone)]
pub struct RankActivity {
    /// The rank in the group.
    pub rank: usize,
    /// Its member number: the slot in an elastic run, else the rank.
    pub member: usize,
    /// The source of this information.
    pub evidence: Evidence,
    /// The time since its last new beat; `None` for this rank, for ranks without a beat, and where the store is silent.
    pub silent_for: Option<Duration>,
    /// Whether its beats arrive, or it has answered.
    pub alive: bool,
    /// Whether its process is stopped (SIGSTOP), as a rank of its machine has found.
    pub stopped: bool,
    /// The id of its process, on its machine.
    pub pid: Option<u32>,
    /// The name of its machine.
    pub host: Option<String>,
    /// Its step.
    pub step: Option<u64>,
    /// The running operation, else the failed one, else the last.
    pub doing: Option<FlightEntry>,
}

/// The diagnosis of a hang: the stalled rank, its operation, and the activity of all ranks. `Display` formats
/// it for the user.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::heartbeat::HangReport;
///
/// fn exclude(report: &HangReport) -> Option<usize> {
///     report.stalled
/// }
/// ```
#[derive(Debug, Clone)]
pub struct HangReport {
    /// The rank that reports.
    pub reporter: usize,
    /// The rank that the others wait for, if it could be determined.
    pub stalled: Option<usize>,
    /// The machine of the stalled rank, if all ranks of it are silent.
    pub machine: Option<SilentMachine>,
    /// The operation in which they wait for it.
    pub wanted: Option<FlightEntry>,
    /// The ranks that wait in it.
    pub waiting: Vec<usize>,
    /// Whether the stalled rank has called that operation before the group failed; `None` if unknown.
    pub has_called: Option<bool>,
    /// Another operation, in which the stalled rank waited itself.
    pub waits_itself: Option<FlightEntry>,
    /// How long after that the stalled rank came to the operation, if it has.
    pub late: Option<Duration>,
    /// How long operations may wait.
    pub timeout: Option<Duration>,
    /// The ranks that were asked, in order: the ranks that others wait for, and a sample of the rest.
    pub ranks: Vec<RankActivity>,
    /// How many ranks were not asked.
    pub others: usize,
    /// Whether this rank is the one of its machine to print the report: the first that had it.
    pub is_printed_here: bool,
    /// How long the reporting rank itself did not run, where that is most of the time that it has waited.
    pub own_pause: Option<Duration>,
    /// How long the store has not answered, where it does not: whether other ranks beat is not known then.
    pub store_silent_for: Option<Duration>,
    /// The path of the stalled rank's log.
    pub log: Option<PathBuf>,
    /// The last lines of the log, or why they cannot be read.
    pub lines: Result<Vec<String>, String>,
}

/// The last published state of a rank, and its source.
pub(super) struct RankReport {
    pub(super) evidence: Evidence,
    pub(super) beat: Option<Beat>,
    /// A new beat has come while the reports were collected.
    pub(super) beats: bool,
}

impl RankReport {
    /// What a rank has reported after the failure.
    pub(super) fn answer(beat: Beat) -> Self {
        Self {
            evidence: Evidence::Answer,
            beat: Some(beat),
            beats: true,
        }
    }

    /// The same, as it was found in the store.
    pub(super) fn answered(found: BeatEntry) -> Self {
        match found {
            BeatEntry::Beat(beat) => Self::answer(*beat),
            other => Self::from_beat(&other),
        }
    }

    fn from_beat(found: &BeatEntry) -> Self {
        let evidence = match found {
            BeatEntry::Beat(_) => Evidence::Beat,
            BeatEntry::Unreadable => Evidence::Unreadable,
            BeatEntry::Nothing => Evidence::Nothing,
        };
        Self {
            evidence,
            beat: found.beat().cloned(),
            beats: false,
        }
    }
}

/// The last beats of all ranks, as far as this rank has read them.
pub(super) fn last_beats(heartbeat: &Heartbeat, followed: &Followed) -> Vec<RankReport> {
    let state = lock(&heartbeat.state);
    let of_member = |member: &usize| {
        let peer = state.peers.get(*member);
        RankReport::from_beat(peer.map_or(&BeatEntry::Nothing, |peer| &peer.found))
    };
    followed.members.iter().map(of_member).collect()
}

pub(super) fn report(
    heartbeat: &Arc<Heartbeat>,
    error: &CollectiveError,
    log_of: &dyn Fn(usize) -> Option<PathBuf>,
) -> Option<HangReport> {
    let followed = lock(&heartbeat.state).followed.clone()?;
    let own = Beat {
        waiting_for: waited_for(error),
        failed_for: followed
            .core
            .upgrade()
            .and_then(|core| core.mailbox.failed_for()),
        silent: heartbeat.known_silent(),
        stopped: heartbeat.known_stopped(),
        ..heartbeat.beat_of(Some(&followed))
    };
    let hang = followed.core.upgrade().and_then(|core| core.hang());
    let hangs = error.is_timeout() || hang.is_some();
    // Nobody waits for a rank that has neither failed nor waits.
    let waits = |entry: &&FlightEntry| !entry.waiting_for.is_empty();
    let waited = own.records.iter().filter(waits).map(|entry| entry.began);
    let waited = waited.max();
    let own_pause = heartbeat.pause_in(waited.filter(|_| hangs));
    let own_pause = own_pause.filter(|_| hangs || error.is_secondary());
    if !hangs && own_pause.is_none() {
        return None;
    }
    let mut gathered = gather(heartbeat, &followed, &own);
    if let Some(hang) = hang {
        hear_abort(&mut gathered.reports, &hang);
    }
    Some(HangReport {
        is_printed_here: gathered.is_printed_here,
        own_pause,
        ..diagnose(heartbeat, &followed, &gathered.reports, log_of)
    })
}

/// Makes the diagnosis from the reports of all ranks.
pub(super) fn diagnose(
    heartbeat: &Heartbeat,
    followed: &Followed,
    reports: &[RankReport],
    log_of: &dyn Fn(usize) -> Option<PathBuf>,
) -> HangReport {
    let asked = |report: &&RankReport| report.evidence != Evidence::NotAsked;
    let stopped = said_by_answers(reports, |beat| &beat.stopped);
    let states: Vec<RankState> = reports
        .iter()
        .enumerate()
        .map(|(rank, report)| {
            let state = state_of(heartbeat, followed, rank, report);
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
        let waits_for = |stalled: usize| records.any(|entry| entry.waiting_for.contains(&stalled));
        states[*rank].answered && stalled.is_some_and(waits_for)
    };
    let said = said_by_answers(reports, |beat| &beat.silent);
    let is_silent = |rank: usize| {
        let silent_for = heartbeat.silence_of(followed.members[rank]);
        (silent_for.is_some() || said.contains(&rank)) && !states[rank].alive
    };
    let per_machine = heartbeat.options.ranks_per_machine;
    HangReport {
        reporter: followed.rank,
        stalled,
        machine: stalled
            .and_then(|rank| SilentMachine::of(rank, &followed.members, per_machine, is_silent)),
        waiting: (0..states.len()).filter(waits).collect(),
        has_called: of_stalled.and_then(|(state, wanted)| has_called(state, wanted)),
        waits_itself: of_stalled.and_then(|(state, wanted)| waits_itself(state, wanted).cloned()),
        late: of_stalled.and_then(|(state, wanted)| late(state, wanted)),
        timeout: followed.core.upgrade().map(|core| core.timeout()),
        wanted: wanted.cloned(),
        lines: log.as_deref().map_or(Ok(Vec::new()), last_lines),
        log,
        ranks: activities(heartbeat, followed, reports, &states),
        own_pause: None,
        store_silent_for: heartbeat.store_silent_for(),
        others: reports.len() - reports.iter().filter(asked).count(),
        is_printed_here: true,
    }
}

/// The ranks of which one of those that answered says that they send no beats, or are stopped: a rank of a large group does
/// not watch all, and sees the processes of its machine only.
fn said_by_answers(reports: &[RankReport], of: impl Fn(&Beat) -> &Vec<usize>) -> BTreeSet<usize> {
    let answers = reports.iter().filter(|it| it.evidence == Evidence::Answer);
    let beats = answers.filter_map(|report| report.beat.as_ref());
    beats.flat_map(|beat| of(beat).iter().copied()).collect()
}

/// Takes the abort of the rank that gave up as its answer, where it has none: it and its machine may have ended, and the
/// store with them.
pub(super) fn hear_abort(reports: &mut [RankReport], hang: &Failure) {
    let Some(report) = reports.get_mut(hang.by) else {
        return;
    };
    if report.evidence != Evidence::Answer && !hang.waiting_for.is_empty() {
        let said = Beat {
            rank: hang.by,
            waiting_for: hang.waiting_for.clone(),
            ..report.beat.take().unwrap_or_default()
        };
        *report = RankReport::answer(said);
    }
}

fn state_of(
    heartbeat: &Heartbeat,
    followed: &Followed,
    rank: usize,
    report: &RankReport,
) -> RankState {
    let answered = report.evidence == Evidence::Answer;
    let silent_for = heartbeat.silence_of(followed.members[rank]);
    // Allows for one late beat and one polling interval.
    let beats = silent_for.is_some_and(|silence| silence < 3 * heartbeat.options.interval);
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
    heartbeat: &Heartbeat,
    followed: &Followed,
    reports: &[RankReport],
    states: &[RankState],
) -> Vec<RankActivity> {
    let activity = |(rank, (report, state)): (usize, (&RankReport, &RankState))| RankActivity {
        rank,
        member: followed.members[rank],
        evidence: report.evidence,
        silent_for: heartbeat
            .silence_of(followed.members[rank])
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
