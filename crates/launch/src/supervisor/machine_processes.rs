//! What a launcher does at the store of an elastic job for the ranks of its machine.

use std::collections::BTreeMap;

use everburn_collectives::elastic::{Member, MembershipCoordinator};
use everburn_collectives::store::{SharedStore, StoreError};

/// A process must be missing in this many polls before it is killed: one that came a moment too late for a round joins
/// the next one meanwhile.
const MISSED_LOOKS: u32 = 2;

/// What the client has read from the store. Ranks are local ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreEvent {
    /// The next process of a rank has a number.
    Numbered {
        /// The rank.
        local_rank: usize,
        /// Its number.
        incarnation: u64,
    },
    /// The others continued without this living process.
    Expelled {
        /// The rank.
        local_rank: usize,
        /// Its number.
        incarnation: u64,
    },
    /// A rank of another machine has finished.
    Finished,
    /// The launcher of another machine has given up.
    GivenUp(String),
    /// The store cannot be reached.
    Lost(String),
}

/// A process of this machine.
#[derive(Debug)]
struct Process {
    incarnation: u64,
    was_member: bool,
    missed: u32,
}

/// The processes of one machine, as its launcher has numbered them, and what has become of them by the store.
#[derive(Debug)]
pub struct MachineProcesses {
    coordinator: MembershipCoordinator,
    first_rank: usize,
    /// By local rank.
    processes: BTreeMap<usize, Process>,
    /// The supervisor has been told that the job has finished or was given up.
    end_is_known: bool,
}

impl MachineProcesses {
    /// None yet, on the machine whose first rank is `first_rank`.
    #[must_use]
    pub fn new(store: SharedStore, first_rank: usize) -> Self {
        Self {
            coordinator: MembershipCoordinator::new(store),
            first_rank,
            processes: BTreeMap::new(),
            end_is_known: false,
        }
    }

    /// The coordinator that all of this goes through.
    #[must_use]
    pub fn coordinator(&self) -> &MembershipCoordinator {
        &self.coordinator
    }

    /// Numbers the next process of a rank.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be reached.
    pub fn number(&mut self, local_rank: usize) -> Result<u64, StoreError> {
        let slot = self.first_rank + local_rank;
        let incarnation = self.coordinator.next_incarnation(slot)?;
        if incarnation > 1 {
            // A launcher that died could not note that its ranks died with it.
            self.coordinator.note_end(slot, incarnation - 1)?;
        }
        let process = Process {
            incarnation,
            was_member: false,
            missed: 0,
        };
        self.processes.insert(local_rank, process);
        Ok(incarnation)
    }

    /// Notes that a process has ended.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be reached.
    pub fn note_end(&mut self, local_rank: usize, incarnation: u64) -> Result<(), StoreError> {
        self.processes.remove(&local_rank);
        self.coordinator
            .note_end(self.first_rank + local_rank, incarnation)
    }

    /// Notes that the job has finished.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be reached.
    pub fn finish(&mut self) -> Result<(), StoreError> {
        self.end_is_known = true;
        self.coordinator.finish()
    }

    /// Notes that the job is given up.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be reached.
    pub fn give_up(&mut self, reason: &str) -> Result<(), StoreError> {
        self.end_is_known = true;
        self.coordinator.give_up(reason)
    }

    /// Reads what is new.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be reached.
    pub fn look(&mut self) -> Result<Vec<StoreEvent>, StoreError> {
        let mut news = Vec::new();
        if !self.end_is_known {
            if self.coordinator.is_finished()? {
                self.end_is_known = true;
                news.push(StoreEvent::Finished);
            } else if let Some(reason) = self.coordinator.given_up()? {
                self.end_is_known = true;
                news.push(StoreEvent::GivenUp(reason));
            }
        }
        let Some(newest) = self.coordinator.newest()? else {
            return Ok(news);
        };
        for (&local_rank, process) in &mut self.processes {
            let slot = self.first_rank + local_rank;
            let is_it = |it: &Member| (it.slot, it.incarnation) == (slot, process.incarnation);
            if newest.members.iter().any(is_it) {
                process.was_member = true;
                process.missed = 0;
                continue;
            }
            if !process.was_member && !newest.before.iter().any(is_it) {
                continue;
            }
            process.was_member = true;
            let joined = self.coordinator.joined(newest.number + 1, slot)?;
            let waits = joined.is_some_and(|it| it.incarnation == process.incarnation);
            process.missed = if waits { 0 } else { process.missed + 1 };
            if process.missed == MISSED_LOOKS {
                news.push(StoreEvent::Expelled {
                    local_rank,
                    incarnation: process.incarnation,
                });
            }
        }
        Ok(news)
    }
}
