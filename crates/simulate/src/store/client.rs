//! A process's connection to the store.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use everburn_collectives::runtime;
use everburn_collectives::store::{Store, StoreError};
use everburn_collectives::sync::lock;

use super::{StoreServer, Waiter};
use crate::kernel::Kernel;
use crate::network::{Kind, Message};

/// The server is on this machine.
const MACHINE: usize = 0;

/// A beat of a real rank, with its flight record, has as many bytes.
const BEAT_BYTES: usize = 2048;

/// A key list longer than this is sent in several requests.
const PIPELINE_BYTES: usize = 32 << 10;

/// A store that is asked for nothing in particular waits for this long.
const TIMEOUT: Duration = Duration::from_secs(300);

/// A connection of a process to the server.
#[derive(Clone)]
pub(crate) struct SimulatedStore {
    server: Arc<StoreServer>,
    process: usize,
    machine: usize,
    is_launcher: bool,
}

impl std::fmt::Debug for SimulatedStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimulatedStore")
            .field("process", &self.process)
            .finish_non_exhaustive()
    }
}

impl SimulatedStore {
    pub(crate) fn connect(server: &Arc<StoreServer>, process: usize, is_launcher: bool) -> Self {
        Self {
            server: server.clone(),
            process,
            machine: server.kernel.machine_of(process),
            is_launcher,
        }
    }

    fn kind(&self, key: &str) -> Kind {
        match key {
            _ if self.is_launcher => Kind::Launcher,
            _ if key.starts_with("watch/") => Kind::Heartbeat,
            _ if key.contains("/group/") => Kind::Mesh,
            _ if key.starts_with("everburn/elastic") => Kind::Membership,
            _ => Kind::Rendezvous,
        }
    }

    /// Sends a request to the server, or the server's reply to one.
    fn send(
        &self,
        is_reply: bool,
        (kind, bytes): (Kind, usize),
        arrives: impl FnOnce(&Arc<Kernel>) + Send + 'static,
    ) {
        let (mut from, mut to) = (self.machine, MACHINE);
        if is_reply {
            (from, to) = (to, from);
        }
        let message = Message {
            from,
            to,
            connection: 2 * self.process + usize::from(is_reply),
            bytes: bytes as u64,
            kind,
        };
        let server = &self.server;
        let arrives = Box::new(arrives);
        server.network.send(&server.kernel, &message, arrives);
    }

    /// Sends a request that has no reply.
    fn tell(&self, key: &str, bytes: usize, act: impl FnOnce(&StoreServer) + Send + 'static) {
        let server = self.server.clone();
        let arrives = move |kernel: &Arc<Kernel>| {
            let at = server.serve(1);
            kernel.at(at, Box::new(move |_| act(&server)));
        };
        self.send(false, (self.kind(key), key.len() + bytes), arrives);
    }

