//! What a server holds: values, queues, and the clients that wait. No sockets here.

use std::collections::{HashMap, HashSet, VecDeque};

use super::wire::{
    CHECK_NOT_READY, CHECK_READY, MAX_MESSAGE_BYTES, Request, STOP_WAITING, WAIT_CANCELED,
    put_string,
};
use crate::store::semantics::{self, CompareSet};
use crate::store::{MAX_KEY_BYTES, MAX_VALUE_BYTES};

/// Names a connection; never given twice.
pub(super) type ClientId = usize;

type Bytes = Vec<u8>;

/// What a key costs beside its bytes, roughly: without it, empty keys would be free.
const ENTRY_OVERHEAD: usize = 128;

/// A request that cannot be answered; the protocol has no error reply, so the connection closes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    #[error("the counter `{0}` cannot be moved: its value is no number or would overflow")]
    Counter(String),
    #[error("the value of `{0}` would grow beyond {MAX_VALUE_BYTES} bytes")]
    ValueTooLong(String),
    #[error("the store would hold more than {0} bytes")]
    Full(usize),
    #[error("the reply would have more than {MAX_MESSAGE_BYTES} bytes")]
    ReplyTooLong,
    #[error("a client that waits asked to wait again")]
    AlreadyWaiting,
    #[error("a handshake message after the handshake")]
    Handshake,
}

/// What a client's one deferred reply depends on.
#[derive(Debug)]
struct Waiting {
    /// Keys that have not been touched since the client began to wait.
    missing: HashSet<Bytes>,
    /// Keys that must all exist in the end.
    all: Vec<Bytes>,
}

/// The whole state of a store; every request is one call of [`Contents::apply`].
#[derive(Debug)]
pub(super) struct Contents {
    values: HashMap<Bytes, Bytes>,
    queues: HashMap<Bytes, VecDeque<Bytes>>,
    waiting: HashMap<ClientId, Waiting>,
    /// Who waits for a key, in the order of arrival.
    waiters: HashMap<Bytes, Vec<ClientId>>,
    stored_bytes: usize,
    max_stored_bytes: usize,
}

impl Contents {
    pub(super) fn new(max_stored_bytes: usize) -> Self {
        Self {
            values: HashMap::new(),
            queues: HashMap::new(),
            waiting: HashMap::new(),
            waiters: HashMap::new(),
            stored_bytes: 0,
            max_stored_bytes,
        }
    }

