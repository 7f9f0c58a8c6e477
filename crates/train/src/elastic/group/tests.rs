//! Tests of `group`.

use std::net::{IpAddr, Ipv4Addr};

use everburn_collectives::elastic::{ElasticOptions, Member};
use everburn_collectives::rendezvous::StartedRank;
use everburn_collectives::store::{HashStore, StoreError};

use super::*;

fn alone() -> Membership {
    let options = ElasticOptions::new((1, 1), 0, 1);
    let here = IpAddr::from(Ipv4Addr::LOCALHOST);
    let store = Arc::new(HashStore::new());
    Membership::over(store, here, Duration::from_secs(60), options).unwrap()
}

fn out_of_reach(rendezvous: &Rendezvous) -> CollectiveError {
    CollectiveError::Incomplete {
        rank: rendezvous.rank,
        world_size: 2,
        missing: vec![1],
        ranks_per_machine: None,
        local_address: rendezvous.local_address.to_string().into(),
        waited: Duration::ZERO,
        reason: "no route to host".into(),
    }
}

fn join(membership: &mut Membership) -> Result<Round, TrainError> {
    Ok(membership.join(7)?)
}

#[test]
fn ranks_that_reach_the_store_and_not_each_other_give_up() {
    let mut rounds = 0;
    let present = next(&mut alone(), join, |rendezvous| {
        rounds += 1;
        Err(out_of_reach(rendezvous))
    });
    let error = present.err().expect("nobody is ever connected");
    assert!(matches!(error, TrainError::Elastic(_)), "{error:?}");
    assert!(error.to_string().contains("no route to host"), "{error}");
    assert_eq!(rounds, FUTILE);
}

#[test]
fn a_round_that_is_lost_is_followed_by_another() {
    let mut rounds = 0;
    let present = next(&mut alone(), join, |rendezvous| {
        rounds += 1;
        match rounds {
            1..FUTILE => Err(out_of_reach(rendezvous)),
            _ => Ok(ProcessGroup::alone(GroupOptions::default())),
        }
    });
    assert_eq!(present.unwrap().generation, FUTILE as u64);
}

#[test]
fn ranks_that_do_not_connect_are_told_as_the_user_knows_them() {
    let member = |slot: usize, process: u32| Member {
        slot,
        incarnation: 2,
        committed_step: 7,
        process,
        node: slot / 2,
    };
    let mut round = alone().join(7).unwrap();
    round.generation = 5;
    round.members = vec![member(0, 11), member(3, 4711)];
    let text = describe(&out_of_reach(&round.rendezvous()), &round);
    assert!(
        text.starts_with("the ranks of generation 5 (slots 0, 3) did not connect: rank 0 of 2"),
        "{text}"
    );
    assert!(
        text.ends_with(
            "in this generation rank 0 is slot 0 (process 11, number 2) on machine 0, rank 1 is slot 3 (process 4711, \
             number 2) on machine 1"
        ),
        "{text}"
    );
}

#[test]
fn a_store_out_of_reach_keeps_away_for_good_only_who_has_been_a_member() {
    let error = || ElasticError::Store {
        slot: 1,
        source: StoreError::Unreachable {
            address: "127.0.0.1:1".to_string(),
            operation: "set",
            reason: "refused".to_string(),
        },
    };
    let first = TrainError::from_first_contact(error());
    assert!(matches!(first, TrainError::NotMember(_)), "{first:?}");
    assert!(!first.happens_again() && first.is_secondary());
    let later = TrainError::from(error());
    assert!(matches!(later, TrainError::Elastic(_)), "{later:?}");
    let started = |rank| Box::new(StartedRank::here(rank, 2));
    let (first, other) = (started(0), started(1));
    let mismatch = RendezvousError::ElasticMismatch { first, other };
    let refused = TrainError::from_first_contact(mismatch.into());
    assert!(matches!(refused, TrainError::Config(_)), "{refused:?}");
    let over = TrainError::from_first_contact(ElasticError::Finished);
    assert!(matches!(over, TrainError::JobFinished), "{over:?}");
}

#[test]
fn one_that_waits_is_found_when_those_who_come_soon_are_there_or_after_a_while() {
    let look = Look::default();
    let start = Instant::now();
    let found = |pending, seconds| {
        look.note(pending, start + Duration::from_secs(seconds));
        look.found.load(Ordering::Relaxed)
    };
    let (incomplete, complete) = (PendingMembers::Incomplete, PendingMembers::Complete);
    assert!(!found(None, 0));
    assert!(!found(Some(incomplete), 1));
    assert!(found(Some(complete), 2));
    // Another one comes, and with it others that are never there.
    assert!(!found(Some(incomplete), 10));
    assert!(!found(Some(incomplete), 14));
    assert!(found(Some(incomplete), 15));
    assert!(!found(None, 16));
}
