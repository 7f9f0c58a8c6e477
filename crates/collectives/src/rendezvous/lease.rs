//! Leases of what one process alone may be: a rank of a number, or the launcher of a machine.
//!
//! The holder of a lease writes who it is to the store, with a count that it raises once a second. A process that
//! finds another there reads until the count has changed, which only a process that lives does, or has stood still for
//! [`SILENT_LOOKS`] reads: that process was killed, and its lease is free. Where both are on one machine, the system says
//! whether the other lives: the lease of a dead process is free at once, and one that is stopped keeps its own. Every write
//! is a compare-and-set, so that one process at most has the lease, and one that was stopped for long learns that another
//! has it now.

use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{ProcessIdentity, StartedRank};
use crate::store::{Store, StoreError, entry};

/// A process whose count is the same in this many reads is dead. Reads are counted, not time: while the store does not
/// answer, nobody's count changes.
const SILENT_LOOKS: u32 = 8;

/// How often a process that has its lease raises its count.
const HOLDING: Duration = Duration::from_secs(1);

/// How often a process that waits for its lease reads the other's count. With [`SILENT_LOOKS`] it is several times
/// [`HOLDING`].
const WAITING: Duration = Duration::from_millis(500);

/// This many processes that raise their counts every [`HOLDING`] are no burden to the store. More do it less often.
const OFTEN_FOR: usize = 256;

/// What is written of the holder of a lease.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::elastic::Holding;
/// use everburn::collectives::rendezvous::ProcessIdentity;
///
/// let here = ProcessIdentity::here();
/// assert_eq!(here.process(), &here);
/// ```
pub trait Holding: Clone + PartialEq + Serialize + DeserializeOwned {
    /// The process.
    fn process(&self) -> &ProcessIdentity;
}

impl Holding for ProcessIdentity {
    fn process(&self) -> &ProcessIdentity {
        self
    }
}

impl Holding for StartedRank {
    fn process(&self) -> &ProcessIdentity {
        &self.process
    }
}

/// What the store has for a lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Holder<H> {
    pub(crate) holder: H,
    /// How often it has looked, from 1.
    pub(crate) count: u64,
}

/// What a process has found out about its lease.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::elastic::LeaseState;
///
/// let held: LeaseState = LeaseState::Held;
/// assert_ne!(held, LeaseState::Waiting);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseState<H = ProcessIdentity> {
    /// It has the lease.
    Held,
    /// Another process had it last, and may be dead.
    Waiting,
    /// Another process has it, and lives.
    Taken(H),
}

/// What one process alone may be, and has to renew: the launcher of a machine, or a rank of a number.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::elastic::{Lease, LeaseState};
/// use everburn::collectives::store::HashStore;
///
/// let store = HashStore::new();
/// let (mut first, mut second) = (Lease::of_launcher(1), Lease::of_launcher(1));
/// assert_eq!(first.look(&store)?, LeaseState::Held);
/// assert_ne!(second.look(&store)?, LeaseState::Held);
/// # Ok::<(), everburn_collectives::store::StoreError>(())
/// ```
#[derive(Debug)]
pub struct Lease<H = ProcessIdentity> {
    key: String,
    own: Holder<H>,
    is_held: bool,
    /// What another process has written, and in how many reads in a row.
    seen: Option<(Vec<u8>, u32)>,
    /// How many times less often it looks.
    factor: u32,
}

impl<H: Holding> Lease<H> {
    /// The lease at `key`, one of `leases`, which `holder` does not have yet.
    pub(crate) fn new(key: String, holder: H, leases: usize) -> Self {
        let factor = leases.div_ceil(OFTEN_FOR).max(1);
        Self {
            key,
            own: Holder { holder, count: 0 },
            is_held: false,
            seen: None,
            factor: u32::try_from(factor).unwrap_or(u32::MAX),
        }
    }

    /// Takes the lease if it is free, keeps it if it is this process's, and finds out whether another process lives. Call it
    /// every [`interval`](Self::interval).
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be reached or its data are malformed.
    pub fn look(&mut self, store: &dyn Store) -> Result<LeaseState<H>, StoreError> {
        let mut expected = match self.is_held {
            true => entry::written("hold", &self.own)?,
            false => Vec::new(),
        };
        // Where a write went through whose answer was lost, or the key has vanished, the second try says what is so.
        for _ in 0..2 {
            let Some(there) = self.write(store, &expected)? else {
                return Ok(LeaseState::Held);
            };
            if there == expected {
                expected = Vec::new();
                continue;
            }
            let other: Holder<H> = entry::read(&self.key, &there)?;
            if other.holder == self.own.holder {
                (self.own, expected) = (other, there);
                continue;
            }
            return self.look_at(store, there, other.holder);
        }
        Ok(LeaseState::Waiting)
    }

    /// Another process has written `there`.
    fn look_at(
        &mut self,
        store: &dyn Store,
        there: Vec<u8>,
        other: H,
    ) -> Result<LeaseState<H>, StoreError> {
        let is_alive = other.process().is_alive();
        let looks = match &self.seen {
            _ if self.is_held => return Ok(LeaseState::Taken(other)),
            _ if is_alive == Some(false) => SILENT_LOOKS,
            None => 1,
            Some((seen, looks)) if *seen == there => looks + 1,
            Some(_) => return Ok(LeaseState::Taken(other)),
        };
        if looks < SILENT_LOOKS {
            // One that lives may be dying: it is taken for alive once it has shown that.
            self.seen = Some((there, looks));
            return Ok(LeaseState::Waiting);
        }
        if is_alive == Some(true) {
            return Ok(LeaseState::Taken(other));
        }
        Ok(match self.write(store, &there)? {
            None => LeaseState::Held,
            // It has moved at the last moment, or has left: the next look says which.
            Some(_) => LeaseState::Waiting,
        })
    }

    /// Writes this process with the next count where `expected` is; returns what is there instead.
    fn write(&mut self, store: &dyn Store, expected: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let next = Holder {
            count: self.own.count + 1,
            ..self.own.clone()
        };
        let bytes = entry::written("hold", &next)?;
        let there = store.compare_set(&self.key, expected, &bytes)?;
        if there != bytes {
            return Ok(Some(there));
        }
        (self.own, self.is_held) = (next, true);
        Ok(None)
    }

    /// The time to the next [`look`](Self::look).
    #[must_use]
    pub fn interval(&self) -> Duration {
        self.factor
            * match self.is_held {
                true => HOLDING,
                false => WAITING,
            }
    }

    /// Gives the lease up, if this process has it, so that the next one need not wait.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be reached.
    pub fn leave(&self, store: &dyn Store) -> Result<(), StoreError> {
        match self.is_held {
            true => store.delete(&self.key).map(drop),
            false => Ok(()),
        }
    }
}
