//! Sequences of requests against a model: [`HashStore`] for values, a queue for queues.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::*;
use crate::hostile::Script;
use crate::store::tcp::wire::{Scanner, opcode};
use crate::store::{HashStore, Store};

/// The last is that of barriers, for which nobody waits but by a barrier: arrivals are no news.
const KEYS: [&str; 6] = ["a", "b", "counter", "", "/long/er", BARRIER];
const BARRIER: &str = "barrier";
const CLIENTS: usize = 5;

/// The most bytes of the small store, which is soon full.
const SMALL: usize = 2_000;

/// What the store should hold.
struct Model {
    values: HashStore,
    queues: BTreeMap<String, VecDeque<Bytes>>,
    /// Who waits for which keys; a barrier's for none.
    waiting: BTreeMap<ClientId, Vec<String>>,
    stored: usize,
    limit: usize,
}

/// The model refuses.
struct Refused;

impl Model {
    fn new(limit: usize) -> Self {
        Self {
            values: HashStore::with_timeout(Duration::ZERO),
            queues: BTreeMap::new(),
            waiting: BTreeMap::new(),
            stored: 0,
            limit,
        }
    }

    fn value(&self, key: &str) -> Option<Bytes> {
        self.values.get(key).ok()
    }

    fn exists(&self, key: &str) -> bool {
        self.value(key).is_some() || self.queues.contains_key(key)
    }

    fn set(&mut self, key: &str, value: &[u8]) -> Result<(), Refused> {
        let old = self.value(key).map_or(0, |old| cost(key.as_bytes(), &old));
        self.charge(cost(key.as_bytes(), value), old)?;
        self.values.set(key, value).map_err(|_| Refused)
    }

    fn charge(&mut self, added: usize, freed: usize) -> Result<(), Refused> {
        if self.held() + added - freed > self.limit && added > freed {
            return Err(Refused);
        }
        self.stored = self.stored + added - freed;
        Ok(())
    }

    /// Values, items and waits.
    fn held(&self) -> usize {
        let waits = self.waiting.values().map(|keys| waits_cost(keys));
        self.stored + waits.sum::<usize>()
    }

    fn wait_unless(
        &mut self,
        ready: bool,
        client: ClientId,
        keys: &[String],
        reply: &mut Bytes,
    ) -> Result<(), Refused> {
        if self.waiting.contains_key(&client) {
            return Err(Refused);
        }
        if ready {
            reply.push(STOP_WAITING);
            return Ok(());
        }
        if self.held() + waits_cost(keys) > self.limit {
            return Err(Refused);
        }
        self.waiting.insert(client, keys.to_vec());
        Ok(())
    }

    fn compare_set(
        &mut self,
        key: &str,
        expected: &[u8],
        desired: &[u8],
    ) -> Result<Bytes, Refused> {
        let before = self.value(key);
        let answer = self.values.compare_set(key, expected, desired);
        let answer = answer.map_err(|_| Refused)?;
        if self.value(key) != before {
            let old = before.map_or(0, |old| cost(key.as_bytes(), &old));
            self.charge(cost(key.as_bytes(), desired), old)?;
        }
        Ok(answer)
    }

    fn add(&mut self, key: &str, amount: i64) -> Result<i64, Refused> {
        let before = self.value(key);
        let sum = self.values.add(key, amount).map_err(|_| Refused)?;
        // Taken back, so that it is charged as any other value.
        match &before {
            Some(before) => self.values.set(key, before),
            None => self.values.delete(key).map(drop),
        }
        .map_err(|_| Refused)?;
        self.set(key, sum.to_string().as_bytes())?;
        Ok(sum)
    }

