//! What a launcher does at the store of an elastic job for the ranks of its machine.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use everburn_collectives::elastic::{Generation, Member, MembershipCoordinator};
use everburn_collectives::rendezvous::ProcessIdentity;
use everburn_collectives::store::{SharedStore, StoreError};

/// A process must be missing in this many polls before it is killed: one that came a moment too late for a round joins
/// the next one meanwhile.
const MISSED_LOOKS: u32 = 2;

/// The newest generation is read after this many looks even if nothing says that there is one: the process that should
/// have said so may have died.
const LONGEST_UNREAD: u32 = 10;

/// What the client has read from the store. Ranks are local ranks.
///
/// ```
/// # mod everburn { pub use everburn_launch as launch; }
/// use everburn::launch::simulation::StoreEvent;
///
/// assert_ne!(StoreEvent::Finished, StoreEvent::Lost("its machine is gone".to_owned()));
/// ```
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
    /// Ranks have formed a group without any of a machine that was in the group before.
    MachineLost {
        /// Its number.
        machine: usize,
        /// Its ranks that were in the group.
        ranks: Vec<usize>,
        /// The ranks of the new group.
        left: Vec<usize>,
    },
    /// A rank of another machine has finished.
    Finished,
    /// The launcher of another machine has given up.
    GivenUp(String),
    /// The launcher of another machine was asked to stop the job.
    StopRequested(String),
    /// A rank of some machine was started with other settings than the job, and refused.
    Refused(String),
    /// Another launcher runs with the number of this machine.
    LeaseTaken(ProcessIdentity),
    /// The store is not reached yet.
    Awaited {
        /// Why, in words.
        text: String,
        /// For how long it is tried.
        left: Duration,
    },
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
///
/// ```
/// # mod everburn { pub use everburn_launch as launch; pub use everburn_collectives as collectives; }
/// use std::sync::Arc;
/// use everburn::launch::simulation::MachineProcesses;
/// use everburn::collectives::store::HashStore;
///
/// let mut processes = MachineProcesses::new(Arc::new(HashStore::new()), 8);
/// assert_eq!(processes.number(0)?, 1);
/// assert!(processes.look()?.is_empty());
/// # Ok::<(), everburn_collectives::store::StoreError>(())
/// ```
#[derive(Debug)]
pub struct MachineProcesses {
    coordinator: MembershipCoordinator,
    first_rank: usize,
    /// By local rank.
    processes: BTreeMap<usize, Process>,
    /// The job has finished or was given up.
    end_is_known: bool,
    stop_is_known: bool,
    /// The refusal that was reported last.
    refused: Option<String>,
    /// The generation that was read last, and how many looks ago.
    newest: Option<Generation>,
    unread: u32,
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
            stop_is_known: false,
            refused: None,
            newest: None,
            unread: 0,
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

    /// Notes that the launcher of this machine was asked to stop the job.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be reached.
    pub fn request_stop(&mut self, by: &str) -> Result<(), StoreError> {
        self.stop_is_known = true;
        self.coordinator.request_stop(by)
    }

    /// Notes that a rank of this machine was refused.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be reached.
    pub fn note_refusal(&mut self, text: &str) -> Result<(), StoreError> {
        self.coordinator.note_refusal(text)
    }

