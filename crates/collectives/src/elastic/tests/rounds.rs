//! Rounds as processes see them.

use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use everburn_tests::{AssertContains, assert_matches};

use super::stubborn::Stubborn;
use super::*;
use crate::group::{GroupOptions, ProcessGroup, ReduceOp};
use crate::store::StoreError;
use crate::sync::lock;

fn all(outcomes: Vec<Result<Round, ElasticError>>) -> Vec<Round> {
    outcomes.into_iter().map(Result::unwrap).collect()
}

#[test]
fn when_all_come_each_has_its_slot_as_rank() {
    let job = Job::of(1, 4);
    let rounds = all(join_all(&mut job.start_all()));
    assert_eq!(slots_of(&rounds), [0, 1, 2, 3]);
    for (slot, round) in rounds.iter().enumerate() {
        assert_eq!((round.generation, round.rank), (1, slot));
    }
}

#[test]
fn nobody_waits_for_one_who_has_ended_and_ranks_close_up() {
    let job = Job::of(2, 4);
    let mut members = job.start_all();
    all(join_all(&mut members));
    drop(members.remove(1));
    job.coordinator.note_end(1, 1).unwrap();
    let rounds = all(join_all(&mut members));
    assert_eq!(slots_of(&rounds), [0, 2, 3]);
    let ranks: Vec<_> = rounds.iter().map(|round| round.rank).collect();
    assert_eq!(ranks, [0, 1, 2]);
    assert_eq!(rounds[0].generation, 2);
    let newest = job.coordinator.newest().unwrap().unwrap();
    let lost: Vec<_> = newest.lost.iter().map(|it| it.slot).collect();
    assert_eq!(lost, [1]);
}

#[test]
fn who_ends_while_the_others_wait_is_not_waited_for() {
    let job = Job::of(2, 3);
    let mut members = job.start_all();
    members.truncate(2);
    let rounds = thread::scope(|scope| {
        let joins: Vec<_> = members
            .iter_mut()
            .map(|member| scope.spawn(|| member.join(0).unwrap()))
            .collect();
        job.wait_for_join(1, 0);
        job.wait_for_join(1, 1);
        job.coordinator.note_end(2, 1).unwrap();
        joins
            .into_iter()
            .map(|join| join.join().unwrap())
            .collect::<Vec<_>>()
    });
    assert_eq!(slots_of(&rounds), [0, 1]);
}

#[test]
fn who_is_silent_is_expelled_after_the_others_patience() {
    let job = Job::of(2, 3);
    all(join_all(&mut job.start_all()));
    let mut impatient: Vec<_> = (0..2)
        .map(|slot| job.process(slot, 1, |it| it.patience = Duration::from_millis(50)))
        .collect();
    let rounds = all(join_all(&mut impatient));
    assert_eq!(slots_of(&rounds), [0, 1]);
    assert_eq!(rounds[0].generation, 2);
}

#[test]
fn a_newcomer_waits_and_the_next_round_has_it() {
    let job = Job::of(2, 3);
    job.coordinator.next_incarnation(2).unwrap();
    job.coordinator.note_end(2, 1).unwrap();
    let mut members = vec![job.start(0), job.start(1)];
    assert!(
        !members[0].has_pending_members().unwrap(),
        "not in a group yet"
    );
    assert_eq!(slots_of(&all(join_all(&mut members))), [0, 1]);
    assert!(!members[0].has_pending_members().unwrap());
    let mut newcomer = job.start(2);
    let rounds = thread::scope(|scope| {
        let newcomer = scope.spawn(|| newcomer.join(0).unwrap());
        job.wait_for_join(2, 2);
        job.store.wait_within(&[&keys::waiting(2)], LONG).unwrap();
        assert!(members[0].has_pending_members().unwrap());
        assert_eq!(job.coordinator.newest().unwrap().unwrap().number, 1);
        let mut rounds = all(join_all(&mut members));
        rounds.push(newcomer.join().unwrap());
        rounds
    });
    assert_eq!(slots_of(&rounds), [0, 1, 2]);
    assert!(!members[0].has_pending_members().unwrap(), "it is settled");
}

/// Waits for nobody, neither in the first round nor later.
fn impatient(options: &mut ElasticOptions) {
    (options.patience, options.wait_for_min) = (Duration::ZERO, Duration::ZERO);
}

#[test]
fn a_newcomer_that_has_died_again_disturbs_nobody() {
    let job = Job::of(1, 2);
    let mut members = vec![job.process(0, 1, impatient)];
    all(join_all(&mut members));
    let newcomer = job.start(1);
    let member = Member {
        slot: 1,
        incarnation: 1,
        committed_step: 0,
        process: 1,
        node: 0,
    };
    let entry = crate::store::entry::written("join", &member).unwrap();
    newcomer.store().set(&keys::joined(2, 1), &entry).unwrap();
    newcomer.store().set(&keys::waiting(2), b"1").unwrap();
    assert!(members[0].has_pending_members().unwrap());
    job.coordinator.note_end(1, 1).unwrap();
    assert!(!members[0].has_pending_members().unwrap());
}

