mod ended;
mod late;
mod stopped;

use std::sync::Arc;

use everburn_tests::{AssertContains, assert_matches};

use super::*;
use crate::group::{CollectiveError, FlightEntry, FlightState, GroupOptions, ProcessGroup};
use crate::heartbeat::RankStatus;
use crate::heartbeat::report::{HangReport, RankReport, diagnose, last_beats};
use crate::store::{HashStore, Store};

fn heartbeat(members: usize) -> (Arc<HashStore>, Heartbeat) {
    let store = Arc::new(HashStore::new());
    let heartbeat = Heartbeat::new(store.clone(), 1, members, HeartbeatOptions::default());
    (store, heartbeat)
}

pub(super) fn beats(store: &HashStore, member: usize, number: u64) {
    let beat = format!("{{\"life\":1,\"number\":{number}}}");
    store.set(&beat_key(member), beat.as_bytes()).unwrap();
}

#[test]
fn each_rank_of_a_large_group_has_a_few_watchers() {
    let watched_by = |rank: usize| {
        let store = Arc::new(HashStore::new());
        // Rank r is member r + 10.
        let heartbeat = Heartbeat::new(store, rank + 10, 110, HeartbeatOptions::default());
        heartbeat.follow(Followed {
            core: Weak::new(),
            generation: 0,
            rank,
            members: (10..110).collect(),
        });
        let state = lock(&heartbeat.state);
        heartbeat.watched(&state)
    };
    assert_eq!(watched_by(0), [11, 12, 14, 18, 26, 42, 74]);
    let all: Vec<_> = (0..100).map(watched_by).collect();
    for member in 10..110 {
        let watchers = all.iter().filter(|watched| watched.contains(&member));
        assert_eq!(watchers.count(), 7, "of member {member}");
    }
}

#[test]
fn a_silent_rank_is_warned_of_once_until_it_beats_again() {
    let (store, heartbeat) = heartbeat(3);
    let beat = |member: usize, number: u64| {
        beats(&store, member, number);
        heartbeat.poll().unwrap();
    };
    heartbeat.follow(Followed::of(None, 1, 3));
    let after = Duration::from_secs(1000);
    let silent = |seconds: u64| -> Vec<usize> {
        let now = runtime::now() + Duration::from_secs(seconds);
        let silent = heartbeat.newly_silent(now, after);
        silent.iter().map(|silent| silent.rank).collect()
    };
    // Without a first beat a rank may have none, and nobody warns of himself.
    beat(1, 1);
    assert!(silent(2000).is_empty());
    beat(2, 1);
    assert!(silent(0).is_empty());
    assert_eq!(silent(2000), [2]);
    beat(2, 1);
    assert!(silent(3000).is_empty());
    beat(2, 2);
    beat(0, 1);
    // Rank 0 is alive, and says it.
    lock(&heartbeat.state).peers[0].moved += 2 * after;
    assert!(silent(2000).is_empty());
    lock(&heartbeat.state).peers[0].moved -= 2 * after;
    assert_eq!(silent(2000), [0, 2]);
    assert!(silent(2000).is_empty());
}

#[test]
fn the_next_look_is_when_the_first_rank_counts_as_lost() {
    let (store, mut heartbeat) = heartbeat(4);
    let limit = Duration::from_secs(5);
    heartbeat.options.timeout = Some(limit);
    heartbeat.follow(Followed::of(None, 1, 3));
    let began = runtime::now();
    assert_eq!(heartbeat.next_timeout(began), None, "nobody has beaten");
    for member in [0, 2, 3] {
        beats(&store, member, 1);
    }
    heartbeat.poll().unwrap();
    let moved = |member: usize, by: Duration| {
        let mut state = lock(&heartbeat.state);
        state.peers[member].moved -= by;
        state.peers[member].moved
    };
    let second = Duration::from_secs(1);
    // Member 3 is not of the group.
    moved(3, 3 * second);
    let first = moved(2, 2 * second);
    let next = moved(0, second);
    let next_timeout = |now| heartbeat.next_timeout(now);
    assert_eq!(next_timeout(began), Some(first + limit));
    assert_eq!(next_timeout(first + limit), Some(next + limit));
    assert_eq!(next_timeout(next + limit), None);
}