    /// Reads what is new.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be reached.
    pub fn look(&mut self) -> Result<Vec<StoreEvent>, StoreError> {
        let read = self.newest.as_ref().map_or(0, |newest| newest.number);
        let news = self.coordinator.news(read)?;
        let mut events = Vec::new();
        // First: ranks that have obeyed may have ended the job by now.
        if let Some(by) = news.stop_requested
            && !std::mem::replace(&mut self.stop_is_known, true)
        {
            events.push(StoreEvent::StopRequested(by));
        }
        if !self.end_is_known {
            if news.is_finished {
                events.push(StoreEvent::Finished);
                self.end_is_known = true;
            } else if let Some(reason) = news.given_up {
                events.push(StoreEvent::GivenUp(reason));
                self.end_is_known = true;
            }
        }
        if let Some(text) = news.refused
            && self.refused.as_ref() != Some(&text)
        {
            self.refused = Some(text.clone());
            events.push(StoreEvent::Refused(text));
        }
        self.unread += 1;
        let some_are_missing = self.processes.values().any(|process| process.missed > 0);
        if news.next_has_formed || some_are_missing || self.unread >= LONGEST_UNREAD {
            let newest = self.coordinator.newest()?;
            let before = std::mem::replace(&mut self.newest, newest);
            if let (Some(before), Some(newest)) = (&before, &self.newest)
                && !(self.end_is_known || self.stop_is_known)
            {
                events.extend(lost_machines(before, newest));
            }
            self.unread = 0;
        }
        let Some(newest) = &self.newest else {
            return Ok(events);
        };
        for (&local_rank, process) in &mut self.processes {
            let slot = self.first_rank + local_rank;
            let is_it = |it: &Member| (it.slot, it.incarnation) == (slot, process.incarnation);
            if newest.members.iter().any(is_it) {
                process.was_member = true;
                process.missed = 0;
                continue;
            }
            if !process.was_member && !newest.lost.iter().any(is_it) {
                continue;
            }
            process.was_member = true;
            let joined = self.coordinator.joined(newest.number + 1, slot)?;
            let waits = joined.is_some_and(|it| it.incarnation == process.incarnation);
            process.missed = if waits { 0 } else { process.missed + 1 };
            if process.missed == MISSED_LOOKS {
                events.push(StoreEvent::Expelled {
                    local_rank,
                    incarnation: process.incarnation,
                });
            }
        }
        Ok(events)
    }
}

/// The machines that had ranks in `before`, and have none in `newest`.
fn lost_machines(before: &Generation, newest: &Generation) -> Vec<StoreEvent> {
    let machines = |it: &Generation| -> BTreeSet<usize> {
        it.members.iter().map(|member| member.node).collect()
    };
    let slots = |it: &Generation, of: &dyn Fn(&Member) -> bool| -> Vec<usize> {
        let members = it.members.iter().filter(|member| of(member));
        members.map(|member| member.slot).collect()
    };
    let left = machines(newest);
    let lost = machines(before).into_iter();
    let lost = lost.filter(|machine| !left.contains(machine));
    let event = |machine: usize| StoreEvent::MachineLost {
        machine,
        ranks: slots(before, &|member| member.node == machine),
        left: slots(newest, &|_| true),
    };
    lost.map(event).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use everburn_collectives::store::HashStore;

    use super::*;

    #[test]
    fn a_machine_of_which_no_rank_is_in_the_group_any_more_is_lost_with_its_ranks() {
        let member = |slot: usize| Member {
            slot,
            incarnation: 1,
            committed_step: 0,
            process: 1,
            node: slot / 2,
        };
        let generation = |slots: &[usize]| Generation {
            number: 1,
            members: slots.iter().copied().map(member).collect(),
            lost: Vec::new(),
        };
        let lost =
            |slots: &[usize]| lost_machines(&generation(&[0, 1, 2, 3, 5]), &generation(slots));
        assert_eq!(lost(&[0, 2, 5]), []);
        let of = |machine: usize, ranks: &[usize]| StoreEvent::MachineLost {
            machine,
            ranks: ranks.to_vec(),
            left: vec![1, 4],
        };
        assert_eq!(lost(&[1, 4]), [of(1, &[2, 3])]);
    }

    #[test]
    fn a_rank_of_another_machine_that_was_refused_is_said_once() {
        let store: SharedStore = Arc::new(HashStore::new());
        let mut processes = MachineProcesses::new(store.clone(), 0);
        let mut other = MachineProcesses::new(store, 1);
        for text in ["machine 1: another seed", "machine 1: another model"] {
            other.note_refusal(text).unwrap();
            let refused = StoreEvent::Refused(text.to_owned());
            assert_eq!(processes.look().unwrap(), [refused]);
            assert!(processes.look().unwrap().is_empty());
        }
    }

    #[test]
    fn a_request_to_stop_comes_before_the_end_that_it_has_brought_about_and_each_once() {
        let store: SharedStore = Arc::new(HashStore::new());
        let mut processes = MachineProcesses::new(store.clone(), 1);
        let other = MembershipCoordinator::new(store);
        other.request_stop("SIGINT at machine 0").unwrap();
        other.finish().unwrap();
        let stop = StoreEvent::StopRequested("SIGINT at machine 0".to_owned());
        assert_eq!(processes.look().unwrap(), [stop, StoreEvent::Finished]);
        assert!(processes.look().unwrap().is_empty());
    }
}
