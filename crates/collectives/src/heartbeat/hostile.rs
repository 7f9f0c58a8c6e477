//! Heartbeats and hang reports of faulty peers in the store.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::beat::{Beat, beat_key, hang_key, read_many};
use super::report::{RankReport, diagnose};
use super::thread::{Followed, Heartbeat};
use super::{HeartbeatMonitor, HeartbeatOptions};
use crate::group::{GroupOptions, ProcessGroup};
use crate::hostile::Script;
use crate::store::{HashStore, SharedStore, Store};
use crate::sync::lock;

/// The generation whose reports are read.
const GENERATION: u64 = 3;

const LONGEST_REPORT: usize = 1 << 20;

/// A rank reads arbitrary beats and reports, and makes a diagnosis.
///
/// # Panics
/// If a beat is misread, a text contains control characters or is too long, or the diagnosis names a rank
/// that does not exist.
pub fn heartbeats(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    let members = 2 + script.below(4);
    let store: SharedStore = Arc::new(HashStore::new());
    while !script.is_over() {
        let member = script.below(members);
        let key = match script.chance() {
            true => beat_key(member),
            false => hang_key(GENERATION, member),
        };
        let value = value(&mut script);
        if let Some(beat) = Beat::decode(&value) {
            assert_eq!(Beat::decode(&beat.encode()).as_ref(), Some(&beat));
            shown(&beat.note);
        }
        store.set(&key, &value).expect("a short entry");
    }
    let options = HeartbeatOptions {
        interval: Duration::from_millis(1),
        timeout: Some(Duration::from_secs(1)),
        ..HeartbeatOptions::default()
    };
    let heartbeat = Arc::new(Heartbeat::new(store.clone(), 0, members, options));
    let groups = ProcessGroup::over_threads(members, GroupOptions::default());
    let followed = Followed {
        core: Arc::downgrade(groups[0].core()),
        generation: GENERATION,
        rank: 0,
        members: (0..members).collect(),
    };
    heartbeat.follow(followed.clone());
    heartbeat.poll().expect("a store in memory");
    report(&heartbeat, &followed, &*store);
    heartbeat.check_timeouts(Instant::now() + Duration::from_secs(60));
    if let Some(failure) = groups[0].failure() {
        assert!(failure.lost.is_some_and(|rank| rank < members));
        shown(&failure.reason);
    }
    lock(&heartbeat.state).ended = true;
    let monitor = HeartbeatMonitor {
        heartbeat,
        thread: None,
        report: std::sync::Mutex::default(),
    };
    for status in monitor.statuses() {
        shown(&status.note);
        if let Some(doing) = status.doing {
            shown(&doing.to_string());
        }
    }
}

/// The diagnosis from the reports in the store.
fn report(heartbeat: &Heartbeat, followed: &Followed, store: &dyn Store) {
    let rank_report = |member: &usize| {
        let key = hang_key(GENERATION, *member);
        let found = read_many(store, &[key]).expect("a store in memory");
        RankReport::answered(found.into_iter().next().expect("one value for each key"))
    };
    let reports: Vec<RankReport> = followed.members.iter().map(rank_report).collect();
    let report = diagnose(heartbeat, followed, &reports, &|_| None);
    let exists = |rank: usize| assert!(rank < followed.members.len(), "there is no rank {rank}");
    report.stalled.into_iter().for_each(exists);
    report.waiting.iter().copied().for_each(exists);
    report.to_string().lines().for_each(shown);
}

/// Panics if `text` cannot be printed to a terminal.
fn shown(text: &str) {
    assert!(!text.contains(char::is_control), "{text:?}");
    assert!(text.len() < LONGEST_REPORT, "{} bytes", text.len());
}

/// A beat with arbitrary fields, or arbitrary bytes.
fn value(script: &mut Script<'_>) -> Vec<u8> {
    match script.below(8) {
        0 => script.bytes().to_vec(),
        1 => vec![b'['; 1 << script.below(14)],
        2 => [b"{\"records\":", script.bytes(), b"}"].concat(),
        _ => beat(script).to_string().into_bytes(),
    }
}

fn beat(script: &mut Script<'_>) -> Value {
    let records: Vec<Value> = (0..script.below(20)).map(|_| record(script)).collect();
    json!({
        "life": script.number(), "number": script.number(), "goodbye": script.chance(),
        "generation": script.number(), "rank": script.number(), "step": script.number(),
        "waiting_for": ranks(script), "silent": ranks(script), "stopped": ranks(script),
        "records": records, "note": text(script),
    })
}

fn record(script: &mut Script<'_>) -> Value {
    let state = ["queued", "running", "done", "failed"][script.below(4)];
    let ended = script.chance().then(|| duration(script));
    let group = if script.chance() { 1 } else { script.number() };
    json!({
        "group": group, "sequence": script.number(), "collective": script.chance(),
        "step": script.number(), "operation": text(script), "label": null,
        "bytes": script.number(), "state": state, "waiting_for": ranks(script),
        "began": duration(script), "ended": ended,
    })
}

fn duration(script: &mut Script<'_>) -> Value {
    json!({ "secs": script.number(), "nanos": script.number() as u32 })
}

fn ranks(script: &mut Script<'_>) -> Vec<u64> {
    (0..script.below(6)).map(|_| script.number()).collect()
}

fn text(script: &mut Script<'_>) -> String {
    String::from_utf8_lossy(script.bytes()).into_owned()
}
