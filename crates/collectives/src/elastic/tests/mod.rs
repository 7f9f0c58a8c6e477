//! Processes as threads, over a store in memory.

mod decisions;
mod launcher_leases;
mod random;
mod rounds;
mod starts;
mod stubborn;

use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::store::{HashStore, SharedStore};

/// Longer than anything here takes.
pub(super) const LONG: Duration = Duration::from_secs(60);

/// A job whose processes have all patience.
pub(super) struct Job {
    pub(super) store: SharedStore,
    pub(super) coordinator: MembershipCoordinator,
    min: usize,
    max: usize,
}

impl Job {
    pub(super) fn of(min: usize, max: usize) -> Self {
        let store: SharedStore = Arc::new(HashStore::new());
        Self {
            coordinator: MembershipCoordinator::new(Arc::clone(&store)),
            store,
            min,
            max,
        }
    }

    /// Starts a process of `slot`, as its launcher does.
    pub(super) fn start(&self, slot: usize) -> Membership {
        let incarnation = self.coordinator.next_incarnation(slot).unwrap();
        self.process(slot, incarnation, |_| ())
    }

    /// A process with options of its own, without a launcher.
    pub(super) fn process(
        &self,
        slot: usize,
        incarnation: u64,
        change: impl FnOnce(&mut ElasticOptions),
    ) -> Membership {
        let mut options = ElasticOptions {
            patience: LONG,
            wait_for_min: LONG,
            ..ElasticOptions::new((self.min, self.max), slot, incarnation)
        };
        change(&mut options);
        let here = "127.0.0.1".parse().unwrap();
        Membership::over(Arc::clone(&self.store), here, LONG, options).unwrap()
    }

    pub(super) fn start_all(&self) -> Vec<Membership> {
        (0..self.max).map(|slot| self.start(slot)).collect()
    }

    /// Waits until a process of `slot` has joined the round of `generation`.
    pub(super) fn wait_for_join(&self, generation: u64, slot: usize) {
        let key = keys::joined(generation, slot);
        self.store.wait_within(&[&key], LONG).unwrap();
    }
}

/// All of them join at the same time; what becomes of each.
pub(super) fn join_all(members: &mut [Membership]) -> Vec<Result<Round, ElasticError>> {
    std::thread::scope(|scope| {
        let joins: Vec<_> = members
            .iter_mut()
            .map(|member| scope.spawn(|| member.join(0)))
            .collect();
        joins.into_iter().map(|join| join.join().unwrap()).collect()
    })
}

/// The slots of each round by rank, having checked that all say the same.
pub(super) fn slots_of(rounds: &[Round]) -> Vec<usize> {
    let first = &rounds[0];
    for round in rounds {
        assert_eq!(round.members, first.members);
        assert_eq!(round.generation, first.generation);
    }
    first.members.iter().map(|member| member.slot).collect()
}
