//! NCCL: communicators, and the collectives of their ranks.
//!
//! As the real one, it does not compare what ranks call: who calls something else is waited for until
//! the communicator is aborted.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex};
use std::time::Instant;

use everburn_nccl::api::{Operation, UniqueId};
use everburn_nccl::{DeviceBuffer, Status};
use everburn_record::sync::{lock, wait_until};

use crate::memory::Memory;
use crate::number::combine;
use crate::stream::PATIENCE;

type Id = [u8; UniqueId::BYTES];

/// A collective: what the ranks have given, and how many have taken.
#[derive(Default)]
struct Collective {
    parts: HashMap<usize, (String, Vec<u8>)>,
    taken: usize,
}

#[derive(Default)]
struct World {
    joined: usize,
    /// By their numbers.
    collectives: HashMap<u64, Collective>,
}

pub(super) struct Communicator {
    id: Id,
    pub(super) rank: usize,
    world_size: usize,
    collectives: u64,
    aborted: bool,
    /// What NCCL has found.
    pub(super) found: Option<Status>,
}

#[derive(Default)]
pub(super) struct State {
    worlds: HashMap<Id, World>,
    pub(super) communicators: HashMap<usize, Communicator>,
    ids: u64,
    pub(super) closed: bool,
}

/// What all ranks of a cluster share.
#[derive(Default)]
pub(super) struct Fabric {
    pub(super) memory: Memory,
    pub(super) state: Mutex<State>,
    pub(super) moved: Condvar,
}

impl Fabric {
    pub(super) fn unique_id(&self) -> UniqueId {
        let mut state = lock(&self.state);
        state.ids += 1;
        let mut id = [0; UniqueId::BYTES];
        id[..8].copy_from_slice(&state.ids.to_ne_bytes());
        // Real ids have all kinds of bytes.
        id[UniqueId::BYTES - 1] = 0xff;
        UniqueId::new(id)
    }

    /// A communicator under the number `handle`; `joins` says whether its side is ever done.
    pub(super) fn init(
        &self,
        handle: usize,
        id: &UniqueId,
        rank: usize,
        world_size: usize,
        joins: bool,
    ) {
        let mut state = lock(&self.state);
        state.worlds.entry(*id.bytes()).or_default().joined += usize::from(joins);
        let communicator = Communicator {
            id: *id.bytes(),
            rank,
            world_size,
            collectives: 0,
            aborted: false,
            found: None,
        };
        state.communicators.insert(handle, communicator);
    }

    /// How the communicator is.
    pub(super) fn status(&self, handle: usize) -> Status {
        let state = lock(&self.state);
        let Some(communicator) = state.communicators.get(&handle) else {
            return Status::InvalidArgument;
        };
        let joined = state
            .worlds
            .get(&communicator.id)
            .map_or(0, |world| world.joined);
        match communicator.found {
            Some(found) => found,
            None if joined < communicator.world_size => Status::InProgress,
            None => Status::Success,
        }
    }

    /// The number of the communicator's next collective.
    pub(super) fn next_number(&self, handle: usize) -> Option<u64> {
        let mut state = lock(&self.state);
        let communicator = state.communicators.get_mut(&handle)?;
        communicator.collectives += 1;
        Some(communicator.collectives)
    }

    /// Takes part in a collective, and waits until it is over or the communicator is aborted.
    pub(super) fn run(&self, handle: usize, number: u64, operation: &Operation) {
        let deadline = Instant::now() + PATIENCE;
        self.give(handle, number, operation);
        self.moved.notify_all();
        let mut state = lock(&self.state);
        loop {
            let Some(communicator) = state.communicators.get(&handle) else {
                return;
            };
            if communicator.aborted || state.closed {
                return;
            }
            let (id, rank, world_size) =
                (communicator.id, communicator.rank, communicator.world_size);
            let Some(world) = state.worlds.get_mut(&id) else {
                return;
            };
            let Some(collective) = world.collectives.get_mut(&number) else {
                return;
            };
            if self.take(collective, operation, rank, world_size) {
                if collective.taken == world_size {
                    world.collectives.remove(&number);
                }
                self.moved.notify_all();
                return;
            }
            let (locked, late) = wait_until(&self.moved, state, deadline);
            state = locked;
            if late {
                return;
            }
        }
    }

    fn give(&self, handle: usize, number: u64, operation: &Operation) {
        let given = match operation {
            Operation::ReduceScatter { send, .. } | Operation::AllGather { send, .. } => send,
            Operation::AllReduce { buffer, .. } => buffer,
        };
        let bytes = self.memory.read(given.bytes());
        let mut state = lock(&self.state);
        let Some(communicator) = state.communicators.get(&handle) else {
            return;
        };
        let (id, rank) = (communicator.id, communicator.rank);
        let collective = state
            .worlds
            .entry(id)
            .or_default()
            .collectives
            .entry(number)
            .or_default();
        collective
            .parts
            .insert(rank, (operation.to_string(), bytes));
    }

    /// Writes the result of a collective, if all that it needs has come.
    fn take(
        &self,
        collective: &mut Collective,
        operation: &Operation,
        rank: usize,
        world_size: usize,
    ) -> bool {
        let call = operation.to_string();
        let alike = (0..world_size).all(|other| {
            collective
                .parts
                .get(&other)
                .is_some_and(|(theirs, _)| *theirs == call)
        });
        if !alike {
            return false;
        }
        let parts: Vec<Vec<u8>> = (0..world_size)
            .map(|other| collective.parts[&other].1.clone())
            .collect();
        let (target, bytes) = result(operation, rank, &parts);
        self.memory.write(target.pointer(), &bytes);
        collective.taken += 1;
        true
    }

    /// Its operations end without a result, and what it has given for them nobody gets.
    pub(super) fn abort(&self, handle: usize) {
        let mut state = lock(&self.state);
        if let Some(communicator) = state.communicators.get_mut(&handle) {
            communicator.aborted = true;
            let (id, rank) = (communicator.id, communicator.rank);
            if let Some(world) = state.worlds.get_mut(&id) {
                world.collectives.values_mut().for_each(|collective| {
                    collective.parts.remove(&rank);
                });
            }
        }
        drop(state);
        self.moved.notify_all();
    }
}

/// Where the result goes, and what it is.
fn result<'a>(
    operation: &'a Operation,
    rank: usize,
    parts: &[Vec<u8>],
) -> (&'a DeviceBuffer, Vec<u8>) {
    match operation {
        Operation::AllReduce { buffer, op } => (buffer, combine(buffer.dtype(), *op, parts)),
        Operation::ReduceScatter { receive, op, .. } => {
            let whole = combine(receive.dtype(), *op, parts);
            let part = whole.len() / parts.len();
            (receive, whole[rank * part..(rank + 1) * part].to_vec())
        }
        Operation::AllGather { receive, .. } => (receive, parts.concat()),
    }
}
