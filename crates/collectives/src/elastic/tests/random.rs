//! Processes that die and are started again at random moments.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::thread;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;

/// This many generations, then the job finishes.
const GENERATIONS: u64 = 12;

/// The list of members that each generation was seen with.
type Seen = Mutex<BTreeMap<u64, Vec<Member>>>;

/// What one process does: joins, checks the answer, and at random dies, leaves, or sees that somebody
/// waits. Returns when the job has finished; `false` when it died.
fn live(mut member: Membership, random: &mut StdRng, job: &Job, seen: &Seen) -> bool {
    loop {
        let round = match member.join(0) {
            Ok(round) => round,
            Err(ElasticError::Finished) => return true,
            Err(error) => panic!("slot {}: {error}", member.options().slot),
        };
        assert_eq!(round.this_member().slot, member.options().slot);
        assert_eq!(
            round.this_member().incarnation,
            member.options().incarnation
        );
        let ordered = round
            .members
            .windows(2)
            .all(|two| two[0].slot < two[1].slot);
        assert!(ordered && !round.members.is_empty());
        let mut all = seen.lock().unwrap();
        let first = all
            .entry(round.generation)
            .or_insert_with(|| round.members.clone());
        assert_eq!(*first, round.members, "generation {}", round.generation);
        drop(all);
        if round.generation >= GENERATIONS {
            job.coordinator.finish().unwrap();
        }
        match random.random_range(0..3) {
            0 => return false,
            1 => assert!(member.has_pending_members().is_ok()),
            _ => {}
        }
    }
}

#[test]
fn all_participants_of_a_round_see_one_list_whoever_dies() {
    for seed in 0..20 {
        let job = Job::of(1, 4);
        let seen = Seen::default();
        thread::scope(|scope| {
            for slot in 0..4 {
                let (job, seen) = (&job, &seen);
                scope.spawn(move || {
                    let mut random = StdRng::seed_from_u64(seed * 100 + slot as u64);
                    loop {
                        let member = job.start(slot);
                        let incarnation = member.options().incarnation;
                        if live(member, &mut random, job, seen) {
                            return;
                        }
                        job.coordinator.note_end(slot, incarnation).unwrap();
                    }
                });
            }
        });
        let seen = seen.into_inner().unwrap();
        assert!(
            seen.contains_key(&GENERATIONS),
            "seed {seed}: {:?}",
            seen.keys()
        );
    }
}
