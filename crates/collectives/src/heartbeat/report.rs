//! Hang reports: collects the state of all ranks after one of them stalled.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::beat::{Beat, Found, beat_key, hang_key, read};
use super::diagnosis::{RankState, doing, has_called, stalled, wanted_in};
use super::log::last_lines;
use super::thread::{Followed, Heartbeat};
use crate::group::{CollectiveError, FlightEntry};
use crate::sync::lock;

/// The timeout for the reports of the other ranks.
const ANSWERS: Duration = Duration::from_secs(2);

/// The timeout for reports of ranks that others wait for; they are not expected to answer.
const SUSPECTS: Duration = Duration::from_millis(500);

/// The polling interval.
const PAUSE: Duration = Duration::from_millis(20);

/// The additional time for a store that does not answer.
const STORE_TIMEOUT: Duration = Duration::from_secs(1);

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
    /// The time since its last new beat; `None` for this rank and for ranks without a beat.
    pub silent_for: Option<Duration>,
    /// Whether its beats arrive, or it has answered.
    pub alive: bool,
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
    /// The operation in which they wait for it.
    pub wanted: Option<FlightEntry>,
    /// The ranks that wait in it.
    pub waiting: Vec<usize>,
    /// Whether the stalled rank has called that operation; `None` if unknown.
    pub has_called: Option<bool>,
    /// All ranks, in order.
    pub ranks: Vec<RankActivity>,
    /// The path of the stalled rank's log.
    pub log: Option<PathBuf>,
    /// The last lines of the log, or why they cannot be read.
    pub lines: Result<Vec<String>, String>,
}

/// The last published state of a rank, and its source.
pub(super) struct RankReport {
    pub(super) evidence: Evidence,
    pub(super) beat: Option<Beat>,
}

pub(super) fn report(
    heartbeat: &Arc<Heartbeat>,
    error: &CollectiveError,
    log_of: &dyn Fn(usize) -> Option<PathBuf>,
) -> Option<HangReport> {
    let followed = lock(&heartbeat.state).followed.clone()?;
    let late = matches!(error.root_cause(), CollectiveError::Timeout { .. });
    if !late && !followed.core.upgrade().is_some_and(|core| core.hangs()) {
        return None;
    }
    let own = Beat {
        waiting_for: waited_for(error.root_cause()),
        ..heartbeat.beat_of(Some(&followed))
    };
    let reports = gather(heartbeat, &followed, &own);
    Some(diagnose(heartbeat, &followed, &reports, log_of))
}

/// Makes the diagnosis from the reports of all ranks.
pub(super) fn diagnose(
    heartbeat: &Heartbeat,
    followed: &Followed,
    reports: &[RankReport],
    log_of: &dyn Fn(usize) -> Option<PathBuf>,
) -> HangReport {
    let states: Vec<RankState> = reports
        .iter()
        .enumerate()
        .map(|(rank, report)| state_of(heartbeat, followed, rank, report))
        .collect();
    let stalled = stalled(&states);
    let wanted = stalled.and_then(|rank| wanted_in(&states, rank));
    let log = stalled.and_then(|rank| log_of(*followed.members.get(rank)?));
    let waits = |rank: &usize| {
        let in_records = states[*rank].records.iter();
        let mut waited = in_records.filter(|entry| !entry.waiting_for.is_empty());
        states[*rank].answered
            && waited
                .any(|entry| stalled.is_some_and(|stalled| entry.waiting_for.contains(&stalled)))
    };
    HangReport {
        reporter: followed.rank,
        stalled,
        waiting: (0..states.len()).filter(waits).collect(),
        has_called: stalled
            .zip(wanted)
            .and_then(|(rank, wanted)| has_called(&states[rank], wanted)),
        wanted: wanted.cloned(),
        lines: log.as_deref().map_or(Ok(Vec::new()), last_lines),
        log,
        ranks: activities(heartbeat, followed, reports, &states),
    }
}

/// The ranks that this rank waited for, by its error.
fn waited_for(error: &CollectiveError) -> Vec<usize> {
    match error {
        CollectiveError::Timeout { waiting_for, .. } => waiting_for.clone(),
        CollectiveError::PeerLost { peer, .. } => vec![*peer],
        _ => Vec::new(),
    }
}

