//! The launcher of an elastic job at the job's store. It has a thread of its own, because a store may keep
//! one waiting, and the supervisor must not.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use everburn_collectives::elastic::{Member, Overseer};
use everburn_collectives::store::{StoreAccess, StoreError, StoreOptions, TcpStore};

use super::Event;

/// How often the clerk looks what has changed in the store: a small part of the time that ranks take to start.
const LOOK: Duration = Duration::from_millis(100);

/// A process must have been seen missing so often before it is killed: one that came a moment too late for
/// a round joins the next one meanwhile.
const MISSED_LOOKS: u32 = 2;

/// How long the last messages to the store may take when the launcher ends.
const FLUSH: Duration = Duration::from_secs(2);

/// What the clerk has learnt. Ranks are named by their numbers on this machine.
pub(crate) enum News {
    /// The process that is to be started for a rank has a number.
    Numbered { local_rank: usize, incarnation: u64 },
    /// A generation went on without this living process.
    Expelled {
        local_rank: usize,
        incarnation: u64,
        generation: u64,
    },
    /// A rank of another machine has ended well.
    Finished,
    /// The launcher of another machine has given up.
    GivenUp(String),
    /// Nothing more will be heard.
    StoreLost(String),
}

enum Order {
    Number(usize),
    NoteEnd { local_rank: usize, incarnation: u64 },
    Finish,
    GiveUp(String),
}

/// The supervisor's end.
pub(crate) struct Clerk {
    orders: Sender<Order>,
    ended: Receiver<Infallible>,
}

impl Clerk {
    /// A clerk at the store of `address`, for the ranks of this machine, which are numbered from
    /// `first_rank` over all machines.
    pub(crate) fn start(
        (host, port): &(String, u16),
        access: StoreAccess,
        first_rank: usize,
        events: Sender<Event>,
    ) -> io::Result<Self> {
        let address = match host.contains(':') {
            true => format!("[{host}]:{port}"),
            false => format!("{host}:{port}"),
        };
        let options = StoreOptions::new(access);
        let (orders, inbox) = mpsc::channel();
        let (alive, ended) = mpsc::channel();
        thread::Builder::new().name("clerk".into()).spawn(move || {
            let work = TcpStore::connect(&address, options).and_then(|store| {
                let desk = Desk {
                    overseer: Overseer::new(Arc::new(store)),
                    first_rank,
                    processes: BTreeMap::new(),
                    knows_the_end: false,
                    events: events.clone(),
                };
                desk.work(&inbox)
            });
            if let Err(error) = work {
                let _ = events.send(Event::News(News::StoreLost(error.to_string())));
            }
            drop::<Sender<Infallible>>(alive);
        })?;
        Ok(Self { orders, ended })
    }

    /// Asks for a number for the next process of a rank: [`News::Numbered`] brings it.
    pub(crate) fn number(&self, local_rank: usize) {
        self.order(Order::Number(local_rank));
    }

    pub(crate) fn note_end(&self, local_rank: usize, incarnation: u64) {
        self.order(Order::NoteEnd {
            local_rank,
            incarnation,
        });
    }

    pub(crate) fn finish(&self) {
        self.order(Order::Finish);
    }

    pub(crate) fn give_up(&self, reason: &str) {
        self.order(Order::GiveUp(reason.to_owned()));
    }

    /// A clerk that has lost the store has said so, and takes no orders.
    fn order(&self, order: Order) {
        let _ = self.orders.send(order);
    }

    /// Lets the clerk carry out its orders, and takes leave of the store.
    pub(crate) fn close(self) {
        drop(self.orders);
        // Disconnected, which is what is waited for, once the thread has ended.
        let _ = self.ended.recv_timeout(FLUSH);
    }
}

/// A process of this machine, from its number to its end.
struct Process {
    incarnation: u64,
    was_member: bool,
    missed: u32,
}

/// The clerk's own end.
struct Desk {
    overseer: Overseer,
    first_rank: usize,
    /// By local rank.
    processes: BTreeMap<usize, Process>,
    /// The supervisor knows that the job has finished or was given up.
    knows_the_end: bool,
    events: Sender<Event>,
}

impl Desk {
    fn work(mut self, orders: &Receiver<Order>) -> Result<(), StoreError> {
        let mut next_look = Instant::now();
        loop {
            match orders.recv_timeout(next_look.saturating_duration_since(Instant::now())) {
                Ok(order) => self.obey(order)?,
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
                Err(RecvTimeoutError::Timeout) => {
                    self.look()?;
                    next_look = Instant::now() + LOOK;
                }
            }
        }
    }

    fn obey(&mut self, order: Order) -> Result<(), StoreError> {
        match order {
            Order::Number(local_rank) => {
                let slot = self.first_rank + local_rank;
                let incarnation = self.overseer.next_incarnation(slot)?;
                if incarnation > 1 {
                    // A launcher that died could not say that its ranks died with it.
                    self.overseer.note_end(slot, incarnation - 1)?;
                }
                let process = Process {
                    incarnation,
                    was_member: false,
                    missed: 0,
                };
                self.processes.insert(local_rank, process);
                self.tell(News::Numbered {
                    local_rank,
                    incarnation,
                });
                Ok(())
            }
            Order::NoteEnd {
                local_rank,
                incarnation,
            } => {
                self.processes.remove(&local_rank);
                self.overseer
                    .note_end(self.first_rank + local_rank, incarnation)
            }
            Order::Finish => {
                self.knows_the_end = true;
                self.overseer.finish()
            }
            Order::GiveUp(reason) => {
                self.knows_the_end = true;
                self.overseer.give_up(&reason)
            }
        }
    }

    fn look(&mut self) -> Result<(), StoreError> {
        if !self.knows_the_end {
            if self.overseer.is_finished()? {
                self.knows_the_end = true;
                self.tell(News::Finished);
            } else if let Some(reason) = self.overseer.given_up()? {
                self.knows_the_end = true;
                self.tell(News::GivenUp(reason));
            }
        }
        let Some(newest) = self.overseer.newest()? else {
            return Ok(());
        };
        let mut expelled = Vec::new();
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
            let joined = self.overseer.joined(newest.number + 1, slot)?;
            let waits = joined.is_some_and(|it| it.incarnation == process.incarnation);
            process.missed = if waits { 0 } else { process.missed + 1 };
            if process.missed == MISSED_LOOKS {
                expelled.push(News::Expelled {
                    local_rank,
                    incarnation: process.incarnation,
                    generation: newest.number,
                });
            }
        }
        for news in expelled {
            self.tell(news);
        }
        Ok(())
    }

    /// Nobody listens any more when the launcher ends.
    fn tell(&self, news: News) {
        let _ = self.events.send(Event::News(news));
    }
}
