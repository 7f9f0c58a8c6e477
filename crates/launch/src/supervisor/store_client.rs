//! The launcher's client of an elastic job's store. It has a thread of its own, because the store may block and the
//! supervisor must not.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use everburn_collectives::elastic::{Member, MembershipCoordinator};
use everburn_collectives::store::{StoreAccess, StoreError, StoreOptions};

use super::Event;
use crate::job_store::{JobStore, ReachedStore};

/// How often the client polls the store: a small part of the time that ranks take to start.
const LOOK: Duration = Duration::from_millis(100);

/// How often it polls etcd, which serves other jobs too, and whose answers its members agree on.
const LOOK_AT_ETCD: Duration = Duration::from_millis(500);

/// A process must be missing in this many polls before it is killed: one that came a moment too late for a round joins
/// the next one meanwhile.
const MISSED_LOOKS: u32 = 2;

/// How long the last messages to the store may take when the launcher ends.
const FLUSH: Duration = Duration::from_secs(2);

/// The same for etcd, which may have to elect a leader.
const FLUSH_TO_ETCD: Duration = Duration::from_secs(30);

/// What the client has read from the store. Ranks are local ranks.
pub(crate) enum StoreEvent {
    /// The next process of a rank has a number.
    Numbered { local_rank: usize, incarnation: u64 },
    /// The others continued without this living process.
    Expelled { local_rank: usize, incarnation: u64 },
    /// A rank of another machine has finished.
    Finished,
    /// The launcher of another machine has given up.
    GivenUp(String),
    /// The store cannot be reached.
    Lost(String),
}

enum StoreRequest {
    Number(usize),
    NoteEnd { local_rank: usize, incarnation: u64 },
    Finish,
    GiveUp(String),
}

/// This machine among those of the job.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Machine {
    /// Over all machines.
    pub(crate) first_rank: usize,
    pub(crate) node_rank: usize,
    pub(crate) nodes: usize,
}

/// The supervisor's handle to the thread.
pub(crate) struct StoreClient {
    requests: Sender<StoreRequest>,
    ended: Receiver<Infallible>,
    /// How long the last messages may take.
    flush: Duration,
}

impl StoreClient {
    /// Starts a client of `store`, for the ranks of this machine.
    pub(crate) fn start(
        store: JobStore,
        access: StoreAccess,
        machine: Machine,
        events: Sender<Event>,
    ) -> io::Result<Self> {
        let options = StoreOptions::new(access);
        let flush = match store {
            JobStore::Hosted(..) => FLUSH,
            JobStore::Etcd(_) => FLUSH_TO_ETCD,
        };
        let (requests, inbox) = mpsc::channel();
        let (alive, ended) = mpsc::channel();
        thread::Builder::new()
            .name("store-client".into())
            .spawn(move || {
                let work = store.reach(options).and_then(|store| {
                    let thread = StoreClientThread {
                        coordinator: MembershipCoordinator::new(store.shared()),
                        store,
                        machine,
                        processes: BTreeMap::new(),
                        end_is_known: false,
                        events: events.clone(),
                    };
                    thread.run(&inbox)
                });
                if let Err(error) = work {
                    let _ = events.send(Event::Store(StoreEvent::Lost(error.to_string())));
                }
                drop::<Sender<Infallible>>(alive);
            })?;
        Ok(Self {
            requests,
            ended,
            flush,
        })
    }

    /// Requests a number for the next process of a rank: [`StoreEvent::Numbered`] has it.
    pub(crate) fn number(&self, local_rank: usize) {
        self.request(StoreRequest::Number(local_rank));
    }

    pub(crate) fn note_end(&self, local_rank: usize, incarnation: u64) {
        self.request(StoreRequest::NoteEnd {
            local_rank,
            incarnation,
        });
    }

    pub(crate) fn finish(&self) {
        self.request(StoreRequest::Finish);
    }

    pub(crate) fn give_up(&self, reason: &str) {
        self.request(StoreRequest::GiveUp(reason.to_owned()));
    }

