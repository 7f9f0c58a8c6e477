//! The launcher's client of an elastic job's store. It has a thread of its own, because the store may block and the
//! supervisor must not.

use std::convert::Infallible;
use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use everburn_collectives::elastic::{Lease, LeaseState};
use everburn_collectives::rendezvous::WaitListener;
use everburn_collectives::store::{StoreAccess, StoreError, StoreOptions};

use super::Event;
use super::machine_processes::{MachineProcesses, StoreEvent};
use crate::job_store::{JobStore, ReachedStore};

/// How often the client polls the store: a small part of the time that ranks take to start.
const LOOK: Duration = Duration::from_millis(100);

/// How often it polls etcd, which serves other jobs too, and whose answers its members agree on.
const LOOK_AT_ETCD: Duration = Duration::from_millis(500);

/// How long the last messages to the store may take when the launcher ends.
const FLUSH: Duration = Duration::from_secs(2);

/// The same for etcd, which may have to elect a leader.
const FLUSH_TO_ETCD: Duration = Duration::from_secs(30);

type StoreRequest = Box<dyn FnOnce(&mut StoreClientThread) -> Result<(), StoreError> + Send>;

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
    /// Starts a client of `store`, for the ranks of this machine. A hosted store is tried for `limit`, if there is one.
    pub(crate) fn start(
        (store, access): (JobStore, StoreAccess),
        limit: Option<Duration>,
        machine: Machine,
        events: Sender<Event>,
    ) -> io::Result<Self> {
        let flush = match store {
            JobStore::Hosted(..) => FLUSH,
            JobStore::Etcd(_) => FLUSH_TO_ETCD,
        };
        let (requests, inbox) = mpsc::channel();
        let (alive, ended) = mpsc::channel();
        let waits = events.clone();
        let on_wait = WaitListener::new(move |awaited| {
            let (text, left) = (awaited.text.clone(), awaited.left);
            let _ = waits.send(Event::Store(StoreEvent::Awaited { text, left }));
        });
        let options = StoreOptions {
            on_wait: Some(on_wait),
            ..StoreOptions::new(access)
        };
        thread::Builder::new()
            .name("store-client".into())
            .spawn(move || {
                let limit = limit.unwrap_or(options.timeout);
                let work = store.reach(options, limit).and_then(|store| {
                    let thread = StoreClientThread {
                        processes: MachineProcesses::new(store.shared.clone(), machine.first_rank),
                        lease: Lease::of_launcher(machine.node_rank),
                        store,
                        machine,
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
        self.request(move |thread| {
            let incarnation = thread.processes.number(local_rank)?;
            thread.send(StoreEvent::Numbered {
                local_rank,
                incarnation,
            });
            Ok(())
        });
    }

    pub(crate) fn note_end(&self, local_rank: usize, incarnation: u64) {
        self.request(move |thread| thread.processes.note_end(local_rank, incarnation));
    }

    pub(crate) fn finish(&self) {
        self.request(|thread| thread.processes.finish());
    }

    pub(crate) fn give_up(&self, reason: &str) {
        let reason = reason.to_owned();
        self.request(move |thread| thread.processes.give_up(&reason));
    }

    /// Has the launchers of the other machines stop the job, too.
    pub(crate) fn request_stop(&self, by: String) {
        self.request(move |thread| thread.processes.request_stop(&by));
    }

    /// Has the launchers of the other machines say that a rank of this one was refused.
    pub(crate) fn note_refusal(&self, text: String) {
        self.request(move |thread| thread.processes.note_refusal(&text));
    }

    /// After it has lost the store, and reported that, the thread takes no requests.
    fn request(
        &self,
        request: impl FnOnce(&mut StoreClientThread) -> Result<(), StoreError> + Send + 'static,
    ) {
        let _ = self.requests.send(Box::new(request));
    }

    /// Waits for pending requests and disconnects from the store.
    pub(crate) fn close(self) {
        drop(self.requests);
        // Disconnected once the thread has ended.
        let _ = self.ended.recv_timeout(self.flush);
    }
}

struct StoreClientThread {
    processes: MachineProcesses,
    lease: Lease,
    store: ReachedStore,
    machine: Machine,
    events: Sender<Event>,
}

impl StoreClientThread {
    fn run(mut self, requests: &Receiver<StoreRequest>) -> Result<(), StoreError> {
        let Some(pending) = self.take_place(requests)? else {
            return Ok(());
        };
        let interval = match self.store.etcd {
            None => LOOK,
            Some(_) => {
                let coordinator = self.processes.coordinator();
                coordinator.launcher_begins(self.machine.node_rank)?;
                LOOK_AT_ETCD
            }
        };
        for request in pending {
            request(&mut self)?;
        }
        let mut next_look = Instant::now();
        let mut next_look_at_lease = Instant::now() + self.lease.interval();
        loop {
            match requests.recv_timeout(next_look.saturating_duration_since(Instant::now())) {
                Ok(request) => request(&mut self)?,
                Err(RecvTimeoutError::Disconnected) => return self.leave(),
                Err(RecvTimeoutError::Timeout) => {
                    if Instant::now() >= next_look_at_lease {
                        if let LeaseState::Taken(other) = self.lease.look(&*self.store.shared)? {
                            self.send(StoreEvent::LeaseTaken(other));
                            return Ok(());
                        }
                        next_look_at_lease = Instant::now() + self.lease.interval();
                    }
                    for event in self.processes.look()? {
                        self.send(event);
                    }
                    next_look = Instant::now() + interval;
                }
            }
        }
    }

    /// Waits until this launcher has the number of its machine; returns the requests that have come meanwhile. `None`:
    /// another launcher has it, or this one ends.
    fn take_place(
        &mut self,
        requests: &Receiver<StoreRequest>,
    ) -> Result<Option<Vec<StoreRequest>>, StoreError> {
        let mut pending = Vec::new();
        let mut next_look = Instant::now();
        loop {
            match requests.recv_timeout(next_look.saturating_duration_since(Instant::now())) {
                Ok(request) => pending.push(request),
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
                Err(RecvTimeoutError::Timeout) => match self.lease.look(&*self.store.shared)? {
                    LeaseState::Held => return Ok(Some(pending)),
                    LeaseState::Waiting => next_look = Instant::now() + self.lease.interval(),
                    LeaseState::Taken(other) => {
                        self.send(StoreEvent::LeaseTaken(other));
                        return Ok(None);
                    }
                },
            }
        }
    }

    /// Lets another launcher have the lease. A hosted store ends with its launcher; what is in etcd is deleted by the last
    /// launcher; where one was lost for good, etcd deletes it later.
    fn leave(&mut self) -> Result<(), StoreError> {
        if self.lease.look(&*self.store.shared)? != LeaseState::Held {
            // Another launcher speaks for this machine now.
            return Ok(());
        }
        self.lease.leave(&*self.store.shared)?;
        let Some(store) = &self.store.etcd else {
            return Ok(());
        };
        let Machine {
            node_rank, nodes, ..
        } = self.machine;
        match self
            .processes
            .coordinator()
            .launcher_ends(node_rank, nodes)?
        {
            true => store.end_job(),
            false => Ok(()),
        }
    }

    /// Ignores that the launcher may have ended.
    fn send(&self, event: StoreEvent) {
        let _ = self.events.send(Event::Store(event));
    }
}