#[test]
fn a_newcomer_does_not_expel_a_group_that_trains() {
    let job = Job::of(1, 2);
    let mut member = job.process(0, 1, impatient);
    member.join(0).unwrap();
    let here = "127.0.0.1".parse().unwrap();
    let options = ElasticOptions {
        patience: Duration::ZERO,
        wait_for_min: Duration::ZERO,
        ..ElasticOptions::new((1, 2), 1, 1)
    };
    let limit = Duration::from_millis(80);
    let mut newcomer = Membership::over(Arc::clone(&job.store), here, limit, options).unwrap();
    let error = newcomer.join(0).unwrap_err();
    assert_matches!(error, ElasticError::NotAdmitted { generation: 2, .. });
    assert!(error.to_string().contains("slot 0"), "{error}");
    assert_eq!(job.coordinator.newest().unwrap().unwrap().number, 1);
}

#[test]
fn too_few_say_who_is_missing_and_what_became_of_them() {
    let job = Job::of(3, 4);
    job.coordinator.next_incarnation(1).unwrap();
    job.coordinator.note_end(1, 1).unwrap();
    job.coordinator.next_incarnation(2).unwrap();
    let mut alone = job.process(0, 1, |it| {
        it.wait_for_min = Duration::from_millis(40);
        it.ranks_per_machine = Some(2);
    });
    let error = alone.join(0).unwrap_err().to_string();
    error.assert_contains([
        "1 of at least 3",
        "slot 1 of machine 0 (its process 1 has ended)",
        "slot 2 of machine 1 (no heartbeat from its process 1)",
        "slot 3 of machine 1 (never started)",
    ]);
    assert!(
        job.coordinator.joined(1, 0).unwrap().is_none(),
        "it has gone"
    );
}

#[test]
fn who_joins_a_finished_job_is_told_so() {
    let job = Job::of(1, 2);
    let mut member = job.start(0);
    let error = thread::scope(|scope| {
        let waits = scope.spawn(|| member.join(0));
        job.wait_for_join(1, 0);
        job.coordinator.finish().unwrap();
        waits.join().unwrap().unwrap_err()
    });
    assert_matches!(error, ElasticError::Finished);
    let error = job.start(1).join(0).unwrap_err();
    assert_matches!(error, ElasticError::Finished);
    assert!(job.coordinator.news(0).unwrap().is_finished);
}

#[test]
fn who_joins_a_job_that_was_given_up_is_told_why() {
    let job = Job::of(1, 2);
    let mut member = job.process(0, 1, impatient);
    member.join(0).unwrap();
    assert!(!member.has_pending_members().unwrap());
    job.coordinator
        .give_up("slot 1 has no restarts left")
        .unwrap();
    // Nobody comes for whom it could wait.
    assert!(member.has_pending_members().unwrap());
    let error = job.start(0).join(0).unwrap_err();
    error
        .to_string()
        .assert_contains(["slot 1 has no restarts left"]);
    job.coordinator.give_up("\u{1b}[2Jgone").unwrap();
    let error = job.start(0).join(0).unwrap_err();
    assert_eq!(error.to_string(), "the job was given up: \u{fffd}[2Jgone");
    assert_eq!(
        job.coordinator.news(0).unwrap().given_up.as_deref(),
        Some("\u{fffd}[2Jgone")
    );
}

#[test]
fn a_new_process_waits_while_its_slots_old_one_is_still_listed() {
    let job = Job::of(2, 3);
    let mut members = job.start_all();
    all(join_all(&mut members));
    // Slot 2 dies; its new process joins the next round before the others have noticed anything.
    drop(members.pop());
    job.coordinator.note_end(2, 1).unwrap();
    let mut anew = job.start(2);
    let rounds = thread::scope(|scope| {
        let anew = scope.spawn(|| anew.join(0).unwrap());
        job.wait_for_join(2, 2);
        let mut rounds = all(join_all(&mut members));
        rounds.push(anew.join().unwrap());
        rounds
    });
    assert_eq!(slots_of(&rounds), [0, 1, 2]);
    assert_eq!(rounds[0].members[2].incarnation, 2);
}

#[test]
fn an_old_process_finds_that_it_was_replaced() {
    let job = Job::of(1, 2);
    let mut old = job.start(0);
    job.coordinator.next_incarnation(0).unwrap();
    let error = old.join(0).unwrap_err();
    assert_matches!(error, ElasticError::Expelled { newest: 2, .. });
}

