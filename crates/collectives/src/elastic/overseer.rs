//! The launchers' part: who was started, who has ended, and whether it goes on.

use super::keys;
use super::member::{Generation, Member};
use super::membership::LONGEST_REASON;
use super::sight::joined_by;
use crate::printable;
use crate::store::{SharedStore, StoreError};

/// A launcher's part in an elastic job. Several launchers share one store; each speaks for its own slots.
///
/// ```
/// use std::sync::Arc;
/// use everburn_collectives::elastic::Overseer;
/// use everburn_collectives::store::HashStore;
///
/// let overseer = Overseer::new(Arc::new(HashStore::new()));
/// assert_eq!(overseer.next_incarnation(3)?, 1);
/// overseer.note_end(3, 1)?;
/// assert_eq!(overseer.next_incarnation(3)?, 2);
/// assert!(!overseer.is_finished()?);
/// # Ok::<(), everburn_collectives::store::StoreError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Overseer {
    store: SharedStore,
}

impl Overseer {
    /// A part in the job whose ranks meet at `store`.
    #[must_use]
    pub fn new(store: SharedStore) -> Self {
        Self { store }
    }

    /// Numbers the process that is about to be started for `slot`.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be reached.
    pub fn next_incarnation(&self, slot: usize) -> Result<u64, StoreError> {
        let key = keys::incarnation(slot);
        let number = self.store.add(&key, 1)?;
        u64::try_from(number).map_err(|_| keys::unreadable(&key, "a negative counter"))
    }

    /// Says that process `incarnation` of `slot` has ended, so that nobody waits for it. Say it once the
    /// process is reaped, and before the next one is numbered.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be reached.
    pub fn note_end(&self, slot: usize, incarnation: u64) -> Result<(), StoreError> {
        self.store
            .set(&keys::ended(slot), incarnation.to_string().as_bytes())
    }

    /// Says that a rank has ended well: who joins from now on is told that the job has finished.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be reached.
    pub fn finish(&self) -> Result<(), StoreError> {
        self.store.set(&keys::finished(), b"1")
    }

    /// Says that ranks are not restarted any more; who joins from now on fails with `reason`.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be reached.
    pub fn give_up(&self, reason: &str) -> Result<(), StoreError> {
        self.store.set(&keys::given_up(), reason.as_bytes())
    }

    /// Whether a rank has ended well, on any machine.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be reached.
    pub fn is_finished(&self) -> Result<bool, StoreError> {
        self.store.check(&[&keys::finished()])
    }

    /// Why a launcher has given up, if one has.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be reached.
    pub fn given_up(&self) -> Result<Option<String>, StoreError> {
        let reason = self.store.try_get(&keys::given_up())?;
        Ok(reason.map(|reason| printable(&String::from_utf8_lossy(&reason), LONGEST_REASON)))
    }

    /// The generation that closed last.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be reached or holds what cannot be read.
    pub fn newest(&self) -> Result<Option<Generation>, StoreError> {
        Ok(Generation::newest(&*self.store)?.map(|(newest, _)| newest))
    }

    /// Who has joined the round of `generation` for `slot`, if anybody has.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be reached or holds what cannot be read.
    pub fn joined(&self, generation: u64, slot: usize) -> Result<Option<Member>, StoreError> {
        joined_by(&*self.store, generation, slot)
    }
}