/// Publishes `own` and collects the reports of the others. Runs on its own thread, so that a store that does
/// not answer cannot delay the report for long.
fn gather(heartbeat: &Arc<Heartbeat>, followed: &Followed, own: &Beat) -> Vec<RankReport> {
    let (sender, receiver) = mpsc::channel();
    let (asking, group, beat) = (heartbeat.clone(), followed.clone(), own.clone());
    let started = std::thread::Builder::new()
        .name("everburn-report".into())
        .spawn(move || {
            // The receiver is gone after the timeout below.
            let _ = sender.send(collect(&asking, &group, &beat));
        });
    let answer = match started {
        Ok(_) => receiver.recv_timeout(ANSWERS + STORE_TIMEOUT).ok(),
        Err(_) => None,
    };
    let mut reports = answer.unwrap_or_else(|| {
        // Falls back to the beats seen before.
        let state = lock(&heartbeat.state);
        let peers = followed
            .members
            .iter()
            .map(|member| state.peers.get(*member));
        peers
            .map(|peer| from_beat(peer.map_or(&Found::Nothing, |peer| &peer.found)))
            .collect()
    });
    if let Some(report) = reports.get_mut(followed.rank) {
        *report = RankReport {
            evidence: Evidence::Answer,
            beat: Some(own.clone()),
        };
    }
    reports
}

fn collect(heartbeat: &Heartbeat, followed: &Followed, own: &Beat) -> Vec<RankReport> {
    let begin = Instant::now();
    let store = &*heartbeat.store;
    let key = |member: usize| hang_key(followed.generation, member);
    if let Err(error) = store.set(&key(heartbeat.member), &own.encode()) {
        tracing::warn!(
            rank = followed.rank,
            "the report of a hang is not published: {error}"
        );
    }
    let mut answers: Vec<Option<Found>> = vec![None; followed.members.len()];
    let suspects = {
        let of_records = own.records.iter().flat_map(|entry| &entry.waiting_for);
        let mut suspects: Vec<usize> = of_records.chain(&own.waiting_for).copied().collect();
        suspects.push(followed.rank);
        suspects
    };
    loop {
        let mut missing = false;
        let mut suspects_missing = false;
        for (rank, answer) in answers.iter_mut().enumerate() {
            if answer.is_some() || rank == followed.rank {
                continue;
            }
            match read(store, &key(followed.members[rank])) {
                Ok(Found::Nothing) | Err(_) if suspects.contains(&rank) => suspects_missing = true,
                Ok(Found::Nothing) | Err(_) => missing = true,
                Ok(found) => *answer = Some(found),
            }
        }
        let waited = begin.elapsed();
        let enough = !missing && (!suspects_missing || waited >= SUSPECTS);
        if enough || waited >= ANSWERS {
            break;
        }
        std::thread::sleep(PAUSE);
    }
    let report = |(rank, answer): (usize, Option<Found>)| match answer {
        Some(Found::Beat(beat)) => RankReport {
            evidence: Evidence::Answer,
            beat: Some(*beat),
        },
        Some(_) => from_beat(&Found::Unreadable),
        None => {
            let found = read(store, &beat_key(followed.members[rank]));
            from_beat(&found.unwrap_or(Found::Nothing))
        }
    };
    answers.into_iter().enumerate().map(report).collect()
}

fn from_beat(found: &Found) -> RankReport {
    let evidence = match found {
        Found::Beat(_) => Evidence::Beat,
        Found::Unreadable => Evidence::Unreadable,
        Found::Nothing => Evidence::Nothing,
    };
    RankReport {
        evidence,
        beat: found.beat().cloned(),
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
    let mut waiting_for = Vec::new();
    let mut records = Vec::new();
    if let Some(beat) = &report.beat {
        waiting_for.clone_from(&beat.waiting_for);
        records.clone_from(&beat.records);
    }
    RankState {
        answered,
        alive: answered || beats,
        waiting_for,
        records,
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
            .filter(|_| rank != followed.rank),
        alive: state.alive,
        pid: report.beat.as_ref().and_then(|beat| beat.pid),
        host: report.beat.as_ref().and_then(|beat| beat.host.clone()),
        step: report.beat.as_ref().map(|beat| beat.step),
        doing: doing(&state.records).cloned(),
    };
    let both = reports.iter().zip(states);
    both.enumerate().map(activity).collect()
}