#[test]
fn the_group_of_a_round_works_and_leaves_nothing_behind() {
    let job = Job::of(2, 2);
    let mut members = job.start_all();
    let mut keys_there = Vec::new();
    for generation in 1..=6_u64 {
        let sums: Vec<f32> = thread::scope(|scope| {
            let ranks: Vec<_> = members
                .iter_mut()
                .map(|member| {
                    scope.spawn(move || {
                        let round = member.join(generation).unwrap();
                        assert_eq!(round.generation, generation);
                        assert!(
                            round
                                .members
                                .iter()
                                .all(|it| it.committed_step == generation)
                        );
                        let rendezvous = round.rendezvous();
                        assert_eq!(rendezvous.local_rank, round.rank);
                        let group =
                            ProcessGroup::connect(rendezvous, GroupOptions::default()).unwrap();
                        let mine = vec![round.rank as f32 + 1.0];
                        let sum = group.all_reduce(mine, ReduceOp::Sum).wait().unwrap();
                        group.destroy().unwrap();
                        sum[0]
                    })
                })
                .collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        assert_eq!(sums, [3.0, 3.0]);
        keys_there.push(job.store.num_keys().unwrap());
    }
    assert_eq!(keys_there[3], keys_there[5], "{keys_there:?}");
}

#[test]
fn who_connects_is_not_kept_waiting_by_one_who_died_meanwhile() {
    let job = Job::of(1, 3);
    let rounds = all(join_all(&mut job.start_all()));
    job.coordinator.note_end(1, 1).unwrap();
    let error = ProcessGroup::connect(rounds[2].rendezvous(), GroupOptions::default()).unwrap_err();
    let text = error.to_string();
    text.assert_contains(["generation 1 is broken: slot 1", "has ended"]);
}

#[test]
fn who_connects_is_not_kept_waiting_by_one_who_has_gone_on() {
    let job = Job::of(2, 2);
    let mut members = job.start_all();
    let rounds = all(join_all(&mut members));
    let error = thread::scope(|scope| {
        scope.spawn(|| members[0].join(0));
        job.wait_for_join(2, 0);
        let error = rounds[1].rendezvous().store.get("never").unwrap_err();
        job.coordinator.finish().unwrap();
        error
    });
    assert_matches!(error, StoreError::RoundBroken { generation: 1, .. });
    assert!(error.to_string().contains("gone on"), "{error}");
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let here = "127.0.0.1".parse().unwrap();
    for (options, part) in [
        (ElasticOptions::new((0, 2), 0, 1), "0 to 2"),
        (ElasticOptions::new((3, 2), 0, 1), "3 to 2"),
        (ElasticOptions::new((1, 2), 2, 1), "slot 2"),
        (ElasticOptions::new((1, 2), 0, 0), "from 1"),
    ] {
        let store = Arc::new(HashStore::new());
        let error = Membership::over(store, here, LONG, options).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    }
    let request = crate::rendezvous::RendezvousRequest::default();
    let options = ElasticOptions::new((1, 2), 0, 1);
    let error = Membership::connect("tcp://127.0.0.1:0", request, options.clone()).unwrap_err();
    assert!(!error.to_string().is_empty());
    let request = crate::rendezvous::RendezvousRequest {
        job_token: Some("a secret of these tests".parse().unwrap()),
        ..crate::rendezvous::RendezvousRequest::default()
    };
    let error = Membership::connect("tcp://127.0.0.1:29500", request, options).unwrap_err();
    error
        .to_string()
        .assert_contains(["TORCHELASTIC_USE_AGENT_STORE=True"]);
}

#[test]
fn entries_that_cannot_be_read_are_errors_and_no_panics() {
    for (key, value) in [
        (keys::newest(), &b"nonsense"[..]),
        (keys::newest(), br#"{"number":1,"members":[],"before":[]}"#),
        (keys::joined(1, 1), b"\xff"),
        (keys::ended(1), b"many"),
        (
            keys::newest(),
            br#"{"number":18446744073709551615,"members":[{"slot":0,"incarnation":1,"committed_step":0,"process":1,"node":0}],"before":[]}"#,
        ),
    ] {
        let job = Job::of(1, 2);
        let mut member = job.start(0);
        job.store.set(&key, value).unwrap();
        let error = member.join(0).unwrap_err();
        assert!(error.to_string().contains("cannot be read"), "{error}");
    }
}

/// Two who close the same round write the same, so each takes itself for the one who has closed it.
#[test]
fn two_who_delete_the_keys_of_one_generation_do_not_wait_for_each_other() {
    let store: SharedStore = Arc::new(HashStore::with_timeout(Duration::ZERO));
    let last = format!("{}/everburn/mesh/last", keys::group(1));
    for _ in 0..500 {
        store.set(&last, b"1").unwrap();
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| keys::forget(&store, 1, 2).unwrap());
            }
        });
        assert_eq!(store.num_keys().unwrap(), 0);
    }
}

#[test]
fn a_member_stays_one_where_old_keys_cannot_be_deleted_and_they_go_later() {
    let mut job = Job::of(1, 1);
    let store = Arc::new(Stubborn {
        inner: Arc::clone(&job.store),
        keeps: Mutex::default(),
    });
    job.store = store.clone();
    let mut member = job.start(0);
    member.join(0).unwrap();
    member.join(0).unwrap();
    let of_first = |name: &str| format!("{}/everburn/mesh/{name}", keys::group(1));
    // It is deleted before something else that is to go.
    *lock(&store.keeps) = of_first("last");
    let left = of_first("1/address/0");
    job.store.set(&left, b"old").unwrap();
    assert_eq!(member.join(0).unwrap().generation, 3);
    assert!(job.store.check(&[&left]).unwrap());

    lock(&store.keeps).clear();
    assert_eq!(member.join(0).unwrap().generation, 4);
    assert!(!job.store.check(&[&left]).unwrap());
}
