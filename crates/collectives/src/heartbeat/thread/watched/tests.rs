use std::sync::Arc;
use std::time::Duration;

use everburn_tests::AssertContains;

use super::super::Followed;
use super::*;
use crate::group::{GroupOptions, ProcessGroup};
use crate::heartbeat::HeartbeatOptions;
use crate::heartbeat::beat::Beat;
use crate::heartbeat::report::{RankReport, diagnose, last_beats};
use crate::heartbeat::thread::tests::beats;
use crate::store::HashStore;

/// More than all watch.
const RANKS: usize = 48;
/// On each machine; rank 8 and those up to 15 are on machine 1.
const PER_MACHINE: usize = 8;

/// The heartbeat of `rank`, all of whose neighbours have sent one beat.
fn heartbeat(rank: usize) -> (Arc<HashStore>, Heartbeat) {
    let options = HeartbeatOptions {
        timeout: Some(Duration::from_secs(30)),
        ranks_per_machine: Some(PER_MACHINE),
        ..HeartbeatOptions::default()
    };
    let store = Arc::new(HashStore::new());
    let heartbeat = Heartbeat::new(store.clone(), rank, RANKS, options);
    for member in 0..RANKS {
        beats(&store, member, 1);
    }
    (store, heartbeat)
}

fn followed(rank: usize) -> Followed {
    Followed::of(None, rank, RANKS)
}

/// As if `members` had not been heard of for so long.
fn age(heartbeat: &Heartbeat, members: impl IntoIterator<Item = usize>, seconds: u64) {
    let mut state = lock(&heartbeat.state);
    for member in members {
        state.peers[member].moved -= Duration::from_secs(seconds);
    }
}

#[test]
fn the_machine_of_a_silent_rank_is_watched_until_it_beats() {
    let (store, heartbeat) = heartbeat(4);
    heartbeat.follow(followed(4));
    let watched = || {
        heartbeat.poll().unwrap();
        heartbeat.watched(&lock(&heartbeat.state))
    };
    let neighbours = [5, 6, 8, 12, 20, 36];
    assert_eq!(watched(), neighbours);
    age(&heartbeat, [8], 60);
    assert_eq!(watched(), [5, 6, 8, 9, 10, 11, 12, 13, 14, 15, 20, 36]);
    // Only for so long, and what was read of the others is not held against them.
    age(&heartbeat, [9], 60);
    assert_eq!(heartbeat.known_silent(), [8, 9]);
    beats(&store, 8, 2);
    assert_eq!(watched().len(), 12);
    assert_eq!(watched(), neighbours);
    age(&heartbeat, [8], 60);
    assert_eq!(watched().len(), 12);
    assert_eq!(heartbeat.known_silent(), [8]);
}

#[test]
fn a_silent_machine_of_a_large_group_is_named() {
    let (_store, heartbeat) = heartbeat(4);
    let groups = ProcessGroup::over_threads(RANKS, GroupOptions::default());
    heartbeat.follow(Followed::of(Some(&groups[4]), 4, RANKS));
    heartbeat.poll().unwrap();
    age(&heartbeat, [8, 12], 40);
    heartbeat.poll().unwrap();
    // For less than the timeout, because they were not watched before.
    age(&heartbeat, (9..12).chain(13..16), 10);
    heartbeat.check_timeouts(runtime::now());
    let error = groups[4].barrier().wait().unwrap_err().to_string();
    error.assert_contains([
        "none from any rank of machine 1 (ranks 8-15): look at that machine first",
    ]);
}

#[test]
fn a_rank_that_does_not_watch_a_machine_hears_of_it() {
    let (_store, heartbeat) = heartbeat(33);
    heartbeat.follow(followed(33));
    heartbeat.poll().unwrap();
    let text = |silent: Vec<usize>| {
        let mut reports = last_beats(&heartbeat, &followed(33));
        for (rank, silent) in [(4, silent), (33, Vec::new())] {
            reports[rank] = RankReport::answer(Beat {
                waiting_for: vec![10],
                silent,
                ..Beat::default()
            });
        }
        diagnose(&heartbeat, &followed(33), &reports, &|_| None).to_string()
    };
    let whole = text((8..16).collect());
    assert!(
        whole.starts_with("machine 1 (ranks 8-15) stalled"),
        "{whole}"
    );
    let part = text((8..15).collect());
    assert!(part.starts_with("rank 10 stalled"), "{part}");
}

#[test]
fn those_that_watch_a_rank_are_known() {
    for rank in [0, 9, 47] {
        let watches = |other: &usize| {
            let (_store, heartbeat) = heartbeat(*other);
            heartbeat.follow(followed(*other));
            heartbeat.watches(rank)
        };
        let mut watchers = watchers_of(rank, RANKS);
        watchers.sort_unstable();
        assert_eq!(watchers, (0..RANKS).filter(watches).collect::<Vec<usize>>());
    }
    assert!(watchers_of(3, WATCH_ALL).is_empty(), "all do");
}
