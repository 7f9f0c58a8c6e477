//! The store of a rank that has joined, which takes leave when it is dropped.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::join::left_key;
use crate::store::{PrefixStore, SharedStore, Store, StoreView, TcpStoreServer};
use crate::sync::lock;

/// How long a host that ends waits for ranks that still use its store.
const OTHERS_FINISH: Duration = Duration::from_secs(3);

/// How long saying good-bye to a store may take.
const LEAVE: Duration = Duration::from_secs(2);

/// A server in this process, which outlives this rank's use of it a little.
#[derive(Debug)]
pub(super) struct Host(pub(super) TcpStoreServer);

impl Drop for Host {
    fn drop(&mut self) {
        if !self.0.wait_until_unused(OTHERS_FINISH) {
            tracing::warn!(
                "rank 0 ends while {} connections to its store are open",
                self.0.connections()
            );
        }
    }
}

/// A store as a rank uses it. The order of the fields is the order in which they are dropped:
/// this rank's connections close before its server, if it hosts one, waits for the others'.
#[derive(Debug)]
pub(super) struct RankStore {
    store: SharedStore,
    /// The rank to be marked as gone when this is dropped.
    claimed: Mutex<Option<usize>>,
    host: Option<Host>,
}

impl RankStore {
    /// The part of `store` below `prefix`.
    pub(super) fn new(store: SharedStore, prefix: Option<String>, host: Option<Host>) -> Self {
        Self {
            store: match prefix {
                Some(prefix) => Arc::new(PrefixStore::new(prefix, store)),
                None => store,
            },
            claimed: Mutex::new(None),
            host,
        }
    }

    /// Notes that this process is `rank` until it drops the store.
    pub(super) fn claim(&self, rank: usize) {
        *lock(&self.claimed) = Some(rank);
    }
}

impl Drop for RankStore {
    fn drop(&mut self) {
        // A store that ends with its host need not remember who has left.
        if self.host.is_some() {
            return;
        }
        let Some(rank) = lock(&self.claimed).take() else {
            return;
        };
        if let Err(error) = self.store.add_within(&left_key(rank), 1, LEAVE) {
            // The host has gone first, which is no fault.
            tracing::debug!("rank {rank} could not report that it leaves: {error}");
        }
    }
}

impl StoreView for RankStore {
    fn below(&self) -> &dyn Store {
        &*self.store
    }
}