#[test]
fn where_the_store_is_silent_nobody_is_said_to_beat() {
    let (store, heartbeat) = heartbeat(2);
    let followed = Followed::of(None, 1, 2);
    heartbeat.follow(followed.clone());
    beats(&store, 0, 1);
    heartbeat.poll().unwrap();
    let report = || {
        let waiting = Beat {
            waiting_for: vec![0],
            ..heartbeat.beat_of(Some(&followed))
        };
        let mut reports = last_beats(&heartbeat, &followed);
        reports[1] = RankReport::answer(waiting);
        let report = diagnose(&heartbeat, &followed, &reports, &|_| None);
        (report.store_silent_for.is_some(), report.to_string())
    };
    let (silent, text) = report();
    assert!(!silent && text.contains("its heartbeats arrive"), "{text}");
    assert!(text.contains("in its last beat, 0.0 s ago"), "{text}");
    let statuses = || -> Vec<(bool, Option<u64>)> {
        let statuses = heartbeat.statuses().into_iter();
        let silent = |status: &RankStatus| Some(status.store_silent_for?.as_secs());
        let statuses = statuses.map(|status| (status.alive, silent(&status)));
        statuses.collect()
    };
    assert_eq!(statuses(), [(true, None); 2]);

    // A member is not silent for that: its last beat was in time.
    let mut state = lock(&heartbeat.state);
    state.answered -= Duration::from_secs(1000);
    state.peers[0].moved -= Duration::from_secs(1000);
    drop(state);
    assert_eq!(statuses(), [(true, Some(1000)); 2]);
    let (silent, text) = report();
    assert!(silent && !text.contains("heartbeats arrive"), "{text}");
    text.assert_contains(["the store has not answered for 1000."]);
    assert!(text.contains("in its last beat: "), "{text}");
}

fn known(heartbeat: &Heartbeat) -> Vec<usize> {
    let state = lock(&heartbeat.state);
    let known = |member: &usize| state.peers[*member].found.beat().is_some();
    (0..heartbeat.members).filter(known).collect()
}

#[test]
fn new_members_are_found_among_many_without_a_beat() {
    let (store, heartbeat) = heartbeat(5 * NEWCOMERS);
    lock(&heartbeat.state).reads_all = true;
    let beating = [0, NEWCOMERS + 2, 5 * NEWCOMERS - 1];
    for member in beating {
        store.set(&beat_key(member), b"{}").unwrap();
    }
    for _ in 0..5 {
        heartbeat.poll().unwrap();
    }
    assert_eq!(known(&heartbeat), beating);
}

#[test]
fn all_beats_are_read_at_once_and_a_missing_one_hides_no_other() {
    let (store, heartbeat) = heartbeat(2 * BATCH);
    lock(&heartbeat.state).reads_all = true;
    for member in 0..heartbeat.members {
        store.set(&beat_key(member), b"{}").unwrap();
    }
    heartbeat.poll().unwrap();
    let others: Vec<_> = (0..heartbeat.members)
        .filter(|member| *member != 1)
        .collect();
    assert_eq!(known(&heartbeat), others);
    store.delete(&beat_key(7)).unwrap();
    store.set(&beat_key(8), b"{\"number\":5}").unwrap();
    heartbeat.poll().unwrap();
    assert_eq!(known(&heartbeat).len(), others.len() - 1);
    let state = lock(&heartbeat.state);
    assert_eq!(state.peers[8].found.beat().unwrap().number, 5);
}

#[test]
fn a_wait_for_a_rank_ends_when_the_store_is_silent_too() {
    let options = HeartbeatOptions {
        interval: Duration::from_millis(20),
        timeout: Some(Duration::from_millis(40)),
        ..HeartbeatOptions::default()
    };
    // No thread beats here, so the store never answers.
    let heartbeat = Heartbeat::new(Arc::new(HashStore::new()), 1, 2, options);
    let mut groups = ProcessGroup::over_threads(2, GroupOptions::default());
    let (waiting, absent) = (groups.remove(1), groups.remove(0));
    heartbeat.follow(Followed::of(Some(&waiting), 1, 2));
    // Ranks that wait for nobody need no store.
    heartbeat.end_long_wait(Duration::ZERO, Duration::from_secs(1));
    assert!(waiting.core().mailbox.failure().is_none());

    let error = std::thread::scope(|scope| {
        scope.spawn(|| heartbeat.watch_store());
        let error = waiting.barrier().wait().unwrap_err();
        heartbeat.stop(false);
        error
    });
    let root = error.root_cause();
    assert_matches!(root, CollectiveError::PeerLost { peer: 0, .. });
    error
        .to_string()
        .assert_contains(["the store has not answered for"]);
    assert!(waiting.core().hang().is_some());
    drop(absent);
}

/// A barrier of step 5 that is under way.
pub(in crate::heartbeat) fn barrier(waiting_for: Vec<usize>) -> FlightEntry {
    FlightEntry {
        group: 1,
        group_name: None,
        sequence: 7,
        collective: true,
        step: 5,
        operation: "barrier()".to_owned(),
        label: None,
        bytes: None,
        state: FlightState::Running,
        waiting_for,
        began: Duration::from_secs(12),
        ended: None,
    }
}

