//! The clients whose reply is deferred until keys exist.

use std::collections::HashSet;
use std::sync::Arc;

use super::{ClientId, Contents, Refusal};

/// A key that clients wait for: one allocation for all who wait in one request.
pub(super) type Awaited = Arc<[u8]>;

/// What a key that a client waits for costs beside its bytes, roughly: it is in three tables.
const WAIT_OVERHEAD: usize = 256;

/// What a client's one deferred reply depends on.
#[derive(Debug)]
pub(super) struct Waiting {
    /// Keys that have not been touched since the client began to wait.
    pub(super) missing: HashSet<Awaited>,
    /// Keys that must all exist in the end.
    all: Vec<Awaited>,
    /// What the wait takes from the budget.
    cost: usize,
}

impl Contents {
    /// Registers the client for all keys, each once. At least one is missing.
    pub(super) fn begin_to_wait(
        &mut self,
        client: ClientId,
        keys: &[&[u8]],
    ) -> Result<(), Refusal> {
        let mut keys = keys.to_vec();
        keys.sort_unstable();
        keys.dedup();
        let cost = keys.iter().map(|key| wait_cost(key)).sum();
        self.charge(cost, 0)?;
        let all = keys.into_iter().map(Into::into).collect();
        self.wait_for_missing(client, all, cost);
        Ok(())
    }

    /// Registers the client for the keys that are missing; false where none is.
    fn wait_for_missing(&mut self, client: ClientId, all: Vec<Awaited>, cost: usize) -> bool {
        let missing: HashSet<Awaited> = all
            .iter()
            .filter(|key| !self.exists(key))
            .cloned()
            .collect();
        if missing.is_empty() {
            return false;
        }
        self.register(client, missing, all, cost);
        true
    }

    pub(super) fn register(
        &mut self,
        client: ClientId,
        missing: HashSet<Awaited>,
        all: Vec<Awaited>,
        cost: usize,
    ) {
        for key in &missing {
            let waiters = self.waiters.entry(Arc::clone(key));
            waiters.or_default().push(client);
        }
        let waiting = Waiting { missing, all, cost };
        self.waiting.insert(client, waiting);
    }

    pub(super) fn wake_all(&mut self, key: &[u8], woken: &mut Vec<ClientId>) {
        for client in self.waiters.remove(key).unwrap_or_default() {
            self.key_appeared(client, key, woken);
        }
    }

    pub(super) fn key_appeared(&mut self, client: ClientId, key: &[u8], woken: &mut Vec<ClientId>) {
        self.leave_queue_of(client, key);
        let Some(waiting) = self.waiting.get_mut(&client) else {
            return;
        };
        waiting.missing.remove(key);
        if !waiting.missing.is_empty() {
            return;
        }
        // A key that came first may have been deleted meanwhile: all must exist at one time.
        if let Some(waiting) = self.waiting.remove(&client)
            && !self.wait_for_missing(client, waiting.all, waiting.cost)
        {
            self.held_bytes -= waiting.cost;
            woken.push(client);
        }
    }

    fn leave_queue_of(&mut self, client: ClientId, key: &[u8]) {
        if let Some(waiters) = self.waiters.get_mut(key) {
            waiters.retain(|&other| other != client);
            if waiters.is_empty() {
                self.waiters.remove(key);
            }
        }
    }

    /// Drops what a client was waiting for, which has gone away or calls the wait off.
    pub(in crate::store::tcp) fn forget(&mut self, client: ClientId) {
        let Some(waiting) = self.waiting.remove(&client) else {
            return;
        };
        self.held_bytes -= waiting.cost;
        for key in waiting.missing {
            self.leave_queue_of(client, &key);
        }
    }
}

pub(super) const fn wait_cost(key: &[u8]) -> usize {
    key.len() + WAIT_OVERHEAD
}
