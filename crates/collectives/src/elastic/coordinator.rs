//! The launcher's side of an elastic job: started and ended processes, and the end of the job.

use everburn_record::plain;

use super::keys;
use super::member::{Generation, Member};
use super::membership::LONGEST_REASON;
use super::round_view::joined_by;
use crate::rendezvous::ProcessIdentity;
use crate::rendezvous::lease::Lease;
use crate::store::{SharedStore, StoreError, entry};

/// What [`MembershipCoordinator::news`] has read.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use std::sync::Arc;
/// use everburn::collectives::elastic::{MembershipCoordinator, News};
/// use everburn::collectives::store::HashStore;
///
/// let coordinator = MembershipCoordinator::new(Arc::new(HashStore::new()));
/// assert_eq!(coordinator.news(0)?, News::default());
/// # Ok::<(), everburn_collectives::store::StoreError>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct News {
    /// A rank has finished, on any machine.
    pub is_finished: bool,
    /// The reason of a launcher that has given up.
    pub given_up: Option<String>,
    /// The launcher that was asked to stop the job, and how.
    pub stop_requested: Option<String>,
    /// The rank that was refused last, and why: it was started with other settings than the job.
    pub refused: Option<String>,
    /// The generation after the one that was asked about has formed.
    pub next_has_formed: bool,
}

/// Records the processes of a launcher's slots in the store. Several launchers share one store; each is
/// responsible for its own slots.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use std::sync::Arc;
/// use everburn::collectives::elastic::MembershipCoordinator;
/// use everburn::collectives::store::HashStore;
///
/// let coordinator = MembershipCoordinator::new(Arc::new(HashStore::new()));
/// assert_eq!(coordinator.next_incarnation(3)?, 1);
/// coordinator.note_end(3, 1)?;
/// assert_eq!(coordinator.next_incarnation(3)?, 2);
/// assert!(!coordinator.news(0)?.is_finished);
/// # Ok::<(), everburn_collectives::store::StoreError>(())
/// ```
#[derive(Debug, Clone)]
pub struct MembershipCoordinator {
    store: SharedStore,
}

impl MembershipCoordinator {
    /// A coordinator of the job whose ranks share `store`.
    #[must_use]
    pub fn new(store: SharedStore) -> Self {
        Self { store }
    }

    /// The incarnation number of the next process of `slot`. Call it before the process is started.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be reached.
    pub fn next_incarnation(&self, slot: usize) -> Result<u64, StoreError> {
        let key = keys::incarnation(slot);
        let number = self.store.add(&key, 1)?;
        u64::try_from(number).map_err(|_| entry::unreadable(&key, "a negative counter"))
    }

    /// Records that process `incarnation` of `slot` has ended, so that rounds do not wait for it. Call it
    /// after the process was reaped and before the next one is numbered.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be reached.
    pub fn note_end(&self, slot: usize, incarnation: u64) -> Result<(), StoreError> {
        self.store
            .set(&keys::ended(slot), incarnation.to_string().as_bytes())
    }

    /// Records that a rank has finished: later joins fail with
    /// [`ElasticError::Finished`](super::ElasticError::Finished).
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be reached.
    pub fn finish(&self) -> Result<(), StoreError> {
        self.store.set(&keys::finished(), b"1")
    }

    /// Records that ranks are not restarted any more: later joins fail with `reason`.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be reached.
    pub fn give_up(&self, reason: &str) -> Result<(), StoreError> {
        self.store.set(&keys::given_up(), reason.as_bytes())
    }

    /// Records that a launcher was asked to stop the job, so that those of other machines stop, too; `by` says which and how.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be reached.
    pub fn request_stop(&self, by: &str) -> Result<(), StoreError> {
        self.store.set(&keys::stop_requested(), by.as_bytes())
    }

    /// Records which rank was refused, and why, so that the launchers of other machines say so, too.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be reached.
    pub fn note_refusal(&self, text: &str) -> Result<(), StoreError> {
        self.store.set(&keys::refused(), text.as_bytes())
    }

    /// Records that the launcher of machine `node` has begun, for the first time or again.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be reached.
    pub fn launcher_begins(&self, node: usize) -> Result<(), StoreError> {
        self.store.delete(&keys::launcher_ended(node)).map(drop)
    }

    /// Records that the launcher of machine `node` has no ranks left and ends; whether it is the last one of `nodes`, so
    /// that nobody needs the store any more. Call it last.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be reached.
    pub fn launcher_ends(&self, node: usize, nodes: usize) -> Result<bool, StoreError> {
        self.store.set(&keys::launcher_ended(node), b"1")?;
        let all: Vec<String> = (0..nodes).map(keys::launcher_ended).collect();
        let ended = entry::values(&*self.store, &all)?;
        Ok(ended.iter().all(Option::is_some))
    }

    /// Whether anything is new to a launcher that has read `generation` last: one request for a few short keys, where
    /// the newest generation has the list of its members.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be reached.
    pub fn news(&self, generation: u64) -> Result<News, StoreError> {
        let next = keys::closed(generation.saturating_add(1));
        let keys = [
            keys::finished(),
            keys::given_up(),
            keys::stop_requested(),
            keys::refused(),
            next,
        ];
        let found = entry::values(&*self.store, &keys)?;
        let [finished, given_up, stop, refused, closed] =
            [0, 1, 2, 3, 4].map(|place| found[place].as_ref());
        let shown =
            |reason: &Vec<u8>| plain::line(&String::from_utf8_lossy(reason), LONGEST_REASON);
        Ok(News {
            is_finished: finished.is_some(),
            given_up: given_up.map(shown),
            stop_requested: stop.map(shown),
            refused: refused.map(shown),
            next_has_formed: closed.is_some(),
        })
    }

    /// The newest generation.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be reached or its data are malformed.
    pub fn newest(&self) -> Result<Option<Generation>, StoreError> {
        Ok(Generation::newest(&*self.store, None)?.map(|(newest, _)| newest))
    }

    /// The process of `slot` that has joined the round of `generation`, if any.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be reached or its data are malformed.
    pub fn joined(&self, generation: u64, slot: usize) -> Result<Option<Member>, StoreError> {
        joined_by(&*self.store, generation, slot)
    }
}

impl Lease {
    /// The lease of the launcher of machine `node`, which this process does not have yet.
    #[must_use]
    pub fn of_launcher(node: usize) -> Self {
        Self::new(keys::launcher_lease(node), ProcessIdentity::here(), 1)
    }
}