#[test]
fn the_first_rank_that_waits_says_for_whom() {
    let (store, heartbeat) = heartbeat(3);
    let beat = |number: u64, entry: Option<FlightEntry>| Beat {
        life: 1,
        number,
        pid: Some(4711),
        records: entry.into_iter().collect(),
        ..Beat::default()
    };
    let followed = Followed::of(None, 1, 3);
    heartbeat.follow(followed.clone());
    let publish = |member: usize, beat: Beat| {
        store.set(&beat_key(member), &beat.encode()).unwrap();
        heartbeat.poll().unwrap();
    };
    let said = |entry: Option<FlightEntry>| {
        let (waited, left) = (Duration::from_secs(12), Duration::from_secs(288));
        let said = heartbeat.describe_wait(&followed, beat(1, entry), waited, left);
        said.map(|(_, text)| text)
    };
    // Rank 0 computes, and ranks 1 and 2 wait for it.
    publish(0, beat(1, None));
    publish(2, beat(1, Some(barrier(vec![0]))));
    let text = said(Some(barrier(vec![0]))).unwrap();
    let begin =
        "rank 1 has waited 12 s for rank 0 (pid 4711) in barrier(), step 5: its heartbeats arrive";
    assert!(text.starts_with(begin), "{text}");
    let gdb = r#", or at its threads: `gdb --pid 4711 --batch -ex "thread apply all backtrace"`; "#;
    assert!(text.contains(gdb), "{text}");
    let of_layers = FlightEntry {
        group: 7,
        group_name: Some("layers".to_owned()),
        ..barrier(vec![0])
    };
    let named = of_layers.operation_of_group();
    assert_eq!(named, "barrier() of the layers group");
    assert!(
        text.ends_with("the wait ends after 288 s more (`GroupOptions::timeout`)"),
        "{text}"
    );
    // No timeout ends a job that was asked to stop.
    *lock(&heartbeat.stop_asked) = Some(Box::new(|| true));
    let text = said(Some(barrier(vec![0]))).unwrap();
    assert!(
        text.contains("; the job was asked to stop") && !text.contains("GroupOptions::timeout"),
        "{text}"
    );
    // Where rank 0 waits too, it says so.
    publish(0, beat(2, Some(barrier(vec![2]))));
    publish(2, beat(2, None));
    assert_eq!(said(Some(barrier(vec![2]))), None);
}

/// What rank 1 reports where ranks 2 and 3 are silent.
fn report_of_two_that_are_silent(ranks_per_machine: Option<usize>) -> HangReport {
    let (store, mut heartbeat) = heartbeat(4);
    heartbeat.options.ranks_per_machine = ranks_per_machine;
    let followed = Followed::of(None, 1, 4);
    heartbeat.follow(followed.clone());
    for member in [0, 2, 3] {
        beats(&store, member, 1);
    }
    heartbeat.poll().unwrap();
    let own = Beat {
        waiting_for: vec![2],
        ..heartbeat.beat_of(Some(&followed))
    };
    let mut state = lock(&heartbeat.state);
    for member in [2, 3] {
        state.peers[member].moved -= Duration::from_secs(60);
    }
    drop(state);
    let mut reports = last_beats(&heartbeat, &followed);
    reports[1] = RankReport::answer(own);
    diagnose(&heartbeat, &followed, &reports, &|_| None)
}

#[test]
fn all_ranks_that_are_silent_are_named() {
    let report = report_of_two_that_are_silent(None);
    let text = report.to_string();
    assert!(text.starts_with("rank 2 stalled"), "{text}");
    assert!(text.contains("rank 3 sends no heartbeats either"), "{text}");
    let paused = HangReport {
        own_pause: Some(Duration::from_secs(47)),
        ..report
    };
    let text = paused.to_string();
    assert!(
        text.starts_with("rank 1 itself has not run for 47.0 s"),
        "{text}"
    );
    assert_eq!(paused.stalled_member(), Some(1));
}

#[test]
fn a_machine_whose_ranks_are_all_silent_is_named() {
    let text = report_of_two_that_are_silent(Some(2)).to_string();
    assert!(text.starts_with("machine 1 (ranks 2, 3) stalled"), "{text}");
    text.assert_contains(["nor one of any other rank of that machine"]);
    assert!(!text.contains("either"), "{text}");
    // One rank of machine 0 is there, and so is the only rank of each of four.
    for ranks_per_machine in [Some(1), Some(3)] {
        let report = report_of_two_that_are_silent(ranks_per_machine);
        assert_eq!(report.machine, None, "{report}");
    }
}

#[test]
fn a_group_fails_for_a_silent_machine_as_a_whole() {
    let options = HeartbeatOptions {
        timeout: Some(Duration::from_secs(30)),
        ranks_per_machine: Some(2),
        ..HeartbeatOptions::default()
    };
    let store = Arc::new(HashStore::new());
    let heartbeat = Heartbeat::new(store.clone(), 0, 5, options);
    let groups = ProcessGroup::over_threads(5, GroupOptions::default());
    heartbeat.follow(Followed::of(Some(&groups[0]), 0, 5));
    for member in 1..5 {
        beats(&store, member, 1);
    }
    heartbeat.poll().unwrap();
    for peer in &mut lock(&heartbeat.state).peers[2..] {
        peer.moved -= Duration::from_secs(60);
    }
    heartbeat.check_timeouts(runtime::now());
    let error = groups[0].barrier().wait().unwrap_err();
    assert_eq!(error.silent_machine(), Some(1));
    let heard = groups[1].barrier().wait().unwrap_err();
    assert_eq!(heard.silent_machine(), Some(1), "{heard}");
    let error = error.to_string();
    error.assert_contains([
        "none from any rank of machine 1 (ranks 2, 3): look at that machine first",
    ]);
    assert!(error.contains("none of rank 4 either"), "{error}");
}
