//! A closed round, with this process as a member.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use everburn_auth::Key;

use super::keys;
use super::member::Member;
use super::round_store::RoundStore;
use crate::rendezvous::Rendezvous;
use crate::store::{PrefixStore, SharedStore};

/// A closed round, with this process as a member.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::elastic::Round;
/// use everburn::collectives::group::{CollectiveError, GroupOptions, ProcessGroup};
///
/// /// The process group of a round that `Membership::join` has returned.
/// fn connect(round: &Round) -> Result<ProcessGroup, CollectiveError> {
///     println!("rank {} of {}: {}", round.rank, round.world_size(), round.this_member());
///     ProcessGroup::connect(round.rendezvous(), GroupOptions::default())
/// }
/// ```
#[derive(Debug, Clone)]
pub struct Round {
    /// The generation, from 1.
    pub generation: u64,
    /// This process's rank in it.
    pub rank: usize,
    /// All members by rank, equal on all of them.
    pub members: Vec<Member>,
    pub(super) store: SharedStore,
    pub(super) local_address: IpAddr,
    pub(super) timeout: Duration,
    pub(super) key: Option<Key>,
}

impl Round {
    /// The number of members.
    #[must_use]
    pub fn world_size(&self) -> usize {
        self.members.len()
    }

    /// This process as a member.
    #[must_use]
    pub fn this_member(&self) -> &Member {
        &self.members[self.rank]
    }

    /// The rendezvous of this generation's group, for
    /// [`ProcessGroup::connect`](crate::group::ProcessGroup::connect).
    ///
    /// Its store is a key prefix of the job's store. A wait there fails at once with
    /// [`StoreError::RoundBroken`](crate::store::StoreError::RoundBroken) when a member has ended or has
    /// joined the next round.
    #[must_use]
    pub fn rendezvous(&self) -> Rendezvous {
        let this = self.this_member();
        let before = self.members.iter().take(self.rank);
        let own = PrefixStore::new(keys::group(self.generation), Arc::clone(&self.store));
        let store = RoundStore::new(own, self.generation, self.rank, self.members.clone());
        Rendezvous {
            store: Arc::new(store),
            rank: self.rank,
            world_size: self.world_size(),
            local_rank: before.filter(|member| member.node == this.node).count(),
            // Not of the ranks of this round.
            ranks_per_machine: None,
            local_address: self.local_address,
            timeout: self.timeout,
            key: self.key.clone(),
        }
    }
}
