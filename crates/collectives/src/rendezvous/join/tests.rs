use std::sync::mpsc;
use std::thread;

use everburn_tests::{AssertContains, assert_matches};

use super::*;
use crate::rendezvous::ProcessIdentity;
use crate::store::HashStore;

const LONG: Duration = Duration::from_secs(60);

fn join_alone(
    store: &HashStore,
    rank: usize,
    world_size: usize,
    limit: Duration,
) -> Result<(), RendezvousError> {
    joining(store, rank, world_size, limit, &WaitListener::default()).join(|| ())
}

fn joining<'a>(
    store: &'a HashStore,
    rank: usize,
    world_size: usize,
    limit: Duration,
    on_wait: &'a WaitListener,
) -> Joining<'a> {
    Joining {
        store,
        rank,
        world_size,
        ranks_per_machine: Some(2),
        deadline: Deadline::within(limit),
        on_wait,
    }
}

/// The outcome of ranks that join at the same time.
fn join_all(members: &[(usize, usize)]) -> Vec<Result<(), RendezvousError>> {
    let store = HashStore::new();
    thread::scope(|scope| {
        let ranks: Vec<_> = members
            .iter()
            .map(|&(rank, size)| {
                let store = store.clone();
                scope.spawn(move || join_alone(&store, rank, size, LONG))
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn a_world_size_mismatch_is_told_to_every_rank_at_once() {
    for outcome in join_all(&[(0, 3), (1, 3), (3, 4)]) {
        let message = outcome.unwrap_err().to_string();
        assert!(message.contains("rank 3"), "{message}");
        message.assert_contains(["with 3", "with 4"]);
    }
}

#[test]
fn ranks_that_wait_or_come_later_are_told_that_the_job_was_stopped() {
    let store = HashStore::new();
    thread::scope(|scope| {
        let waits = scope.spawn(|| join_alone(&store, 1, 3, LONG));
        store
            .wait_within(&[&format!("{KEYS}/0/joined")], LONG)
            .unwrap();
        assert!(stop_joining(&store).unwrap());
        for outcome in [waits.join().unwrap(), join_alone(&store, 2, 3, LONG)] {
            let error = outcome.unwrap_err();
            assert_matches!(error, RendezvousError::Stopped);
        }
    });
    let all = HashStore::new();
    join_alone(&all, 0, 1, LONG).unwrap();
    assert!(!stop_joining(&all).unwrap(), "all had joined");
}

#[test]
fn ranks_that_wait_learn_which_machine_has_given_up_and_why_unless_its_ranks_are_there() {
    let store = HashStore::new();
    thread::scope(|scope| {
        let waits = scope.spawn(|| join_alone(&store, 1, 4, LONG));
        store.wait_within(&[&key_of(0, "joined")], LONG).unwrap();
        let twice = give_up_joining(&store, 0, "the run is in use");
        assert!(!twice.unwrap(), "rank 1 is of machine 0");
        assert!(give_up_joining(&store, 1, "no data\u{1b}[2J\nin b").unwrap());
        for outcome in [waits.join().unwrap(), join_alone(&store, 2, 4, LONG)] {
            let text = outcome.unwrap_err().to_string();
            let expected =
                "machine 1 has ended before all ranks had joined: no data\u{fffd}[2J in b";
            assert_eq!(text, expected);
        }
    });
    let all = HashStore::new();
    join_alone(&all, 0, 1, LONG).unwrap();
    assert!(!give_up_joining(&all, 1, "late").unwrap(), "all had joined");
}

#[test]
fn a_rank_claimed_twice_is_told_to_every_rank_at_once() {
    for outcome in join_all(&[(0, 3), (1, 3), (1, 3)]) {
        let message = outcome.unwrap_err().to_string();
        message.assert_contains(["rank 1 was started twice", "world size 3"]);
    }
}

#[test]
fn ranks_with_and_without_elastic_are_told_at_once_whoever_came_first() {
    let elastic = |range| StartedRank {
        machine: Some(1),
        elastic: Some(range),
        ..StartedRank::here(1, 2)
    };
    let without_first = HashStore::new();
    thread::scope(|scope| {
        let waits = scope.spawn(|| join_alone(&without_first, 0, 2, LONG));
        without_first.wait(&[&key_of(0, "joined")]).unwrap();
        let refused = compare_elastic(&without_first, &elastic((1, 2))).unwrap_err();
        let told = waits.join().unwrap().unwrap_err();
        let expected = "machine 0 was started without `LaunchConfig::elastic`, machine 1 with `LaunchConfig::elastic = 1:2`";
        assert!(refused.to_string().contains(expected), "{refused}");
        assert_eq!(refused.to_string(), told.to_string());
    });
    let elastic_first = HashStore::new();
    compare_elastic(&elastic_first, &elastic((1, 2))).unwrap();
    let refused = join_alone(&elastic_first, 0, 2, LONG).unwrap_err();
    assert_matches!(refused, RendezvousError::ElasticMismatch { .. });
    let verdict = elastic_first.get(&first_verdict_key()).unwrap();
    let told = refuse_contradiction(&elastic_first, &verdict).unwrap_err();
    assert_eq!(refused.to_string(), told.to_string());
    compare_elastic(&elastic_first, &elastic((1, 2))).unwrap();
}

#[test]
fn ranks_of_two_elastic_ranges_are_refused_and_a_world_that_has_met_is_left_alone() {
    let elastic = |range| StartedRank {
        elastic: Some(range),
        ..StartedRank::here(0, 2)
    };
    let store = HashStore::new();
    compare_elastic(&store, &elastic((1, 2))).unwrap();
    let message = compare_elastic(&store, &elastic((2, 2)))
        .unwrap_err()
        .to_string();
    message.assert_contains([
        "with `LaunchConfig::elastic = 1:2`",
        "with `LaunchConfig::elastic = 2:2`",
    ]);
    let verdict = store.get(&first_verdict_key()).unwrap();
    let told = refuse_contradiction(&store, &verdict).unwrap_err();
    assert_eq!(message, told.to_string());
    let met = HashStore::new();
    join_alone(&met, 0, 1, LONG).unwrap();
    compare_elastic(&met, &elastic((1, 2))).unwrap_err();
    let verdict = met.get(&first_verdict_key()).unwrap();
    assert!(refuse_contradiction(&met, &verdict).is_ok());
}

#[test]
fn ranks_with_time_left_and_late_ones_learn_who_was_missing_from_the_first_that_gives_up() {
    let store = HashStore::new();
    thread::scope(|scope| {
        let waits = scope.spawn(|| join_alone(&store, 2, 4, LONG));
        store.wait_within(&[&key_of(0, "joined")], LONG).unwrap();
        let first = join_alone(&store, 0, 4, Duration::from_millis(20)).unwrap_err();
        let waited = waits.join().unwrap().unwrap_err();
        let late = join_alone(&store, 3, 4, LONG).unwrap_err();
        for error in [first, waited, late] {
            let error = error.to_string();
            let missing = "missing: ranks 1, 3 of machines 0, 1;";
            assert!(error.contains(missing), "{error}");
        }
    });
}

#[test]
fn who_has_joined_and_who_is_waited_for_is_told_by_the_first_that_waits() {
    let key = |name: &str| format!("{KEYS}/0/{name}");
    let lease = |rank: usize| {
        let me = StartedRank::here(rank, 4);
        (Lease::new(key(&rank.to_string()), me.clone(), 4), me)
    };
    let with_two = || {
        let store = HashStore::new();
        let mut leases = [1, 2].map(lease);
        for (lease, _) in &mut leases {
            assert_eq!(lease.look(&store).unwrap(), LeaseState::Held);
        }
        (store, leases)
    };
    let (store, [mut first, _]) = with_two();
    let (told, heard) = mpsc::channel();
    let agree = store.clone();
    let on_wait = WaitListener::new(move |awaited| {
        told.send(awaited.clone()).unwrap();
        decide(&agree, &Verdict::Agreed, &key).unwrap();
    });
    let wait = |store: &HashStore, lease: &mut (Lease<StartedRank>, StartedRank), limit| {
        let notice = WaitNotice::first_after(Duration::ZERO);
        let joining = joining(store, lease.1.rank, 4, limit, &on_wait);
        joining.wait(&key, (&mut lease.0, &lease.1), notice)
    };
    let (other, [_, mut second]) = with_two();
    let others = wait(&other, &mut second, Duration::from_millis(20));
    let others = others.unwrap_err().to_string();
    assert!(others.contains("missing: ranks 0, 3 of"), "{others}");
    assert!(heard.try_recv().is_err(), "rank 1 tells it");
    wait(&store, &mut first, LONG).unwrap();
    let awaited = heard.try_recv().unwrap();
    assert_eq!(awaited.joined, [1, 2]);
    let text = &awaited.text;
    assert!(
        text.starts_with("waiting for ranks 0, 3 of machines 0, 1, "),
        "{text}"
    );
    text.assert_contains([" s more; 2 of 4 ranks have joined after "]);
}

#[test]
fn a_rank_that_has_left_may_join_again() {
    let store = HashStore::new();
    for _ in 0..3 {
        join_alone(&store, 0, 1, LONG).unwrap();
        store.add(&left_key(0), 1).unwrap();
    }
    join_alone(&store, 0, 1, LONG).unwrap();
    let twice = join_alone(&store, 0, 1, LONG).unwrap_err();
    assert_matches!(twice, RendezvousError::RankTaken { .. });
}

/// The claim of a rank of two by a process that has come and died.
fn claim_of_the_dead(store: &HashStore, process: ProcessIdentity) {
    let me = StartedRank {
        process,
        ..StartedRank::here(1, 2)
    };
    let mut lease = Lease::new(key_of(0, "1"), me, 2);
    for _ in 0..2 {
        assert_eq!(lease.look(store).unwrap(), LeaseState::Held);
    }
    store.add(&key_of(0, "joined"), 1).unwrap();
}

#[test]
fn the_lease_of_a_dead_process_is_free_and_its_count_completes_no_world() {
    for dead in [
        ProcessIdentity::started_before(),
        ProcessIdentity::elsewhere(),
    ] {
        let store = HashStore::new();
        claim_of_the_dead(&store, dead);
        thread::scope(|scope| {
            let again = scope.spawn(|| join_alone(&store, 1, 2, LONG));
            while store.add(&key_of(0, "joined"), 0).unwrap() < 2 && !again.is_finished() {
                thread::yield_now();
            }
            join_alone(&store, 0, 2, LONG).unwrap();
            again.join().unwrap().unwrap();
        });
    }
}

#[test]
fn a_process_that_comes_for_a_dead_one_after_all_have_met_learns_that_it_is_too_late() {
    let store = HashStore::new();
    store
        .set(
            &key_of(0, "first"),
            &entry::written("join", &StartedRank::here(0, 2)).unwrap(),
        )
        .unwrap();
    claim_of_the_dead(&store, ProcessIdentity::started_before());
    decide(&store, &Verdict::Agreed, &|name| key_of(0, name)).unwrap();
    let late = join_alone(&store, 1, 2, LONG).unwrap_err();
    let text = late.to_string();
    assert_matches!(late, RendezvousError::HasBegun { .. });
    assert!(text.starts_with("rank 1 comes too late: "), "{text}");
    assert!(!text.contains("twice"), "{text}");
}

#[test]
fn a_process_that_is_known_to_be_dead_is_missing() {
    let store = HashStore::new();
    claim_of_the_dead(&store, ProcessIdentity::started_before());
    let error = join_alone(&store, 0, 2, Duration::from_millis(20)).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("missing: rank 1 of machine 0;"), "{text}");
}
