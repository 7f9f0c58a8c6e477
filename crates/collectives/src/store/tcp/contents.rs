//! What a server holds: values, queues, and the clients that wait. No sockets here.

#[cfg(any(test, fuzzing))]
pub(super) mod hostile;
#[cfg(test)]
mod tests;
mod waits;

use std::collections::{HashMap, HashSet, VecDeque};

use everburn_record::plain;

use self::waits::{Awaited, Waiting, wait_cost};
use super::wire::{
    CHECK_NOT_READY, CHECK_READY, MAX_MESSAGE_BYTES, Request, STOP_WAITING, WAIT_CANCELED,
    put_string,
};
use crate::store::MAX_VALUE_BYTES;
use crate::store::semantics::{self, CompareSet};

/// Names a connection; never given twice.
pub(super) type ClientId = usize;

type Bytes = Vec<u8>;

/// What a key costs beside its bytes, roughly: without it, empty keys would be free.
const ENTRY_OVERHEAD: usize = 128;

/// As much of each of a connection's two buffers is part of the connection and not of the budget, so
/// that a full store still answers small requests, and can be emptied by them.
pub(super) const FREE_BUFFER: usize = 4 << 10;

/// What a buffer of this capacity takes from the budget.
pub(super) const fn buffer_cost(capacity: usize) -> usize {
    capacity.saturating_sub(FREE_BUFFER)
}

/// A request that cannot be answered; the protocol has no error reply, so the connection closes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    #[error("the counter `{0}` cannot be changed: its value is not a number, or would overflow")]
    Counter(String),
    #[error("the value of `{0}` would grow beyond {MAX_VALUE_BYTES} bytes")]
    ValueTooLong(String),
    #[error("the store would hold more than {0} bytes (`StoreOptions::max_stored_bytes`)")]
    Full(usize),
    #[error("the reply would have more than {MAX_MESSAGE_BYTES} bytes")]
    ReplyTooLong,
    #[error("a client that waits asked to wait again")]
    AlreadyWaiting,
}

/// The whole state of a store; every request is one call of [`Contents::apply`].
#[derive(Debug)]
pub(super) struct Contents {
    values: HashMap<Bytes, Bytes>,
    queues: HashMap<Bytes, VecDeque<Bytes>>,
    waiting: HashMap<ClientId, Waiting>,
    /// Who waits for a key, in the order of arrival.
    waiters: HashMap<Awaited, Vec<ClientId>>,
    /// All that is held for clients: values, queues, waits, and their connections' buffers.
    pub(super) held_bytes: usize,
    max_held_bytes: usize,
    /// How many requests were carried out.
    pub(super) requests: u64,
}

impl Contents {
    pub(super) fn new(max_held_bytes: usize) -> Self {
        Self {
            values: HashMap::new(),
            queues: HashMap::new(),
            waiting: HashMap::new(),
            waiters: HashMap::new(),
            held_bytes: 0,
            max_held_bytes,
            requests: 0,
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
        self.requests += 1;
        match request {
            Request::Set(key, value) => self.set(key, value.to_vec(), woken)?,
            Request::CompareSet(key, expected, desired) => {
                self.compare_set(key, expected, desired, reply, woken)?;
            }
            Request::Get(key) => self.answer(reply, self.value(key))?,
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
                if keys.iter().all(|key| self.exists(key)) {
                    reply.push(STOP_WAITING);
                } else {
                    self.begin_to_wait(client, keys)?;
                }
            }
            Request::NumKeys => {
                reply.extend_from_slice(&(self.values.len() as i64).to_ne_bytes());
            }
            Request::Delete(key) => {
                let deleted = self.values.remove(*key);
                if let Some(value) = &deleted {
                    self.held_bytes -= cost(key, value);
                }
                reply.extend_from_slice(&i64::from(deleted.is_some()).to_ne_bytes());
            }
            Request::Append(key, value) => self.append(key, value, woken)?,
            Request::MultiGet(keys) => {
                let size = keys.iter().map(|key| 8 + self.value(key).len()).sum();
                if size > MAX_MESSAGE_BYTES {
                    return Err(Refusal::ReplyTooLong);
                }
                self.make_room(reply, size)?;
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
                self.forget(client);
                reply.push(WAIT_CANCELED);
            }
            Request::Ping(nonce) => reply.extend_from_slice(&nonce.to_ne_bytes()),
            Request::QueuePush(key, value) => self.queue_push(key, value, woken)?,
            Request::QueuePop(key) => self.queue_pop(key, reply)?,
            Request::QueueLen(key) => {
                let length = self.queues.get(*key).map_or(0, VecDeque::len);
                reply.extend_from_slice(&(length as i64).to_ne_bytes());
            }
            Request::ListKeys => self.list_keys(reply)?,
            Request::Barrier(key, world) => self.barrier(client, key, *world, reply, woken)?,
        }
        Ok(())
    }

