//! Which launcher has the number of a machine.

use std::time::Duration;

use super::keys;
use crate::rendezvous::ProcessIdentity;
use crate::rendezvous::place::{Place, PlaceState};
use crate::store::{SharedStore, StoreError};

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
/// assert_ne!(second.look()?, PlaceState::Held);
/// # Ok::<(), everburn_collectives::store::StoreError>(())
/// ```
#[derive(Debug)]
pub struct LauncherPlace {
    store: SharedStore,
    place: Place<ProcessIdentity>,
}

impl LauncherPlace {
    /// The place of machine `node`, which this process does not have yet.
    #[must_use]
    pub fn new(store: SharedStore, node: usize) -> Self {
        Self::of(store, node, ProcessIdentity::here())
    }

    /// The same for another process.
    pub(super) fn of(store: SharedStore, node: usize, launcher: ProcessIdentity) -> Self {
        let place = Place::new(keys::launcher_place(node), launcher, 1);
        Self { store, place }
    }

    /// Takes the place if it is free or its launcher is dead, keeps it if it is this launcher's, and finds out whether another
    /// launcher lives: at once where that is one of this machine. Call it every [`interval`](Self::interval).
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be reached or its data are malformed.
    pub fn look(&mut self) -> Result<PlaceState, StoreError> {
        self.place.look(&*self.store)
    }

    /// The time to the next [`look`](Self::look).
    #[must_use]
    pub fn interval(&self) -> Duration {
        self.place.interval()
    }

    /// Leaves the place, if this launcher has it, so that the next one need not wait.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be reached.
    pub fn leave(&self) -> Result<(), StoreError> {
        self.place.leave(&*self.store)
    }
}
