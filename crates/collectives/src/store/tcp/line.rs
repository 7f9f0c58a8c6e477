//! The connection that many threads share, one at a time.

use std::sync::{Condvar, Mutex, PoisonError};

use super::connection::{Connection, Deadline};

/// A connection that one thread at a time holds. A plain lock would do but for the deadline.
#[derive(Debug)]
pub(super) struct Line {
    slot: Mutex<Slot>,
    freed: Condvar,
}

#[derive(Debug)]
struct Slot {
    held: bool,
    /// Threads that wait for it: mostly none, and then a call to the system to wake nobody is saved,
    /// once a request.
    waiting: usize,
    /// `None` after a fault, until the next holder has connected anew.
    connection: Option<Connection>,
}

/// The connection while a thread holds it; dropping it hands it to the next.
#[derive(Debug)]
pub(super) struct Held<'a> {
    line: &'a Line,
    pub(super) connection: Option<Connection>,
}

impl Line {
    pub(super) fn new(connection: Connection) -> Self {
        Self {
            slot: Mutex::new(Slot {
                held: false,
                waiting: 0,
                connection: Some(connection),
            }),
            freed: Condvar::new(),
        }
    }

    /// Waits for the connection; `None` when the deadline passes first.
    pub(super) fn hold(&self, deadline: Deadline) -> Option<Held<'_>> {
        let mut slot = self.slot.lock().unwrap_or_else(PoisonError::into_inner);
        if slot.held {
            slot.waiting += 1;
            let held = |slot: &mut Slot| slot.held;
            let waited = self
                .freed
                .wait_timeout_while(slot, deadline.left(), held)
                .unwrap_or_else(PoisonError::into_inner);
            slot = waited.0;
            slot.waiting -= 1;
        }
        if slot.held {
            return None;
        }
        slot.held = true;
        Some(Held {
            line: self,
            connection: slot.connection.take(),
        })
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let slot = self.line.slot.lock();
        let mut slot = slot.unwrap_or_else(PoisonError::into_inner);
        slot.held = false;
        // A panic may have come in the middle of a reply.
        let connection = self.connection.take();
        slot.connection = connection.filter(|_| !std::thread::panicking());
        let awaited = slot.waiting > 0;
        drop(slot);
        if awaited {
            self.line.freed.notify_one();
        }
    }
}
