//! Collecting what all ranks were doing when one of them stalled.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::beat::{Beat, Found, beat_key, hang_key, read};
use super::heart::{Followed, Heart};
use super::log::last_lines;
use super::verdict::{Testimony, doing, has_called, stalled, wanted_in};
use crate::group::{CollectiveError, FlightEntry};
use crate::sync::lock;

/// How long the others have to say what they were doing.
const ANSWERS: Duration = Duration::from_secs(2);

/// How long those have who are waited for anyway, and are not expected to answer.
const SUSPECTS: Duration = Duration::from_millis(500);

/// The pause between two looks for answers.
const PAUSE: Duration = Duration::from_millis(20);

/// How much longer than that a store may take that answers nothing.
const STORE_PATIENCE: Duration = Duration::from_secs(1);

/// From where it is known what a rank was doing.
///
/// ```
/// use everburn_collectives::watch::Evidence;
///
/// assert_ne!(Evidence::Answer, Evidence::Beat);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Evidence {
    /// It has said so after the failure.
    Answer,
    /// From its last beat.
    Beat,
    /// What it published cannot be read.
    Unreadable,
    /// It has published nothing, or the store does not answer.
    Nothing,
}

/// What one rank was doing.
///
/// ```
/// use everburn_collectives::watch::HangReport;
///
/// fn steps(report: &HangReport) -> Vec<Option<u64>> {
///     report.ranks.iter().map(|activity| activity.step).collect()
/// }
/// ```
#[derive(Debug, Clone)]
pub struct RankActivity {
    /// The rank in the group.
    pub rank: usize,
    /// The member behind it: the slot of an elastic run, else the rank.
    pub member: usize,
    /// From where this is known.
    pub evidence: Evidence,
    /// For how long its heartbeat has stood, where this rank has seen any; `None` for this rank.
    pub silent_for: Option<Duration>,
    /// Whether its heartbeat goes on, or it has answered.
    pub alive: bool,
    /// The step.
    pub step: Option<u64>,
    /// The operation under way, the one that failed, or the last.
    pub doing: Option<FlightEntry>,
}

/// Which rank stalled, where, and what the others were doing. Its `Display` is for people.
///
/// ```
/// use everburn_collectives::watch::HangReport;
///
/// fn exclude(report: &HangReport) -> Option<usize> {
///     report.stalled
/// }
/// ```
#[derive(Debug, Clone)]
pub struct HangReport {
    /// The rank that reports.
    pub reporter: usize,
    /// The rank that the others wait for, if it can be told.
    pub stalled: Option<usize>,
    /// The operation in which they wait for it.
    pub wanted: Option<FlightEntry>,
    /// The ranks that wait in it.
    pub waiting: Vec<usize>,
    /// Whether the stalled rank has called that operation, where its record tells.
    pub has_called: Option<bool>,
    /// All ranks, in order.
    pub ranks: Vec<RankActivity>,
    /// Where the log of the stalled rank is.
    pub log: Option<PathBuf>,
    /// Its last lines, or why they cannot be read.
    pub lines: Result<Vec<String>, String>,
}

/// What is known of a rank, and from where.
pub(super) struct Witness {
    pub(super) evidence: Evidence,
    pub(super) beat: Option<Beat>,
}

pub(super) fn report(
    heart: &Arc<Heart>,
    error: &CollectiveError,
    log_of: &dyn Fn(usize) -> Option<PathBuf>,
) -> Option<HangReport> {
    let followed = lock(&heart.state).followed.clone()?;
    let late = matches!(error.root_cause(), CollectiveError::Timeout { .. });
    if !late && !followed.core.upgrade().is_some_and(|core| core.hangs()) {
        return None;
    }
    let own = Beat {
        waiting_for: waited_for(error.root_cause()),
        ..heart.beat_of(Some(&followed))
    };
    let witnesses = gather(heart, &followed, &own);
    Some(diagnose(heart, &followed, &witnesses, log_of))
}

/// What follows from what all ranks say.
pub(super) fn diagnose(
    heart: &Heart,
    followed: &Followed,
    witnesses: &[Witness],
    log_of: &dyn Fn(usize) -> Option<PathBuf>,
) -> HangReport {
    let testimonies: Vec<Testimony> = witnesses
        .iter()
        .enumerate()
        .map(|(rank, witness)| testimony(heart, followed, rank, witness))
        .collect();
    let stalled = stalled(&testimonies);
    let wanted = stalled.and_then(|rank| wanted_in(&testimonies, rank));
    let log = stalled.and_then(|rank| log_of(*followed.members.get(rank)?));
    let waits = |rank: &usize| {
        let in_records = testimonies[*rank].records.iter();
        let mut waited = in_records.filter(|entry| !entry.waiting_for.is_empty());
        testimonies[*rank].answered
            && waited
                .any(|entry| stalled.is_some_and(|stalled| entry.waiting_for.contains(&stalled)))
    };
    HangReport {
        reporter: followed.rank,
        stalled,
        waiting: (0..testimonies.len()).filter(waits).collect(),
        has_called: stalled
            .zip(wanted)
            .and_then(|(rank, wanted)| has_called(&testimonies[rank], wanted)),
        wanted: wanted.cloned(),
        lines: log.as_deref().map_or(Ok(Vec::new()), last_lines),
        log,
        ranks: activities(heart, followed, witnesses, &testimonies),
    }
}

