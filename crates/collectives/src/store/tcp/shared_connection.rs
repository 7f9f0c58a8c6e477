//! A connection shared by several threads, which use it one at a time.

use std::sync::{Condvar, Mutex, PoisonError};

use super::connection::{Connection, Deadline};
use crate::sync::lock;

/// A connection with a lock that has a deadline.
#[derive(Debug)]
pub(super) struct SharedConnection {
    slot: Mutex<Slot>,
    freed: Condvar,
}

#[derive(Debug)]
struct Slot {
    in_use: bool,
    /// The number of waiting threads. Without any, a release needs no system call.
    waiting: usize,
    /// `None` after a fault, until the next user has reconnected.
    connection: Option<Connection>,
}

/// Exclusive use of the connection; dropping it releases the connection.
#[derive(Debug)]
pub(super) struct ConnectionGuard<'a> {
    shared: &'a SharedConnection,
    pub(super) connection: Option<Connection>,
}

impl SharedConnection {
    pub(super) fn new(connection: Connection) -> Self {
        Self {
            slot: Mutex::new(Slot {
                in_use: false,
                waiting: 0,
                connection: Some(connection),
            }),
            freed: Condvar::new(),
        }
    }

    /// Waits for the connection; `None` when the deadline passes first.
    pub(super) fn acquire(&self, deadline: Deadline) -> Option<ConnectionGuard<'_>> {
        let mut slot = lock(&self.slot);
        if slot.in_use {
            slot.waiting += 1;
            let in_use = |slot: &mut Slot| slot.in_use;
            let waited = self
                .freed
                .wait_timeout_while(slot, deadline.left(), in_use)
                .unwrap_or_else(PoisonError::into_inner);
            slot = waited.0;
            slot.waiting -= 1;
        }
        if slot.in_use {
            return None;
        }
        slot.in_use = true;
        Some(ConnectionGuard {
            shared: self,
            connection: slot.connection.take(),
        })
    }
}

impl Drop for ConnectionGuard<'_> {
    fn drop(&mut self) {
        let mut slot = lock(&self.shared.slot);
        slot.in_use = false;
        // After a panic part of a reply may be unread.
        let connection = self.connection.take();
        slot.connection = connection.filter(|_| !std::thread::panicking());
        let awaited = slot.waiting > 0;
        drop(slot);
        if awaited {
            self.shared.freed.notify_one();
        }
    }
}
