//! Several launchers with the number of one machine.

use std::process::Command;

use super::*;
use crate::rendezvous::ProcessIdentity;
use crate::store::Store;
use everburn_tests::assert_matches;

fn lease(launcher: ProcessIdentity) -> Lease {
    Lease::new(keys::launcher_lease(0), launcher, 1)
}

/// Those of launchers that cannot see each other.
fn two_leases() -> (HashStore, Lease, Lease) {
    let [first, second] = [(); 2].map(|()| lease(ProcessIdentity::elsewhere()));
    (HashStore::new(), first, second)
}

#[test]
fn on_one_machine_a_launcher_that_lives_is_refused_and_a_dead_one_followed_at_once() {
    let store = HashStore::new();
    let mut child = Command::new("sleep").arg("600").spawn().unwrap();
    let of_child = ProcessIdentity::of_child(child.id());
    assert_eq!(lease(of_child).look(&store).unwrap(), LeaseState::Held);
    let mut second = lease(ProcessIdentity::here());
    // It says nothing, as one that is stopped.
    let (waited, LeaseState::Taken(other)) = look_until_decided(&store, &mut second) else {
        panic!("the child lives");
    };
    assert!(waited > 0);
    let named = other.to_string();
    let begin = format!("process {} on ", child.id());
    assert!(named.starts_with(&begin), "{named}");
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(second.look(&store).unwrap(), LeaseState::Held);
}

#[test]
fn a_number_that_another_process_has_now_is_that_of_a_dead_one() {
    let earlier = ProcessIdentity::started_before();
    assert_eq!(earlier.is_alive(), Some(false));
    assert_eq!(ProcessIdentity::here().is_alive(), Some(true));
    assert_eq!(ProcessIdentity::elsewhere().is_alive(), None);
}

/// Looks until the lease is free or taken; how often it was neither.
fn look_until_decided(store: &HashStore, lease: &mut Lease) -> (u32, LeaseState) {
    for waited in 0..100 {
        let state = lease.look(store).unwrap();
        if state != LeaseState::Waiting {
            return (waited, state);
        }
    }
    panic!("undecided after 100 looks");
}

#[test]
fn a_second_launcher_of_a_machine_is_refused_while_the_first_lives() {
    let (store, mut first, mut second) = two_leases();
    assert_eq!(first.look(&store).unwrap(), LeaseState::Held);
    assert_eq!(second.look(&store).unwrap(), LeaseState::Waiting);
    assert_eq!(second.look(&store).unwrap(), LeaseState::Waiting);
    assert_eq!(first.look(&store).unwrap(), LeaseState::Held);
    let LeaseState::Taken(other) = second.look(&store).unwrap() else {
        panic!("the first launcher has shown that it lives");
    };
    let named = other.to_string();
    assert!(
        named.starts_with(&format!("process {} on ", std::process::id())),
        "{named}"
    );
    // One that has no lease leaves that of the other alone.
    second.leave(&store).unwrap();
    assert_eq!(first.look(&store).unwrap(), LeaseState::Held);
    // Another machine's is another.
    let mut elsewhere = Lease::of_launcher(1);
    assert_eq!(elsewhere.look(&store).unwrap(), LeaseState::Held);
}

#[test]
fn the_lease_of_a_dead_launcher_is_taken_and_one_that_comes_back_late_has_lost_it() {
    let (store, mut first, mut second) = two_leases();
    assert_eq!(first.look(&store).unwrap(), LeaseState::Held);
    let waiting = second.interval();
    let (waited, state) = look_until_decided(&store, &mut second);
    assert_eq!(state, LeaseState::Held);
    // One that lives would have looked several times meanwhile.
    assert!(waiting * waited > 3 * first.interval());
    assert_matches!(first.look(&store).unwrap(), LeaseState::Taken(_));
    assert_eq!(second.look(&store).unwrap(), LeaseState::Held);
}

#[test]
fn a_lease_that_was_left_is_taken_at_once() {
    let (store, mut first, mut second) = two_leases();
    assert_eq!(first.look(&store).unwrap(), LeaseState::Held);
    first.leave(&store).unwrap();
    assert_eq!(second.look(&store).unwrap(), LeaseState::Held);
}

#[test]
fn a_lease_is_kept_though_its_key_vanishes_or_an_answer_is_lost() {
    let (store, mut first, mut second) = two_leases();
    assert_eq!(first.look(&store).unwrap(), LeaseState::Held);
    let key = "everburn/elastic/launcher/0/lease";
    let text = String::from_utf8(store.get(key).unwrap()).unwrap();
    store
        .set(key, text.replace(":1}", ":2}").as_bytes())
        .unwrap();
    assert_eq!(first.look(&store).unwrap(), LeaseState::Held);
    assert!(store.delete(key).unwrap());
    assert_eq!(first.look(&store).unwrap(), LeaseState::Held);
    assert_eq!(second.look(&store).unwrap(), LeaseState::Waiting);
}