    /// Sends a request and waits for its reply, whose bytes `size` counts.
    fn ask<R: Send + 'static>(
        &self,
        (kind, keys, bytes): (Kind, usize, usize),
        act: impl FnOnce(&StoreServer) -> R + Send + 'static,
        size: impl FnOnce(&R) -> usize + Send + 'static,
    ) -> R {
        let kernel = self.server.kernel.clone();
        let wait = kernel.prepare();
        let reply: Arc<Mutex<Option<R>>> = Arc::default();
        let (slot, this) = (reply.clone(), self.clone());
        let arrives = move |kernel: &Arc<Kernel>| {
            let at = this.server.serve(keys);
            let served = move |_: &Arc<Kernel>| {
                let result = act(&this.server);
                let bytes = size(&result);
                *lock(&slot) = Some(result);
                this.send(true, (kind, bytes), move |kernel| kernel.wake(wait));
            };
            kernel.at(at, Box::new(served));
        };
        self.send(false, (kind, bytes), arrives);
        kernel.block(wait, None);
        let result = lock(&reply).take();
        result.expect("only the reply wakes this thread")
    }

    fn ready(&self, keys: &[&str]) -> bool {
        let owned = owned(keys);
        let kind = self.kind(keys.first().unwrap_or(&""));
        let act = move |server: &StoreServer| server.absent(&owned).is_none();
        self.ask((kind, keys.len(), length(keys)), act, |_| 1)
    }

    /// The values of `keys` as they stand, each of which takes `more` bytes of the request than its key alone.
    fn read(&self, keys: &[&str], more: usize) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        type Read = Result<(Vec<Option<Vec<u8>>>, usize), StoreError>;

        let names = owned(keys);
        let act = move |server: &StoreServer| -> Read {
            let values = server.values.try_get_many(&borrowed(&names))?;
            let size = |(name, value): (&String, &Option<Vec<u8>>)| {
                value.as_ref().map_or(30, |value| 8 + size_of(name, value))
            };
            let bytes = names.iter().zip(&values).map(size).sum();
            Ok((values, bytes))
        };
        let kind = self.kind(keys.first().unwrap_or(&""));
        let asked = (kind, keys.len(), length(keys) + more * keys.len());
        let size = |read: &Read| read.as_ref().map_or(1, |(_, bytes)| *bytes);
        self.ask(asked, act, size).map(|(values, _)| values)
    }

    fn wait_on(&self, keys: &[&str], limit: Duration) -> bool {
        let kernel = self.server.kernel.clone();
        let kind = self.kind(keys.first().unwrap_or(&""));
        let wait = kernel.prepare();
        let (come, cancelled) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicBool::new(false)),
        );
        let (this, waited, has_come, is_cancelled) =
            (self.clone(), owned(keys), come.clone(), cancelled.clone());
        let answer = {
            let this = self.clone();
            move || {
                let arrived = move |kernel: &Arc<Kernel>| {
                    has_come.store(true, Ordering::Release);
                    kernel.wake(wait);
                };
                this.send(true, (kind, 1), arrived);
            }
        };
        let arrives = move |kernel: &Arc<Kernel>| {
            let at = this.server.serve(waited.len());
            let served = move |_: &Arc<Kernel>| {
                let Some(absent) = this.server.absent(&waited) else {
                    return answer();
                };
                let mut server = lock(&this.server.server);
                let id = server.next_waiter;
                server.next_waiter += 1;
                server.waited.entry(absent).or_default().push(id);
                let waiter = Waiter {
                    keys: waited,
                    cancelled: is_cancelled,
                    answer: Box::new(answer),
                };
                server.waiters.insert(id, waiter);
            };
            kernel.at(at, Box::new(served));
        };
        self.send(false, (kind, length(keys)), arrives);
        kernel.block(wait, Some(kernel.now() + limit));
        if come.load(Ordering::Acquire) {
            return true;
        }
        cancelled.store(true, Ordering::Release);
        // The server acknowledges it.
        let first = keys.first().map(|key| (*key).to_owned());
        let act = move |server: &StoreServer| {
            let mut server = lock(&server.server);
            let Some(first) = first else { return };
            if let Some(ids) = server.waited.remove(&first) {
                let (dead, living) = ids.into_iter().partition::<Vec<u64>, _>(|id| {
                    let waiter = server.waiters.get(id);
                    waiter.is_none_or(|it| it.cancelled.load(Ordering::Acquire))
                });
                for id in dead {
                    server.waiters.remove(&id);
                }
                if !living.is_empty() {
                    server.waited.insert(first, living);
                }
            }
        };
        self.ask((kind, 0, 1), act, |()| 1);
        come.load(Ordering::Acquire)
    }

    fn wait_for(
        &self,
        operation: &'static str,
        keys: &[&str],
        limit: Duration,
    ) -> Result<(), StoreError> {
        let began = runtime::now();
        if self.ready(keys) {
            return Ok(());
        }
        let left = limit.saturating_sub(runtime::elapsed(began));
        if !left.is_zero() && self.wait_on(keys, left) {
            return Ok(());
        }
        let missing = keys.iter().take(64).filter(|key| !self.ready(&[key]));
        let mut missing = owned(&missing.copied().collect::<Vec<_>>());
        if missing.is_empty() {
            missing = owned(keys);
        }
        Err(StoreError::Timeout {
            operation,
            keys: missing,
            waited: runtime::elapsed(began),
        })
    }
}