    /// The reply to `request` of `client`.
    fn apply(&mut self, client: ClientId, request: &Asked) -> Result<Bytes, Refused> {
        let mut reply = Vec::new();
        match request {
            Asked::Set(key, value) => self.set(key, value)?,
            Asked::CompareSet(key, expected, desired) => {
                put_string(&mut reply, &self.compare_set(key, expected, desired)?);
            }
            Asked::Get(key) => put_string(&mut reply, &self.value(key).unwrap_or_default()),
            Asked::Add(key, amount) => {
                reply.extend(self.add(key, *amount)?.to_ne_bytes());
            }
            Asked::Check(keys) => {
                let ready = keys.iter().all(|key| self.exists(key));
                reply.push(if ready { CHECK_READY } else { CHECK_NOT_READY });
            }
            Asked::Wait(keys) => {
                let ready = keys.iter().all(|key| self.exists(key));
                self.wait_unless(ready, client, keys, &mut reply)?;
            }
            Asked::NumKeys => {
                let keys = self.values.num_keys().map_err(|_| Refused)?;
                reply.extend((keys as i64).to_ne_bytes());
            }
            Asked::Delete(key) => {
                let old = self.value(key).map_or(0, |old| cost(key.as_bytes(), &old));
                self.stored -= old;
                let deleted = self.values.delete(key).map_err(|_| Refused)?;
                reply.extend(i64::from(deleted).to_ne_bytes());
            }
            Asked::Append(key, value) => {
                let joined = [self.value(key).unwrap_or_default(), value.clone()].concat();
                self.set(key, &joined)?;
            }
            Asked::MultiGet(keys) => {
                for key in keys {
                    put_string(&mut reply, &self.value(key).unwrap_or_default());
                }
            }
            Asked::MultiSet(pairs) => {
                for (key, value) in pairs {
                    self.set(key, value)?;
                }
            }
            Asked::CancelWait => {
                self.waiting.remove(&client);
                reply.push(WAIT_CANCELED);
            }
            Asked::QueuePush(key, value) => {
                self.charge(cost(key.as_bytes(), value), 0)?;
                let queue = self.queues.entry(key.clone()).or_default();
                queue.push_back(value.clone());
            }
            Asked::QueuePop(key) => {
                let length = self.queues.get(key).map_or(0, VecDeque::len);
                reply.extend((length as i64).to_ne_bytes());
                if let Some(item) = self.queues.get_mut(key).and_then(VecDeque::pop_front) {
                    self.stored -= cost(key.as_bytes(), &item);
                    put_string(&mut reply, &item);
                }
                self.queues.retain(|_, queue| !queue.is_empty());
            }
            Asked::QueueLen(key) => {
                let length = self.queues.get(key).map_or(0, VecDeque::len);
                reply.extend((length as i64).to_ne_bytes());
            }
            Asked::Barrier(key, world) => {
                if self.waiting.contains_key(&client) {
                    return Err(Refused);
                }
                let complete = self.add(key, 1)? >= *world;
                self.wait_unless(complete, client, &[], &mut reply)?;
            }
        }
        Ok(reply)
    }
}

/// What a wait for these keys costs, each once; a barrier's for none.
fn waits_cost(keys: &[String]) -> usize {
    let keys: BTreeSet<&str> = match keys.is_empty() {
        true => BTreeSet::from([BARRIER]),
        false => keys.iter().map(String::as_str).collect(),
    };
    keys.into_iter().map(|key| wait_cost(key.as_bytes())).sum()
}

/// A request that owns what it names.
#[derive(Debug)]
enum Asked {
    Set(String, Bytes),
    CompareSet(String, Bytes, Bytes),
    Get(String),
    Add(String, i64),
    Check(Vec<String>),
    Wait(Vec<String>),
    NumKeys,
    Delete(String),
    Append(String, Bytes),
    MultiGet(Vec<String>),
    MultiSet(Vec<(String, Bytes)>),
    CancelWait,
    QueuePush(String, Bytes),
    QueuePop(String),
    QueueLen(String),
    Barrier(String, i64),
}

impl Asked {
    fn draw(script: &mut Script<'_>) -> Self {
        let key = |script: &mut Script<'_>| KEYS[script.below(KEYS.len())].to_owned();
        let keys = |script: &mut Script<'_>| -> Vec<String> {
            (0..script.below(4)).map(|_| key(script)).collect()
        };
        let value = |script: &mut Script<'_>| match script.below(3) {
            0 => script.number().to_string().into_bytes(),
            1 => (script.number() as i64).to_string().into_bytes(),
            _ => script.bytes().to_vec(),
        };
        match script.below(16) {
            0 => Self::Set(key(script), value(script)),
            1 => Self::CompareSet(key(script), value(script), value(script)),
            2 => Self::Get(key(script)),
            3 => Self::Add(key(script), script.number() as i64),
            4 => Self::Check(keys(script)),
            5 => {
                let mut keys = keys(script);
                keys.retain(|key| key != BARRIER);
                Self::Wait(keys)
            }
            6 => Self::NumKeys,
            7 => Self::Delete(key(script)),
            8 => Self::Append(key(script), value(script)),
            9 => Self::MultiGet(keys(script)),
            10 => Self::MultiSet(
                (0..script.below(4))
                    .map(|_| (key(script), value(script)))
                    .collect(),
            ),
            11 => Self::CancelWait,
            12 => Self::QueuePush(key(script), value(script)),
            13 => Self::QueuePop(key(script)),
            14 => Self::QueueLen(key(script)),
            _ => Self::Barrier(BARRIER.to_owned(), script.number() as i64),
        }
    }

    /// The request on the wire.
    fn written(&self) -> Bytes {
        let message = |opcode: u8, parts: &[&[u8]]| {
            let mut message = vec![opcode];
            parts.iter().for_each(|part| put_string(&mut message, part));
            message
        };
        let list = |opcode: u8, keys: &[String]| {
            let mut message = vec![opcode];
            message.extend((keys.len() as u64).to_ne_bytes());
            for key in keys {
                put_string(&mut message, key.as_bytes());
            }
            message
        };
        let numbered = |opcode: u8, key: &str, number: i64| {
            let mut message = message(opcode, &[key.as_bytes()]);
            message.extend(number.to_ne_bytes());
            message
        };
        match self {
            Self::Set(key, value) => message(opcode::SET, &[key.as_bytes(), value]),
            Self::CompareSet(key, expected, desired) => {
                message(opcode::COMPARE_SET, &[key.as_bytes(), expected, desired])
            }
            Self::Get(key) => message(opcode::GET, &[key.as_bytes()]),
            Self::Add(key, amount) => numbered(opcode::ADD, key, *amount),
            Self::Check(keys) => list(opcode::CHECK, keys),
            Self::Wait(keys) => list(opcode::WAIT, keys),
            Self::NumKeys => vec![opcode::GETNUMKEYS],
            Self::Delete(key) => message(opcode::DELETE_KEY, &[key.as_bytes()]),
            Self::Append(key, value) => message(opcode::APPEND, &[key.as_bytes(), value]),
            Self::MultiGet(keys) => list(opcode::MULTI_GET, keys),
            Self::MultiSet(pairs) => {
                let mut message = vec![opcode::MULTI_SET];
                message.extend((pairs.len() as u64).to_ne_bytes());
                for (key, value) in pairs {
                    put_string(&mut message, key.as_bytes());
                    put_string(&mut message, value);
                }
                message
            }
            Self::CancelWait => vec![opcode::CANCEL_WAIT],
            Self::QueuePush(key, value) => message(opcode::QUEUE_PUSH, &[key.as_bytes(), value]),
            Self::QueuePop(key) => message(opcode::QUEUE_POP, &[key.as_bytes()]),
            Self::QueueLen(key) => message(opcode::QUEUE_LEN, &[key.as_bytes()]),
            Self::Barrier(key, world) => numbered(opcode::BARRIER, key, *world),
        }
    }
}

