//! Which launcher has the number of a machine.
//!
//! A launcher that has the number writes who it is to the store, with a count that it raises once a second. A launcher
//! that finds another there reads until the count has changed, which only a launcher that lives does, or has stood still
//! for [`SILENT_LOOKS`] reads: that launcher was killed, and its place is free. Every write is a compare-and-set, so that
//! one launcher at most has the place, and one that was stopped for long learns that another has it now.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::keys;
use crate::rendezvous::ProcessIdentity;
use crate::store::{SharedStore, StoreError, entry};

/// A launcher whose count is the same in this many reads is dead. Reads are counted, not time: while the store does not
/// answer, nobody's count changes.
const SILENT_LOOKS: u32 = 8;

/// How often a launcher that has its place raises its count.
const HOLDING: Duration = Duration::from_secs(1);

/// How often a launcher that waits for its place reads the other's count. With [`SILENT_LOOKS`] it is several times
/// [`HOLDING`].
const WAITING: Duration = Duration::from_millis(500);

/// What the store has for a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Holder {
    launcher: ProcessIdentity,
    count: u64,
}

/// What a launcher has found out about its place.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::elastic::PlaceState;
///
/// assert_ne!(PlaceState::Held, PlaceState::Waiting);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlaceState {
    /// It has the place.
    Held,
    /// Another launcher had it last, and may be dead.
    Waiting,
    /// Another launcher has it, and lives.
    Taken(ProcessIdentity),
}

/// The place of a launcher among those of a job.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use std::sync::Arc;
/// use everburn::collectives::elastic::{LauncherPlace, PlaceState};
/// use everburn::collectives::store::{HashStore, SharedStore};
///
/// let store: SharedStore = Arc::new(HashStore::new());
/// let mut first = LauncherPlace::new(store.clone(), 1);
/// let mut second = LauncherPlace::new(store, 1);
/// assert_eq!(first.look()?, PlaceState::Held);
/// assert_eq!(second.look()?, PlaceState::Waiting);
/// assert_eq!(first.look()?, PlaceState::Held);
/// assert!(matches!(second.look()?, PlaceState::Taken(_)));
/// # Ok::<(), everburn_collectives::store::StoreError>(())
/// ```
#[derive(Debug)]
pub struct LauncherPlace {
    store: SharedStore,
    key: String,
    own: Holder,
    is_held: bool,
    /// What another launcher has written, and in how many reads in a row.
    seen: Option<(Vec<u8>, u32)>,
}

impl LauncherPlace {
    /// The place of machine `node`, which this process does not have yet.
    #[must_use]
    pub fn new(store: SharedStore, node: usize) -> Self {
        let launcher = ProcessIdentity::here();
        Self {
            store,
            key: keys::launcher_place(node),
            own: Holder { launcher, count: 0 },
            is_held: false,
            seen: None,
        }
    }

    /// Takes the place if it is free, keeps it if it is this launcher's, and finds out whether another launcher lives. Call it
    /// every [`interval`](Self::interval).
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be reached or its data are malformed.
    pub fn look(&mut self) -> Result<PlaceState, StoreError> {
        let mut expected = match self.is_held {
            true => entry::written("hold", &self.own)?,
            false => Vec::new(),
        };
        // Where a write went through whose answer was lost, or the key has vanished, the second try says what is so.
        for _ in 0..2 {
            let next = Holder {
                count: self.own.count + 1,
                ..self.own.clone()
            };
            let bytes = entry::written("hold", &next)?;
            let there = self.store.compare_set(&self.key, &expected, &bytes)?;
            if there == bytes {
                (self.own, self.is_held) = (next, true);
                return Ok(PlaceState::Held);
            }
            if there == expected {
                expected = Vec::new();
                continue;
            }
            let other: Holder = entry::read(&self.key, &there)?;
            if other.launcher == self.own.launcher {
                (self.own, expected) = (other, there);
                continue;
            }
            return self.look_at(there, other.launcher);
        }
        Ok(PlaceState::Waiting)
    }

    /// Another launcher has written `there`.
    fn look_at(
        &mut self,
        there: Vec<u8>,
        other: ProcessIdentity,
    ) -> Result<PlaceState, StoreError> {
        let looks = match &self.seen {
            _ if self.is_held => return Ok(PlaceState::Taken(other)),
            None => 1,
            Some((seen, looks)) if *seen == there => looks + 1,
            Some(_) => return Ok(PlaceState::Taken(other)),
        };
        if looks < SILENT_LOOKS {
            self.seen = Some((there, looks));
            return Ok(PlaceState::Waiting);
        }
        let bytes = entry::written("hold", &self.own)?;
        self.is_held = self.store.compare_set(&self.key, &there, &bytes)? == bytes;
        Ok(match self.is_held {
            true => PlaceState::Held,
            // It has moved at the last moment, or has left: the next look says which.
            false => PlaceState::Waiting,
        })
    }

    /// The time to the next [`look`](Self::look).
    #[must_use]
    pub fn interval(&self) -> Duration {
        match self.is_held {
            true => HOLDING,
            false => WAITING,
        }
    }

    /// Leaves the place, if this launcher has it, so that the next one need not wait.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be reached.
    pub fn leave(&self) -> Result<(), StoreError> {
        match self.is_held {
            true => self.store.delete(&self.key).map(drop),
            false => Ok(()),
        }
    }
}