    /// After it has lost the store, and reported that, the thread takes no requests.
    fn request(&self, request: StoreRequest) {
        let _ = self.requests.send(request);
    }

    /// Waits for pending requests and disconnects from the store.
    pub(crate) fn close(self) {
        drop(self.requests);
        // Disconnected once the thread has ended.
        let _ = self.ended.recv_timeout(self.flush);
    }
}

/// A process of this machine.
struct Process {
    incarnation: u64,
    was_member: bool,
    missed: u32,
}

/// The state of the thread.
struct StoreClientThread {
    coordinator: MembershipCoordinator,
    store: ReachedStore,
    machine: Machine,
    /// By local rank.
    processes: BTreeMap<usize, Process>,
    /// The supervisor has been told that the job has finished or was given up.
    end_is_known: bool,
    events: Sender<Event>,
}

impl StoreClientThread {
    fn run(mut self, requests: &Receiver<StoreRequest>) -> Result<(), StoreError> {
        let interval = match self.store {
            ReachedStore::Hosted(_) => LOOK,
            ReachedStore::Etcd(_) => {
                self.coordinator.launcher_begins(self.machine.node_rank)?;
                LOOK_AT_ETCD
            }
        };
        let mut next_look = Instant::now();
        loop {
            match requests.recv_timeout(next_look.saturating_duration_since(Instant::now())) {
                Ok(request) => self.handle(request)?,
                Err(RecvTimeoutError::Disconnected) => return self.leave(),
                Err(RecvTimeoutError::Timeout) => {
                    self.look()?;
                    next_look = Instant::now() + interval;
                }
            }
        }
    }

    /// A hosted store ends with its launcher. What is in etcd is deleted by the last launcher; where one was lost for
    /// good, etcd deletes it later.
    fn leave(&self) -> Result<(), StoreError> {
        let ReachedStore::Etcd(store) = &self.store else {
            return Ok(());
        };
        let Machine {
            node_rank, nodes, ..
        } = self.machine;
        match self.coordinator.launcher_ends(node_rank, nodes)? {
            true => store.end_job(),
            false => Ok(()),
        }
    }

    fn handle(&mut self, request: StoreRequest) -> Result<(), StoreError> {
        match request {
            StoreRequest::Number(local_rank) => {
                let slot = self.machine.first_rank + local_rank;
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
                self.send(StoreEvent::Numbered {
                    local_rank,
                    incarnation,
                });
                Ok(())
            }
            StoreRequest::NoteEnd {
                local_rank,
                incarnation,
            } => {
                self.processes.remove(&local_rank);
                self.coordinator
                    .note_end(self.machine.first_rank + local_rank, incarnation)
            }
            StoreRequest::Finish => {
                self.end_is_known = true;
                self.coordinator.finish()
            }
            StoreRequest::GiveUp(reason) => {
                self.end_is_known = true;
                self.coordinator.give_up(&reason)
            }
        }
    }

    fn look(&mut self) -> Result<(), StoreError> {
        if !self.end_is_known {
            if self.coordinator.is_finished()? {
                self.end_is_known = true;
                self.send(StoreEvent::Finished);
            } else if let Some(reason) = self.coordinator.given_up()? {
                self.end_is_known = true;
                self.send(StoreEvent::GivenUp(reason));
            }
        }
        let Some(newest) = self.coordinator.newest()? else {
            return Ok(());
        };
        let mut expelled = Vec::new();
        for (&local_rank, process) in &mut self.processes {
            let slot = self.machine.first_rank + local_rank;
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
                expelled.push(StoreEvent::Expelled {
                    local_rank,
                    incarnation: process.incarnation,
                });
            }
        }
        for event in expelled {
            self.send(event);
        }
        Ok(())
    }

    /// Ignores that the launcher may have ended.
    fn send(&self, event: StoreEvent) {
        let _ = self.events.send(Event::Store(event));
    }
}