impl Store for SimulatedStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        let (name, value) = (key.to_owned(), value.to_vec());
        self.tell(key, size_of(key, &value), move |server| {
            let stored = server.values.set(&name, &value);
            stored.expect("keys and values of ranks are short");
            server.appeared(&name);
        });
        Ok(())
    }

    fn get_within(&self, key: &str, limit: Duration) -> Result<Vec<u8>, StoreError> {
        let mut values = self.multi_get_within(&[key], limit)?;
        Ok(values.pop().unwrap_or_default())
    }

    fn try_get_many(&self, keys: &[&str]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        let mut found = Vec::with_capacity(keys.len());
        let mut rest = keys;
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = |key: &&&str| {
                bytes += key.len() + 60;
                bytes < PIPELINE_BYTES
            };
            let count = rest.iter().take_while(fits).count().max(1);
            let (now, later) = rest.split_at(count);
            found.extend(self.read(now, 60)?);
            rest = later;
        }
        Ok(found)
    }

    fn multi_get_within(&self, keys: &[&str], limit: Duration) -> Result<Vec<Vec<u8>>, StoreError> {
        self.wait_for("multi_get", keys, limit)?;
        let values = self.read(keys, 0)?.into_iter();
        Ok(values.map(Option::unwrap_or_default).collect())
    }

    fn wait_within(&self, keys: &[&str], limit: Duration) -> Result<(), StoreError> {
        self.wait_for("wait", keys, limit)
    }

    fn add(&self, key: &str, amount: i64) -> Result<i64, StoreError> {
        let name = key.to_owned();
        let act = move |server: &StoreServer| -> Result<i64, StoreError> {
            let sum = server.values.add(&name, amount)?;
            server.appeared(&name);
            Ok(sum)
        };
        self.ask((self.kind(key), 1, key.len() + 8), act, |_| 8)
    }

    fn compare_set(
        &self,
        key: &str,
        expected: &[u8],
        desired: &[u8],
    ) -> Result<Vec<u8>, StoreError> {
        let bytes = key.len() + expected.len() + desired.len();
        let (name, expected, desired) = (key.to_owned(), expected.to_vec(), desired.to_vec());
        let act = move |server: &StoreServer| -> Result<Vec<u8>, StoreError> {
            let there = server.values.compare_set(&name, &expected, &desired)?;
            if there == desired {
                server.appeared(&name);
            }
            Ok(there)
        };
        let size = |there: &Result<Vec<u8>, StoreError>| there.as_ref().map_or(1, Vec::len);
        self.ask((self.kind(key), 1, bytes), act, size)
    }

    fn check(&self, keys: &[&str]) -> Result<bool, StoreError> {
        Ok(self.ready(keys))
    }

    fn delete(&self, key: &str) -> Result<bool, StoreError> {
        let name = key.to_owned();
        let act = move |server: &StoreServer| server.values.delete(&name);
        self.ask((self.kind(key), 1, key.len()), act, |_| 1)
    }

    fn delete_many(&self, keys: &[&str]) -> Result<(), StoreError> {
        for some in keys.chunks(PIPELINE_BYTES / 60) {
            let names = owned(some);
            let act = move |server: &StoreServer| server.values.delete_many(&borrowed(&names));
            let asked = (self.kind(some[0]), some.len(), length(some));
            self.ask(asked, act, |_| 8)?;
        }
        Ok(())
    }

    fn num_keys(&self) -> Result<u64, StoreError> {
        let act = |server: &StoreServer| server.values.num_keys();
        self.ask((Kind::Membership, 1, 1), act, |_| 8)
    }

    fn timeout(&self) -> Duration {
        TIMEOUT
    }
}

/// The bytes of a value in a message.
fn size_of(key: &str, value: &[u8]) -> usize {
    match key.starts_with("watch/") {
        true => value.len().max(BEAT_BYTES),
        false => value.len(),
    }
}

fn owned(keys: &[&str]) -> Vec<String> {
    keys.iter().map(|key| (*key).to_owned()).collect()
}

fn borrowed(keys: &[String]) -> Vec<&str> {
    keys.iter().map(String::as_str).collect()
}

fn length(keys: &[&str]) -> usize {
    keys.iter().map(|key| key.len() + 8).sum()
}