    /// Carries a request out: appends the client's reply to `reply` (nothing where the reply is
    /// deferred) and the clients that need wait no longer to `woken`; each of those is owed the
    /// byte [`STOP_WAITING`].
    pub(super) fn apply(
        &mut self,
        client: ClientId,
        request: &Request<'_>,
        reply: &mut Bytes,
        woken: &mut Vec<ClientId>,
    ) -> Result<(), Refusal> {
        match request {
            Request::Validate(_) | Request::Auth(_) => return Err(Refusal::Handshake),
            Request::Set(key, value) => self.set(key, value.to_vec(), woken)?,
            Request::CompareSet(key, expected, desired) => {
                let current = self.values.get(*key).map(Vec::as_slice);
                match semantics::compare_set(current, expected) {
                    CompareSet::Store => {
                        put_string(reply, desired);
                        self.set(key, desired.to_vec(), woken)?;
                    }
                    CompareSet::ReturnExpected => put_string(reply, expected),
                    CompareSet::ReturnCurrent => put_string(reply, current.unwrap_or_default()),
                }
            }
            Request::Get(key) => put_string(reply, self.value(key)),
            Request::Add(key, amount) => {
                let current = self.values.get(*key).map(Vec::as_slice);
                let sum = semantics::counter_after(current, *amount)
                    .map_err(|_| Refusal::Counter(shown(key)))?;
                self.set(key, sum.to_string().into_bytes(), woken)?;
                reply.extend_from_slice(&sum.to_ne_bytes());
            }
            Request::Check(keys) => {
                let ready = keys.iter().all(|key| self.exists(key));
                reply.push(if ready { CHECK_READY } else { CHECK_NOT_READY });
            }
            Request::Wait(keys) => {
                if self.waiting.contains_key(&client) {
                    return Err(Refusal::AlreadyWaiting);
                }
                let all = keys.iter().map(|key| key.to_vec()).collect();
                if !self.wait_for_missing(client, all) {
                    reply.push(STOP_WAITING);
                }
            }
            Request::NumKeys => {
                reply.extend_from_slice(&(self.values.len() as i64).to_ne_bytes());
            }
            Request::Delete(key) => {
                let deleted = self.values.remove(*key);
                if let Some(value) = &deleted {
                    self.stored_bytes -= cost(key, value);
                }
                reply.extend_from_slice(&i64::from(deleted.is_some()).to_ne_bytes());
            }
            Request::Append(key, value) => self.append(key, value, woken)?,
            Request::MultiGet(keys) => {
                let sizes = keys.iter().map(|key| 8 + self.value(key).len());
                if sizes.sum::<usize>() > MAX_MESSAGE_BYTES {
                    return Err(Refusal::ReplyTooLong);
                }
                for key in keys {
                    put_string(reply, self.value(key));
                }
            }
            Request::MultiSet(pairs) => {
                for (key, value) in pairs {
                    self.set(key, value.to_vec(), woken)?;
                }
            }
            Request::CancelWait => {
                // Where the wait has ended already, its reply is on its way before this one.
                self.stop_waiting(client);
                reply.push(WAIT_CANCELED);
            }
            Request::Ping(nonce) => reply.extend_from_slice(&nonce.to_ne_bytes()),
            Request::QueuePush(key, value) => self.queue_push(key, value, woken)?,
            Request::QueuePop(key) => self.queue_pop(key, reply),
            Request::QueueLen(key) => {
                let length = self.queues.get(*key).map_or(0, VecDeque::len);
                reply.extend_from_slice(&(length as i64).to_ne_bytes());
            }
            Request::ListKeys => {
                let keys = self.values.keys();
                if keys.clone().map(|key| 8 + key.len()).sum::<usize>() > MAX_MESSAGE_BYTES {
                    return Err(Refusal::ReplyTooLong);
                }
                reply.extend_from_slice(&(keys.len() as i64).to_ne_bytes());
                keys.for_each(|key| put_string(reply, key));
            }
            Request::Barrier(key, world) => self.barrier(client, key, *world, reply, woken)?,
        }
        Ok(())
    }

    /// Drops what a client that has gone away was waiting for.
    pub(super) fn forget(&mut self, client: ClientId) {
        self.stop_waiting(client);
    }

    /// How many bytes keys and values take, as they are counted.
    #[cfg(any(test, fuzzing))]
    pub(super) const fn stored_bytes(&self) -> usize {
        self.stored_bytes
    }

    fn value(&self, key: &[u8]) -> &[u8] {
        // An absent key reads as empty, as in PyTorch: clients wait before they get.
        self.values.get(key).map_or(&[], Vec::as_slice)
    }

    fn exists(&self, key: &[u8]) -> bool {
        self.values.contains_key(key) || self.queues.contains_key(key)
    }

    fn charge(&mut self, added: usize, freed: usize) -> Result<(), Refusal> {
        let total = self.stored_bytes - freed + added;
        if total > self.max_stored_bytes {
            return Err(Refusal::Full(self.max_stored_bytes));
        }
        self.stored_bytes = total;
        Ok(())
    }

    fn set(&mut self, key: &[u8], value: Bytes, woken: &mut Vec<ClientId>) -> Result<(), Refusal> {
        self.store(key, value)?;
        self.wake_all(key, woken);
        Ok(())
    }

    fn store(&mut self, key: &[u8], value: Bytes) -> Result<(), Refusal> {
        let freed = self.values.get(key).map_or(0, |old| cost(key, old));
        self.charge(cost(key, &value), freed)?;
        match self.values.get_mut(key) {
            Some(old) => *old = value,
            None => {
                self.values.insert(key.to_vec(), value);
            }
        }
        Ok(())
    }

    fn append(
        &mut self,
        key: &[u8],
        value: &[u8],
        woken: &mut Vec<ClientId>,
    ) -> Result<(), Refusal> {
        let Some(length) = self.values.get(key).map(Vec::len) else {
            return self.set(key, value.to_vec(), woken);
        };
        if length + value.len() > MAX_VALUE_BYTES {
            return Err(Refusal::ValueTooLong(shown(key)));
        }
        self.charge(value.len(), 0)?;
        if let Some(present) = self.values.get_mut(key) {
            present.extend_from_slice(value);
        }
        self.wake_all(key, woken);
        Ok(())
    }