    /// Whether so much more may be held.
    pub(super) fn fits(&self, added: usize) -> Result<(), Refusal> {
        if self.held_bytes + added > self.max_held_bytes {
            return Err(Refusal::Full(self.max_held_bytes));
        }
        Ok(())
    }

    /// Takes `added` from the budget and gives `freed` back.
    pub(super) fn charge(&mut self, added: usize, freed: usize) -> Result<(), Refusal> {
        let total = self.held_bytes - freed + added;
        if total > self.max_held_bytes && added > freed {
            return Err(Refusal::Full(self.max_held_bytes));
        }
        self.held_bytes = total;
        Ok(())
    }

    /// Makes room in a reply, where the budget has it. What the reply takes is charged by its owner.
    fn make_room(&self, reply: &mut Bytes, added: usize) -> Result<(), Refusal> {
        let grown = reply.capacity().max(reply.len() + added);
        self.fits(buffer_cost(grown) - buffer_cost(reply.capacity()))?;
        if added > FREE_BUFFER {
            // Not twice as much, which nobody has looked at.
            reply.reserve_exact(added);
        }
        Ok(())
    }

    fn answer(&self, reply: &mut Bytes, value: &[u8]) -> Result<(), Refusal> {
        self.make_room(reply, 8 + value.len())?;
        put_string(reply, value);
        Ok(())
    }

    fn value(&self, key: &[u8]) -> &[u8] {
        // An absent key reads as empty, as in PyTorch: clients wait before they get.
        self.values.get(key).map_or(&[], Vec::as_slice)
    }

    fn exists(&self, key: &[u8]) -> bool {
        self.values.contains_key(key) || self.queues.contains_key(key)
    }

    fn set(&mut self, key: &[u8], value: Bytes, woken: &mut Vec<ClientId>) -> Result<(), Refusal> {
        self.store(key, value)?;
        self.wake_all(key, woken);
        Ok(())
    }

    /// Sets a key for which nobody waits.
    pub(super) fn store(&mut self, key: &[u8], value: Bytes) -> Result<(), Refusal> {
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

    fn compare_set(
        &mut self,
        key: &[u8],
        expected: &[u8],
        desired: &[u8],
        reply: &mut Bytes,
        woken: &mut Vec<ClientId>,
    ) -> Result<(), Refusal> {
        let current = self.values.get(key).map(Vec::as_slice);
        match semantics::compare_set(current, expected) {
            CompareSet::Store => {
                self.answer(reply, desired)?;
                self.set(key, desired.to_vec(), woken)
            }
            CompareSet::Return(value) => self.answer(reply, value),
        }
    }

    fn list_keys(&self, reply: &mut Bytes) -> Result<(), Refusal> {
        let keys = self.values.keys();
        let size = 8 + keys.clone().map(|key| 8 + key.len()).sum::<usize>();
        if size > MAX_MESSAGE_BYTES {
            return Err(Refusal::ReplyTooLong);
        }
        self.make_room(reply, size)?;
        reply.extend_from_slice(&(keys.len() as i64).to_ne_bytes());
        keys.for_each(|key| put_string(reply, key));
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

    fn queue_pop(&mut self, key: &[u8], reply: &mut Bytes) -> Result<(), Refusal> {
        let first = self.queues.get(key).and_then(VecDeque::front);
        self.make_room(reply, 16 + first.map_or(0, Vec::len))?;
        let Some(queue) = self.queues.get_mut(key) else {
            reply.extend_from_slice(&0_i64.to_ne_bytes());
            return Ok(());
        };
        reply.extend_from_slice(&(queue.len() as i64).to_ne_bytes());
        if let Some(item) = queue.pop_front() {
            put_string(reply, &item);
            self.held_bytes -= cost(key, &item);
        }
        // A queue without items does not exist, so that waiting for the key waits for an item.
        if queue.is_empty() {
            self.queues.remove(key);
        }
        Ok(())
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
        let cost = wait_cost(key);
        self.charge(cost, 0)?;
        self.register(client, HashSet::from([key.into()]), Vec::new(), cost);
        Ok(())
    }
}

fn cost(key: &[u8], value: &[u8]) -> usize {
    key.len() + value.len() + ENTRY_OVERHEAD
}

fn shown(key: &[u8]) -> String {
    plain::line(&String::from_utf8_lossy(key), 80)
}
