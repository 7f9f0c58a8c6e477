//! The launcher of one machine: what `Supervisor` and its store client do for an elastic job.
//!
//! Numbers, ends and expulsions at the store ([`MachineProcesses`]) and the search for stopped ranks ([`StoppedRanks`]) are
//! the launcher's own code. The loop around them is this one.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use everburn_collectives::runtime::{self, Condition};
use everburn_collectives::store::{SharedStore, StoreError};
use everburn_collectives::sync::lock;
use everburn_launch::simulation::{MachineProcesses, Process, StoppedRanks, StoreEvent};

use crate::rank::Exit;
use crate::store::SimulatedStore;
use crate::world::World;

/// How often the launcher asks the store.
const LOOK: Duration = Duration::from_millis(100);

/// How long a rank may be stopped.
const STOPPED_LIMIT: Duration = Duration::from_millis(1500);

/// The ends of processes that a launcher has not seen yet.
#[derive(Default)]
pub(crate) struct Machine {
    ended: Mutex<VecDeque<(usize, usize, Exit)>>,
    changed: Condition,
    launcher: Mutex<Option<usize>>,
}

/// The kernel reports the end of a process to its launcher.
pub(crate) fn reaped(world: &Arc<World>, machine: usize, slot: usize, process: usize, exit: Exit) {
    let of = &world.machines[machine];
    lock(&of.ended).push_back((slot, process, exit));
    let Some(launcher) = *lock(&of.launcher) else {
        return;
    };
    runtime::enter(world.kernel.runtime(launcher), || of.changed.notify_all());
}

pub(crate) fn start(world: &Arc<World>, machine: usize) {
    let process = world.kernel.add_process(machine);
    *lock(&world.machines[machine].launcher) = Some(process);
    let of = world.clone();
    let runs = move || {
        let mut launcher = Launcher::new(&of, machine, process);
        if let Err(error) = launcher.run() {
            panic!("the launcher of machine {machine} has lost the store: {error}");
        }
    };
    let started = world
        .kernel
        .spawn(process, &format!("launcher-{machine}"), Box::new(runs));
    if let Err(error) = started {
        panic!("the system gives no more stacks: {error}");
    }
}

#[derive(Clone)]
enum Next {
    Runs(usize),
    Pause(Instant),
    Ended,
}

struct RankSlot {
    next: Next,
    incarnation: u64,
}

struct Launcher {
    world: Arc<World>,
    machine: usize,
    first: usize,
    processes: MachineProcesses,
    stopped: StoppedRanks,
    slots: Vec<RankSlot>,
    finished: bool,
}

impl Launcher {
    fn new(world: &Arc<World>, machine: usize, process: usize) -> Self {
        let slots = world.slots_of(machine);
        let store = SimulatedStore::connect(&world.server, process, true);
        let store: SharedStore = Arc::new(store);
        let slot = |_| RankSlot {
            next: Next::Pause(runtime::now()),
            incarnation: 0,
        };
        Self {
            world: world.clone(),
            machine,
            first: slots.start,
            processes: MachineProcesses::new(store, slots.start),
            stopped: StoppedRanks::new(STOPPED_LIMIT, slots.len()),
            slots: slots.map(slot).collect(),
            finished: false,
        }
    }

    fn run(&mut self) -> Result<(), StoreError> {
        let mut next_look = runtime::now();
        loop {
            self.see_ends()?;
            self.start_those_due()?;
            self.end_stopped_ranks();
            if runtime::now() >= next_look {
                for event in self.processes.look()? {
                    self.take(&event);
                }
                next_look = runtime::now() + LOOK;
            }
            let ended = |slot: &RankSlot| matches!(slot.next, Next::Ended);
            if self.finished && self.slots.iter().all(ended) {
                return Ok(());
            }
            let pauses = self.slots.iter().filter_map(|slot| match slot.next {
                Next::Pause(until) => Some(until),
                _ => None,
            });
            let stopped = (!self.finished).then(|| self.stopped.next_look());
            let until = pauses.chain([next_look]).chain(stopped).min();
            let of = &self.world.machines[self.machine];
            let ended = lock(&of.ended);
            if ended.is_empty() {
                drop(
                    of.changed
                        .wait_until(&of.ended, ended, until.unwrap_or(next_look)),
                );
            }
        }
    }

    fn see_ends(&mut self) -> Result<(), StoreError> {
        loop {
            let ended = lock(&self.world.machines[self.machine].ended).pop_front();
            let Some((slot, process, exit)) = ended else {
                return Ok(());
            };
            let local_rank = slot - self.first;
            let of = &mut self.slots[local_rank];
            if !matches!(of.next, Next::Runs(current) if current == process) {
                continue;
            }
            let incarnation = of.incarnation;
            of.next = Next::Ended;
            if exit == Exit::Finished {
                self.finished = true;
                self.processes.note_end(local_rank, incarnation)?;
                self.processes.finish()?;
                continue;
            }
            if !self.finished {
                // Faults hit at random: each rank is started again as after its first end, at once.
                of.next = Next::Pause(runtime::now());
            }
            self.processes.note_end(local_rank, incarnation)?;
        }
    }

    fn start_those_due(&mut self) -> Result<(), StoreError> {
        let now = runtime::now();
        for local_rank in 0..self.slots.len() {
            let due = matches!(self.slots[local_rank].next, Next::Pause(until) if until <= now);
            if !due {
                continue;
            }
            if self.finished {
                self.slots[local_rank].next = Next::Ended;
                continue;
            }
            let incarnation = self.processes.number(local_rank)?;
            let process = self.world.start_rank(self.first + local_rank, incarnation);
            let slot = &mut self.slots[local_rank];
            (slot.next, slot.incarnation) = (Next::Runs(process), incarnation);
        }
        Ok(())
    }

    fn end_stopped_ranks(&mut self) {
        let now = runtime::now();
        if self.finished || !self.stopped.is_due(now) {
            return;
        }
        let look = |slot: &RankSlot| match slot.next {
            Next::Runs(process) if self.world.kernel.is_alive(process) => Some(Process {
                id: process as u32,
                is_stopped: self.world.kernel.is_stopped(process),
            }),
            _ => None,
        };
        let processes: Vec<Option<Process>> = self.slots.iter().map(look).collect();
        for local_rank in self.stopped.look(now, &processes) {
            self.world.kill(self.first + local_rank);
        }
    }

    fn take(&mut self, event: &StoreEvent) {
        match event {
            StoreEvent::Expelled {
                local_rank,
                incarnation,
            } if self.slots[*local_rank].incarnation == *incarnation => {
                self.world.kill(self.first + local_rank);
            }
            StoreEvent::Finished | StoreEvent::GivenUp(_) => self.finished = true,
            _ => {}
        }
    }
}