    fn queue_push(
        &mut self,
        key: &[u8],
        value: &[u8],
        woken: &mut Vec<ClientId>,
    ) -> Result<(), Refusal> {
        self.charge(cost(key, value), 0)?;
        let queue = self.queues.entry(key.to_vec()).or_default();
        queue.push_back(value.to_vec());
        // One item serves one client: the first that waits for nothing else any more.
        let before = woken.len();
        for client in self.waiters.get(key).cloned().unwrap_or_default() {
            self.key_appeared(client, key, woken);
            if woken.len() > before {
                break;
            }
        }
        Ok(())
    }

    fn queue_pop(&mut self, key: &[u8], reply: &mut Bytes) {
        let Some(queue) = self.queues.get_mut(key) else {
            return reply.extend_from_slice(&0_i64.to_ne_bytes());
        };
        reply.extend_from_slice(&(queue.len() as i64).to_ne_bytes());
        if let Some(item) = queue.pop_front() {
            put_string(reply, &item);
            self.stored_bytes -= cost(key, &item);
        }
        // A queue without items does not exist, so that waiting for the key waits for an item.
        if queue.is_empty() {
            self.queues.remove(key);
        }
    }

    /// PyTorch's barrier is a counter under its key: an arrival adds 1 and, until the counter
    /// reaches the world's size, waits for the key to be touched. Each barrier needs a new key,
    /// since the counter stays, and who has arrived counts even if it goes away.
    fn barrier(
        &mut self,
        client: ClientId,
        key: &[u8],
        world: i64,
        reply: &mut Bytes,
        woken: &mut Vec<ClientId>,
    ) -> Result<(), Refusal> {
        if self.waiting.contains_key(&client) {
            return Err(Refusal::AlreadyWaiting);
        }
        let current = self.values.get(key).map(Vec::as_slice);
        let arrived =
            semantics::counter_after(current, 1).map_err(|_| Refusal::Counter(shown(key)))?;
        self.store(key, arrived.to_string().into_bytes())?;
        if arrived >= world {
            reply.push(STOP_WAITING);
            self.wake_all(key, woken);
            return Ok(());
        }
        self.register(client, HashSet::from([key.to_vec()]), Vec::new());
        Ok(())
    }

    /// Registers the client for the keys that are missing; false where none is.
    fn wait_for_missing(&mut self, client: ClientId, all: Vec<Bytes>) -> bool {
        let missing: HashSet<Bytes> = all
            .iter()
            .filter(|key| !self.exists(key))
            .cloned()
            .collect();
        if missing.is_empty() {
            return false;
        }
        self.register(client, missing, all);
        true
    }

    fn register(&mut self, client: ClientId, missing: HashSet<Bytes>, all: Vec<Bytes>) {
        for key in &missing {
            self.waiters.entry(key.clone()).or_default().push(client);
        }
        self.waiting.insert(client, Waiting { missing, all });
    }

    fn wake_all(&mut self, key: &[u8], woken: &mut Vec<ClientId>) {
        for client in self.waiters.remove(key).unwrap_or_default() {
            self.key_appeared(client, key, woken);
        }
    }

    fn key_appeared(&mut self, client: ClientId, key: &[u8], woken: &mut Vec<ClientId>) {
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
            && !self.wait_for_missing(client, waiting.all)
        {
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

    fn stop_waiting(&mut self, client: ClientId) {
        let missing = self.waiting.remove(&client).map(|waiting| waiting.missing);
        for key in missing.into_iter().flatten() {
            self.leave_queue_of(client, &key);
        }
    }
}

fn cost(key: &[u8], value: &[u8]) -> usize {
    key.len() + value.len() + ENTRY_OVERHEAD
}

fn shown(key: &[u8]) -> String {
    String::from_utf8_lossy(&key[..key.len().min(MAX_KEY_BYTES.min(80))]).into_owned()
}

#[cfg(any(test, fuzzing))]
pub(super) mod hostile;
#[cfg(test)]
mod tests;
