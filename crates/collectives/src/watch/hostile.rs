//! Heartbeats and reports of mad peers in the store.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::beat::{Beat, Found, beat_key, hang_key, read};
use super::heart::{Followed, Heart};
use super::report::{Evidence, Witness, diagnose};
use super::{Watch, WatchOptions};
use crate::group::{GroupOptions, ProcessGroup};
use crate::hostile::Script;
use crate::store::{HashStore, SharedStore, Store};
use crate::sync::lock;

/// The generation whose reports are read.
const GENERATION: u64 = 3;

/// The longest report: a screen for each rank, whatever they say.
const LONGEST_REPORT: usize = 1 << 20;

/// A rank reads beats and reports that somebody else has written, and makes a diagnosis of them.
///
/// # Panics
/// Where one is read as what it is not, a text would be obeyed by a terminal or has no end, or a rank is
/// blamed that does not exist.
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
    let options = WatchOptions {
        interval: Duration::from_millis(1),
        silence: Some(Duration::from_secs(1)),
    };
    let heart = Arc::new(Heart::new(store.clone(), 0, members, options));
    let groups = ProcessGroup::over_threads(members, GroupOptions::default());
    let followed = Followed {
        core: Arc::downgrade(groups[0].core()),
        generation: GENERATION,
        rank: 0,
        members: (0..members).collect(),
    };
    heart.follow(followed.clone());
    heart.look().expect("a store in memory");
    report(&heart, &followed, &*store);
    heart.accuse(Instant::now() + Duration::from_secs(60));
    if let Some(failure) = groups[0].failure() {
        assert!(failure.lost.is_some_and(|rank| rank < members));
        shown(&failure.reason);
    }
    lock(&heart.state).ended = true;
    let watch = Watch {
        heart,
        thread: None,
    };
    for sign in watch.signs() {
        shown(&sign.note);
        if let Some(doing) = sign.doing {
            shown(&doing.to_string());
        }
    }
}

/// The diagnosis from what stands in the store.
fn report(heart: &Heart, followed: &Followed, store: &dyn Store) {
    let witness = |member: &usize| {
        let key = hang_key(GENERATION, *member);
        match read(store, &key).expect("a store in memory") {
            Found::Beat(beat) => Witness {
                evidence: Evidence::Answer,
                beat: Some(*beat),
            },
            Found::Unreadable => Witness {
                evidence: Evidence::Unreadable,
                beat: None,
            },
            Found::Nothing => Witness {
                evidence: Evidence::Nothing,
                beat: None,
            },
        }
    };
    let witnesses: Vec<Witness> = followed.members.iter().map(witness).collect();
    let report = diagnose(heart, followed, &witnesses, &|_| None);
    let exists = |rank: usize| assert!(rank < followed.members.len(), "there is no rank {rank}");
    report.stalled.into_iter().for_each(exists);
    report.waiting.iter().copied().for_each(exists);
    report.to_string().lines().for_each(shown);
}

/// Panics where `text` cannot be shown as it is.
fn shown(text: &str) {
    assert!(!text.contains(char::is_control), "{text:?}");
    assert!(text.len() < LONGEST_REPORT, "{} bytes", text.len());
}

/// A beat with anything in its places, or anything.
fn value(script: &mut Script<'_>) -> Vec<u8> {
    match script.below(8) {
        0 => script.bytes().to_vec(),
        1 => vec![b'['; 1 << script.below(14)],
        2 => [b"{\"records\":", script.bytes(), b"}"].concat(),
        _ => beat(script).into_bytes(),
    }
}

fn beat(script: &mut Script<'_>) -> String {
    let records: Vec<String> = (0..script.below(20)).map(|_| record(script)).collect();
    format!(
        r#"{{"life":{},"number":{},"goodbye":{},"generation":{},"rank":{},"step":{},"waiting_for":{},"records":[{}],"note":{}}}"#,
        script.number(),
        script.number(),
        script.chance(),
        script.number(),
        script.number(),
        script.number(),
        ranks(script),
        records.join(","),
        text(script),
    )
}

fn record(script: &mut Script<'_>) -> String {
    let state = ["queued", "running", "done", "failed"][script.below(4)];
    let ended = match script.chance() {
        true => duration(script),
        false => "null".to_owned(),
    };
    let group = if script.chance() { 1 } else { script.number() };
    format!(
        r#"{{"group":{group},"sequence":{},"collective":{},"step":{},"operation":{},"label":null,"bytes":{},"state":"{state}","waiting_for":{},"began":{},"ended":{ended}}}"#,
        script.number(),
        script.chance(),
        script.number(),
        text(script),
        script.number(),
        ranks(script),
        duration(script),
    )
}

fn duration(script: &mut Script<'_>) -> String {
    let (seconds, nanoseconds) = (script.number(), script.number() as u32);
    format!(r#"{{"secs":{seconds},"nanos":{nanoseconds}}}"#)
}

fn ranks(script: &mut Script<'_>) -> String {
    let numbers: Vec<u64> = (0..script.below(6)).map(|_| script.number()).collect();
    format!("{numbers:?}")
}

fn text(script: &mut Script<'_>) -> String {
    let text = String::from_utf8_lossy(script.bytes());
    serde_json::to_string(&text).expect("a text")
}
