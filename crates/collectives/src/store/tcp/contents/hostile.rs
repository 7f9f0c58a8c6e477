//! Sequences of requests against a model: [`HashStore`] for values, a queue for queues.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::*;
use crate::hostile::Script;
use crate::store::tcp::wire::{Field, Scanner, arguments, opcode};
use crate::store::{HashStore, Store};

/// The last is that of barriers, for which nobody waits but by a barrier: arrivals are no news.
const KEYS: [&[u8]; 6] = [b"a", b"b", b"counter", b"", b"/long/er", BARRIER];
const BARRIER: &[u8] = b"barrier";
const CLIENTS: usize = 5;

/// All that change something or are about keys.
const OPCODES: [u8; 16] = [
    opcode::SET,
    opcode::COMPARE_SET,
    opcode::GET,
    opcode::ADD,
    opcode::CHECK,
    opcode::WAIT,
    opcode::GETNUMKEYS,
    opcode::DELETE_KEY,
    opcode::APPEND,
    opcode::MULTI_GET,
    opcode::MULTI_SET,
    opcode::CANCEL_WAIT,
    opcode::QUEUE_PUSH,
    opcode::QUEUE_POP,
    opcode::QUEUE_LEN,
    opcode::BARRIER,
];

/// The most bytes of the small store, which is soon full.
const SMALL: usize = 2_000;

/// What the store should hold.
struct Model {
    values: HashStore,
    queues: BTreeMap<Bytes, VecDeque<Bytes>>,
    /// Who waits for which keys; a barrier's for none.
    waiting: BTreeMap<ClientId, Vec<Bytes>>,
    stored: usize,
    limit: usize,
}

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

    fn value(&self, key: &[u8]) -> Option<Bytes> {
        self.values.get(text(key)).ok()
    }

    fn exists(&self, key: &[u8]) -> bool {
        self.value(key).is_some() || self.queues.contains_key(key)
    }

    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), Refused> {
        let old = self.value(key).map_or(0, |old| cost(key, &old));
        self.charge(cost(key, value), old)?;
        self.values.set(text(key), value).map_err(|_| Refused)
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
        keys: &[&[u8]],
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
        let keys = keys.iter().map(|key| key.to_vec()).collect();
        self.waiting.insert(client, keys);
        Ok(())
    }

    fn compare_set(
        &mut self,
        key: &[u8],
        expected: &[u8],
        desired: &[u8],
    ) -> Result<Bytes, Refused> {
        let before = self.value(key);
        let answer = self.values.compare_set(text(key), expected, desired);
        let answer = answer.map_err(|_| Refused)?;
        if self.value(key) != before {
            let old = before.map_or(0, |old| cost(key, &old));
            self.charge(cost(key, desired), old)?;
        }
        Ok(answer)
    }

    fn add(&mut self, key: &[u8], amount: i64) -> Result<i64, Refused> {
        let before = self.value(key);
        let sum = self.values.add(text(key), amount).map_err(|_| Refused)?;
        // Taken back, so that it is charged as any other value.
        match &before {
            Some(before) => self.values.set(text(key), before),
            None => self.values.delete(text(key)).map(drop),
        }
        .map_err(|_| Refused)?;
        self.set(key, sum.to_string().as_bytes())?;
        Ok(sum)
    }

    fn apply(&mut self, client: ClientId, request: &Request<'_>) -> Result<Bytes, Refused> {
        let mut reply = Vec::new();
        match request {
            Request::Set(key, value) => self.set(key, value)?,
            Request::CompareSet(key, expected, desired) => {
                put_string(&mut reply, &self.compare_set(key, expected, desired)?);
            }
            Request::Get(key) => put_string(&mut reply, &self.value(key).unwrap_or_default()),
            Request::Add(key, amount) => {
                reply.extend(self.add(key, *amount)?.to_ne_bytes());
            }
            Request::Check(keys) => {
                let ready = keys.iter().all(|key| self.exists(key));
                reply.push(if ready { CHECK_READY } else { CHECK_NOT_READY });
            }
            Request::Wait(keys) => {
                let ready = keys.iter().all(|key| self.exists(key));
                self.wait_unless(ready, client, keys, &mut reply)?;
            }
            Request::NumKeys => {
                let keys = self.values.num_keys().map_err(|_| Refused)?;
                reply.extend((keys as i64).to_ne_bytes());
            }
            Request::Delete(key) => {
                let old = self.value(key).map_or(0, |old| cost(key, &old));
                self.stored -= old;
                let deleted = self.values.delete(text(key)).map_err(|_| Refused)?;
                reply.extend(i64::from(deleted).to_ne_bytes());
            }
            Request::Append(key, value) => {
                let joined = [self.value(key).unwrap_or_default(), value.to_vec()].concat();
                self.set(key, &joined)?;
            }
            Request::MultiGet(keys) => {
                for key in keys {
                    put_string(&mut reply, &self.value(key).unwrap_or_default());
                }
            }
            Request::MultiSet(pairs) => {
                for (key, value) in pairs {
                    self.set(key, value)?;
                }
            }
            Request::CancelWait => {
                self.waiting.remove(&client);
                reply.push(WAIT_CANCELED);
            }
            Request::QueuePush(key, value) => {
                self.charge(cost(key, value), 0)?;
                let queue = self.queues.entry(key.to_vec()).or_default();
                queue.push_back(value.to_vec());
            }
            Request::QueuePop(key) => {
                let length = self.queues.get(*key).map_or(0, VecDeque::len);
                reply.extend((length as i64).to_ne_bytes());
                if let Some(item) = self.queues.get_mut(*key).and_then(VecDeque::pop_front) {
                    self.stored -= cost(key, &item);
                    put_string(&mut reply, &item);
                }
                self.queues.retain(|_, queue| !queue.is_empty());
            }
            Request::QueueLen(key) => {
                let length = self.queues.get(*key).map_or(0, VecDeque::len);
                reply.extend((length as i64).to_ne_bytes());
            }
            Request::Barrier(key, world) => {
                if self.waiting.contains_key(&client) {
                    return Err(Refused);
                }
                let complete = self.add(key, 1)? >= *world;
                self.wait_unless(complete, client, &[], &mut reply)?;
            }
            Request::Ping(_) | Request::ListKeys => unreachable!("not among the OPCODES"),
        }
        Ok(reply)
    }
}