/// Clients of one store ask in turn what the bytes say; every reply is the model's.
///
/// # Panics
/// Where the store and its model differ, or a client waits without need.
pub fn store_requests(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    let limit = if script.chance() { SMALL } else { 1 << 20 };
    let (mut contents, mut model) = (Contents::new(limit), Model::new(limit));
    let mut scanner = Scanner::default();
    while !script.is_over() {
        let client = script.below(CLIENTS);
        let asked = Asked::draw(&mut script);
        let message = asked.written();
        let cut = script.below(256) % (message.len() + 1);
        if cut < message.len() {
            let early = scanner.scan(&message[..cut]);
            assert_eq!(early, Ok(None), "{asked:?} cut at {cut}");
        }
        assert_eq!(scanner.scan(&message), Ok(Some(message.len())), "{asked:?}");
        let request = Request::parse(&message).expect("a whole request");
        let (mut reply, mut woken) = (Vec::new(), Vec::new());
        let mut closed = false;
        let answered = contents.apply(client, &request, &mut reply, &mut woken);
        match (answered, model.apply(client, &asked)) {
            (Ok(()), Ok(expected)) => assert_eq!(reply, expected, "{asked:?}"),
            (Err(_), Err(Refused)) => {
                closed = true;
                contents.forget(client);
                model.waiting.remove(&client);
                if let Asked::CompareSet(..) = asked {
                    // The model stores first and charges then.
                    return;
                }
            }
            (ours, theirs) => panic!("{asked:?}: {ours:?}, the model {:?}", theirs.is_ok()),
        }
        // Who woke itself before it was refused is gone and is told nothing.
        let refused = closed.then_some(client);
        for client in woken.into_iter().filter(|woken| Some(*woken) != refused) {
            let keys = model.waiting.remove(&client);
            let keys = keys.unwrap_or_else(|| panic!("client {client} did not wait"));
            assert!(
                keys.iter().all(|key| model.exists(key)),
                "client {client} was woken though not all of {keys:?} exist"
            );
        }
        agree(&contents, &model);
    }
}

fn agree(contents: &Contents, model: &Model) {
    assert_eq!(contents.held_bytes, model.held());
    assert!(contents.held_bytes <= contents.max_held_bytes);
    let ours: BTreeSet<_> = contents.waiting.keys().collect();
    assert_eq!(ours, model.waiting.keys().collect());
    for (client, waiting) in &contents.waiting {
        assert!(!waiting.missing.is_empty(), "client {client} lacks nothing");
        for key in &waiting.missing {
            let waiters = contents.waiters.get(key).map_or(&[][..], Vec::as_slice);
            let places = waiters.iter().filter(|other| *other == client);
            assert_eq!(places.count(), 1, "client {client} among those who wait");
        }
        let keys = &model.waiting[client];
        if !keys.is_empty() && keys.iter().all(|key| model.exists(key)) {
            // Only an item that went to another client, who has not taken it yet, excuses that.
            let queued = keys.iter().any(|key| model.queues.contains_key(key));
            assert!(queued, "client {client} waits for {keys:?}");
        }
    }
    for (key, waiters) in &contents.waiters {
        assert!(!waiters.is_empty());
        for client in waiters {
            let waiting = contents.waiting.get(client);
            assert!(waiting.is_some_and(|waiting| waiting.missing.contains(key)));
        }
    }
}
