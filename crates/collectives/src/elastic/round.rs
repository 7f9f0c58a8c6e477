//! A round that has closed with this process in it.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use everburn_auth::Key;

use super::keys;
use super::member::Member;
use super::round_store::RoundStore;
use crate::rendezvous::Rendezvous;
use crate::store::{PrefixStore, SharedStore};

/// A round that has closed with this process in it.
#[derive(Debug, Clone)]
pub struct Round {
    /// The generation, from 1.
    pub generation: u64,
    /// This process's rank in it.
    pub rank: usize,
    /// All members by rank, the same on every one of them.
    pub members: Vec<Member>,
    pub(super) store: SharedStore,
    pub(super) local_address: IpAddr,
    pub(super) timeout: Duration,
    pub(super) key: Option<Key>,
}

impl Round {
    /// How many members there are.
    #[must_use]
    pub fn world_size(&self) -> usize {
        self.members.len()
    }

    /// This process as a member.
    #[must_use]
    pub fn this_member(&self) -> &Member {
        &self.members[self.rank]
    }

    /// What the group of this generation is built from:
    /// [`ProcessGroup::connect`](crate::group::ProcessGroup::connect) takes it.
    ///
    /// Its store is a part of the job's that belongs to this generation alone. Waiting there fails at once
    /// with [`StoreError::RoundBroken`](crate::store::StoreError::RoundBroken) when a member has ended or has
    /// gone on to the next round: connecting does not wait for the dead.
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
            local_address: self.local_address,
            timeout: self.timeout,
            key: self.key.clone(),
        }
    }
}