/// What a wait for these keys costs, each once; a barrier's for none.
fn waits_cost<K: AsRef<[u8]>>(keys: &[K]) -> usize {
    let keys: BTreeSet<&[u8]> = match keys.is_empty() {
        true => BTreeSet::from([BARRIER]),
        false => keys.iter().map(AsRef::as_ref).collect(),
    };
    keys.into_iter().map(wait_cost).sum()
}

fn text(key: &[u8]) -> &str {
    std::str::from_utf8(key).expect("one of the KEYS")
}

/// A request as the bytes say, on the wire.
fn drawn(script: &mut Script<'_>) -> Bytes {
    let opcode = OPCODES[script.below(OPCODES.len())];
    let mut message = vec![opcode];
    let put_key = |message: &mut Bytes, script: &mut Script<'_>| {
        let key = match opcode {
            opcode::BARRIER => BARRIER,
            opcode::WAIT => KEYS[script.below(KEYS.len() - 1)],
            _ => KEYS[script.below(KEYS.len())],
        };
        put_string(message, key);
    };
    let put_value = |message: &mut Bytes, script: &mut Script<'_>| match script.below(3) {
        0 => put_string(message, script.number().to_string().as_bytes()),
        1 => put_string(message, (script.number() as i64).to_string().as_bytes()),
        _ => put_string(message, script.bytes()),
    };
    for field in arguments(opcode).expect("an opcode") {
        let count = match field {
            Field::Keys | Field::Pairs => {
                let count = script.below(4);
                message.extend((count as u64).to_ne_bytes());
                count
            }
            _ => 1,
        };
        for _ in 0..count {
            if let Field::Key | Field::Keys | Field::Pairs = field {
                put_key(&mut message, script);
            }
            if let Field::Value | Field::Pairs = field {
                put_value(&mut message, script);
            }
            if let Field::I64 = field {
                message.extend(script.number().to_ne_bytes());
            }
        }
    }
    message
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
        let message = drawn(&mut script);
        let request = Request::parse(&message).expect("a whole request");
        let cut = script.below(256) % (message.len() + 1);
        if cut < message.len() {
            let early = scanner.scan(&message[..cut]);
            assert_eq!(early, Ok(None), "{request:?} cut at {cut}");
        }
        assert_eq!(
            scanner.scan(&message),
            Ok(Some(message.len())),
            "{request:?}"
        );
        let (mut reply, mut woken) = (Vec::new(), Vec::new());
        let mut closed = false;
        let answered = contents.apply(client, &request, &mut reply, &mut woken);
        match (answered, model.apply(client, &request)) {
            (Ok(()), Ok(expected)) => assert_eq!(reply, expected, "{request:?}"),
            (Err(_), Err(Refused)) => {
                closed = true;
                contents.forget(client);
                model.waiting.remove(&client);
                if let Request::CompareSet(..) = request {
                    // The model stores first and charges then.
                    return;
                }
            }
            (ours, theirs) => panic!("{request:?}: {ours:?}, the model {:?}", theirs.is_ok()),
        }
        // A client that woke itself before it was refused is gone and gets nothing.
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
