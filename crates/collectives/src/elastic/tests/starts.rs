//! Processes that were started with different flags.

use std::thread;

use everburn_tests::AssertContains;

use super::*;
use crate::rendezvous::RendezvousError;
use crate::rendezvous::WaitListener;
use crate::rendezvous::join::Joining;
use crate::store::Deadline;

/// A rank without `--elastic` comes to the store of `job`.
fn come_without_elastic(job: &Job) -> RendezvousError {
    let joining = Joining {
        store: &*job.store,
        rank: 1,
        world_size: 2,
        ranks_per_machine: Some(1),
        deadline: Deadline::within(LONG),
        on_wait: &WaitListener::new(|_| ()),
    };
    joining.join(|| ()).unwrap_err()
}

fn is_mismatch(error: &ElasticError) -> bool {
    matches!(
        error,
        ElasticError::Rendezvous(RendezvousError::ElasticMismatch { .. })
    )
}

#[test]
fn a_rank_without_elastic_ends_the_wait_of_those_with_it() {
    let job = Job::of(1, 2);
    let mut first = job.start(0);
    first.compare_start().unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| first.join(0));
        job.wait_for_join(1, 0);
        let refused = come_without_elastic(&job).to_string();
        refused.assert_contains(["machine 1 without `LaunchConfig::elastic`"]);
        let told = waits.join().unwrap().unwrap_err();
        assert!(is_mismatch(&told), "{told}");
        assert_eq!(told.to_string(), refused);
    });
}

#[test]
fn a_job_that_has_begun_goes_on_when_a_rank_without_elastic_comes() {
    let job = Job::of(1, 1);
    let mut only = job.start(0);
    only.compare_start().unwrap();
    assert_eq!(only.join(0).unwrap().generation, 1);
    come_without_elastic(&job);
    assert_eq!(only.join(1).unwrap().generation, 2);
}

#[test]
fn a_process_of_another_range_is_refused() {
    let job = Job::of(1, 2);
    job.start(0).compare_start().unwrap();
    job.start(1).compare_start().unwrap();
    let other = job.process(1, 1, |options| {
        (options.min, options.node, options.ranks_per_machine) = (2, 1, Some(1));
    });
    let error = other.compare_start().unwrap_err();
    assert!(is_mismatch(&error), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("machine 1 with `LaunchConfig::elastic = 2:2`"),
        "{text}"
    );
}

#[test]
fn a_process_of_another_range_ends_the_wait_of_the_first_before_its_launcher_gives_up() {
    let job = Job::of(1, 2);
    let mut first = job.start(0);
    first.compare_start().unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| first.join(0));
        job.wait_for_join(1, 0);
        let other = job.process(1, 1, |options| options.min = 2);
        let refused = other.compare_start().unwrap_err().to_string();
        job.coordinator.give_up("slot 1 stays away").unwrap();
        let told = waits.join().unwrap().unwrap_err();
        assert!(is_mismatch(&told), "{told}");
        assert_eq!(told.to_string(), refused);
    });
    // It has begun without the other.
    let begun = Job::of(1, 1);
    let mut only = begun.start(0);
    only.compare_start().unwrap();
    assert_eq!(only.join(0).unwrap().generation, 1);
    let other = begun.process(0, 1, |options| options.max = 2);
    assert!(is_mismatch(&other.compare_start().unwrap_err()));
    assert_eq!(only.join(1).unwrap().generation, 2);
}

#[test]
fn nobody_waits_for_a_machine_whose_heartbeats_are_missing() {
    let job = Job::of(1, 4);
    let start = |slot| {
        let incarnation = job.coordinator.next_incarnation(slot).unwrap();
        job.process(slot, incarnation, |it| it.node = slot / 2)
    };
    let mut members = (0..4).map(start).collect::<Vec<_>>();
    for joined in join_all(&mut members) {
        joined.unwrap();
    }
    let rounds = thread::scope(|scope| {
        let joins = members[..2].iter_mut();
        let joins = joins.map(|member| scope.spawn(|| member.join_without(5, Some(1)).unwrap()));
        let joins = joins.collect::<Vec<_>>();
        joins
            .into_iter()
            .map(|join| join.join().unwrap())
            .collect::<Vec<_>>()
    });
    assert_eq!(slots_of(&rounds), [0, 1]);
}