/// Whom the error says that this rank waited for.
fn waited_for(error: &CollectiveError) -> Vec<usize> {
    match error {
        CollectiveError::Timeout { waiting_for, .. } => waiting_for.clone(),
        CollectiveError::PeerLost { peer, .. } => vec![*peer],
        _ => Vec::new(),
    }
}

/// Publishes `own` and collects the others', on a thread of its own: a store that does not answer
/// must not hold up the report.
fn gather(heart: &Arc<Heart>, followed: &Followed, own: &Beat) -> Vec<Witness> {
    let (sender, receiver) = mpsc::channel();
    let (asking, group, beat) = (heart.clone(), followed.clone(), own.clone());
    let started = std::thread::Builder::new()
        .name("everburn-report".into())
        .spawn(move || {
            // Nobody listens any more once the patience below has ended.
            let _ = sender.send(collect(&asking, &group, &beat));
        });
    let answer = match started {
        Ok(_) => receiver.recv_timeout(ANSWERS + STORE_PATIENCE).ok(),
        Err(_) => None,
    };
    let mut witnesses = answer.unwrap_or_else(|| {
        // What the heartbeat has seen before is better than nothing.
        let state = lock(&heart.state);
        let peers = followed
            .members
            .iter()
            .map(|member| state.peers.get(*member));
        peers
            .map(|peer| from_beat(peer.map_or(&Found::Nothing, |peer| &peer.found)))
            .collect()
    });
    if let Some(witness) = witnesses.get_mut(followed.rank) {
        *witness = Witness {
            evidence: Evidence::Answer,
            beat: Some(own.clone()),
        };
    }
    witnesses
}

fn collect(heart: &Heart, followed: &Followed, own: &Beat) -> Vec<Witness> {
    let begin = Instant::now();
    let store = &*heart.store;
    let key = |member: usize| hang_key(followed.generation, member);
    if let Err(error) = store.set(&key(heart.member), &own.encode()) {
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
    let witness = |(rank, answer): (usize, Option<Found>)| match answer {
        Some(Found::Beat(beat)) => Witness {
            evidence: Evidence::Answer,
            beat: Some(*beat),
        },
        Some(_) => from_beat(&Found::Unreadable),
        None => {
            let found = read(store, &beat_key(followed.members[rank]));
            from_beat(&found.unwrap_or(Found::Nothing))
        }
    };
    answers.into_iter().enumerate().map(witness).collect()
}

fn from_beat(found: &Found) -> Witness {
    let evidence = match found {
        Found::Beat(_) => Evidence::Beat,
        Found::Unreadable => Evidence::Unreadable,
        Found::Nothing => Evidence::Nothing,
    };
    Witness {
        evidence,
        beat: found.beat().cloned(),
    }
}

fn testimony(heart: &Heart, followed: &Followed, rank: usize, witness: &Witness) -> Testimony {
    let answered = witness.evidence == Evidence::Answer;
    let silent_for = heart.silence_of(followed.members[rank]);
    // One beat may be late, and this rank has looked for it an interval ago.
    let beats = silent_for.is_some_and(|silence| silence < 3 * heart.options.interval);
    let mut waiting_for = Vec::new();
    let mut records = Vec::new();
    if let Some(beat) = &witness.beat {
        waiting_for.clone_from(&beat.waiting_for);
        records.clone_from(&beat.records);
    }
    Testimony {
        answered,
        alive: answered || beats,
        waiting_for,
        records,
    }
}

fn activities(
    heart: &Heart,
    followed: &Followed,
    witnesses: &[Witness],
    testimonies: &[Testimony],
) -> Vec<RankActivity> {
    let activity = |(rank, (witness, testimony)): (usize, (&Witness, &Testimony))| RankActivity {
        rank,
        member: followed.members[rank],
        evidence: witness.evidence,
        silent_for: heart
            .silence_of(followed.members[rank])
            .filter(|_| rank != followed.rank),
        alive: testimony.alive,
        step: witness.beat.as_ref().map(|beat| beat.step),
        doing: doing(&testimony.records).cloned(),
    };
    let both = witnesses.iter().zip(testimonies);
    both.enumerate().map(activity).collect()
}
