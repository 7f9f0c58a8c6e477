//! The reports of all ranks, through the store.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{Evidence, Hang, RankReport};
use crate::heartbeat::asked::Asked;
use crate::heartbeat::beat::{Beat, BeatEntry, beat_key, hang_key, read_many, reporter_key};
use crate::heartbeat::thread::{Followed, Heartbeat, WATCH_ALL};
use crate::runtime::{self, Condition};
use crate::sync::lock;

/// The timeout for the reports of the other ranks.
const ANSWERS: Duration = Duration::from_secs(2);

/// The timeout for reports of ranks that others wait for; they are not expected to answer.
const SUSPECTS: Duration = Duration::from_millis(500);

/// The polling interval, at first and at last: all ranks poll at the same time.
const PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(160);

/// The additional time for a store that does not answer.
const STORE_TIMEOUT: Duration = Duration::from_secs(1);

/// The reports by rank.
pub(super) struct Gathered {
    pub(super) reports: Vec<RankReport>,
    pub(super) is_printed_here: bool,
}

/// Who asks the other ranks for their reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asking {
    /// Each rank; the first of a machine that has the answers prints its report.
    Every,
    /// The first rank of each machine, which prints its report; the others only answer.
    FirstOfMachine,
}

/// Publishes the rank's own report and collects those of the others. Runs on its own thread, so that a store that does
/// not answer cannot delay the report for long.
pub(super) fn gather(heartbeat: &Arc<Heartbeat>, hang: &Arc<Hang>, asking: Asking) -> Gathered {
    let answer: Arc<(Mutex<Option<Gathered>>, Condition)> = Arc::default();
    let (beating, own) = (heartbeat.clone(), hang.clone());
    let answers = answer.clone();
    let started = runtime::spawn("everburn-report", move || {
        publish(&beating, &own);
        let gathered = match asking {
            Asking::FirstOfMachine if !is_first_here(&beating, &own.followed) => Gathered {
                reports: Vec::new(),
                is_printed_here: false,
            },
            Asking::FirstOfMachine => Gathered {
                reports: collect(&beating, &own),
                is_printed_here: true,
            },
            Asking::Every => Gathered {
                reports: collect(&beating, &own),
                is_printed_here: is_first_here(&beating, &own.followed),
            },
        };
        *lock(&answers.0) = Some(gathered);
        answers.1.notify_all();
    });
    let deadline = runtime::now() + ANSWERS + STORE_TIMEOUT;
    let (slot, changed) = &*answer;
    let waits = |gathered: &mut Option<Gathered>| gathered.is_none() && started.is_ok();
    let (mut gathered, _) = changed.wait_while(slot, lock(slot), deadline, waits);
    let answer = gathered.take();
    drop(gathered);
    let mut gathered = answer.unwrap_or_else(|| Gathered {
        reports: hang.known.beats.clone(),
        is_printed_here: true,
    });
    if let Some(report) = gathered.reports.get_mut(hang.followed.rank) {
        *report = RankReport::answer(hang.own.clone());
    }
    gathered
}

/// Publishes what this rank reports.
fn publish(heartbeat: &Heartbeat, hang: &Hang) {
    let Hang { followed, own, .. } = hang;
    let key = hang_key(followed.generation, followed.members[followed.rank]);
    if let Err(error) = heartbeat.store.set(&key, &own.encode()) {
        tracing::warn!(
            rank = followed.rank,
            "the report of a hang is not published: {error}"
        );
    }
}

/// The reports of all ranks, of which this one has published its own.
fn collect(heartbeat: &Heartbeat, hang: &Hang) -> Vec<RankReport> {
    let Hang {
        followed,
        own,
        known,
        ..
    } = hang;
    let begin = runtime::now();
    let store = &*heartbeat.store;
    let key = |rank: &usize| hang_key(followed.generation, followed.members[*rank]);
    let mut asked = Asked::new(followed.members.len(), own, followed.rank);
    let mut answers = BTreeMap::from([(followed.rank, BeatEntry::Beat(Box::new(own.clone())))]);
    let mut pause = PAUSE;
    let most = loop {
        let missing = asked.missing(&answers);
        let keys: Vec<String> = missing.iter().map(key).collect();
        let found = read_many(store, &keys).unwrap_or_default();
        for (rank, found) in missing.into_iter().zip(found) {
            if let Some(beat) = found.beat() {
                asked.suspect(beat);
            }
            if found != BeatEntry::Nothing {
                answers.insert(rank, found);
            }
        }
        let missing = asked.missing(&answers);
        let only_suspects = missing.iter().all(|rank| asked.suspects.contains(rank));
        let waited = runtime::elapsed(begin);
        // Most have answered in a large group: those that have not are of a machine that is cut off, perhaps, and the
        // others do not wait for them.
        let most = asked.size > WATCH_ALL && answers.len() > asked.sample.len() / 2;
        let enough = missing.is_empty() || ((only_suspects || most) && waited >= SUSPECTS);
        if enough || waited >= ANSWERS {
            break most;
        }
        runtime::sleep(pause);
        pause = (2 * pause).min(LONGEST_PAUSE);
    };
    let silent = asked.missing(&answers);
    let keys: Vec<String> = silent
        .iter()
        .map(|rank| beat_key(followed.members[*rank]))
        .collect();
    let before = read_many(store, &keys).unwrap_or_default();
    // This rank does not follow the beats of all: whether they still come shows in the next interval.
    let watches = |rank: &usize| heartbeat.watches(followed.members[*rank]);
    let left = ANSWERS.saturating_sub(runtime::elapsed(begin));
    // In a large group those that watch them have found out.
    let beats = if most || silent.iter().all(watches) {
        before.clone()
    } else {
        runtime::sleep(left.min(heartbeat.options.interval + heartbeat.options.interval / 2));
        read_many(store, &keys).unwrap_or_default()
    };
    let not_asked = |_| RankReport {
        evidence: Evidence::NotAsked,
        ..RankReport::from_beat(&BeatEntry::Nothing)
    };
    let mut reports: Vec<RankReport> = followed.members.iter().map(not_asked).collect();
    for rank in &silent {
        reports[*rank] = RankReport::from_beat(&BeatEntry::Nothing);
    }
    let counter = |found: &BeatEntry| found.beat().map(|beat| (beat.life, beat.number));
    for ((rank, beat), before) in silent.iter().zip(&beats).zip(&before) {
        // A process that is in the next group already says nothing of this one.
        let of_group = |beat: &Beat| beat.generation == followed.generation;
        let newest = match beat.beat().is_none_or(of_group) {
            true => RankReport::from_beat(beat),
            false => known.beats[*rank].clone(),
        };
        reports[*rank] = RankReport {
            beats: counter(beat) != counter(before),
            ..newest
        };
    }
    for (rank, answer) in answers {
        reports[rank] = RankReport::answered(answer);
    }
    reports
}

/// Whether this rank is the first of its machine to ask, for the report of this failure.
fn is_first_here(heartbeat: &Heartbeat, followed: &Followed) -> bool {
    let host = heartbeat.host.as_deref().unwrap_or_default();
    let own = heartbeat.member.to_string().into_bytes();
    let key = reporter_key(followed.generation, host);
    // Rather two reports than none.
    let first = heartbeat.store.compare_set(&key, b"", &own);
    first.map_or(true, |first| first == own)
}
