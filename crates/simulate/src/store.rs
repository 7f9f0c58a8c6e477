//! The job's store as a server on machine 0: one thread that serves one request after the other.
//!
//! A request takes the messages that `TcpStore` takes for it: a write has no reply, a read of a key that may be absent
//! asks first and then waits on another connection.

mod client;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use everburn_collectives::store::{HashStore, Store};
use everburn_collectives::sync::lock;

pub(crate) use self::client::SimulatedStore;
use crate::kernel::Kernel;
use crate::network::Network;

/// How long the server's thread takes per request, by docs/scale.md, and per key of it, by estimate.
const PER_REQUEST: Duration = Duration::from_micros(8);
const PER_KEY: Duration = Duration::from_nanos(500);

struct Waiter {
    keys: Vec<String>,
    cancelled: Arc<AtomicBool>,
    answer: Box<dyn FnOnce() + Send>,
}

#[derive(Default)]
struct Server {
    waiters: HashMap<u64, Waiter>,
    /// The waiters for each key that is absent.
    waited: HashMap<String, Vec<u64>>,
    next_waiter: u64,
    busy_until: Duration,
    /// How long requests have waited for the thread, at most.
    longest_queue: Duration,
}

pub(crate) struct StoreServer {
    kernel: Arc<Kernel>,
    network: Arc<Network>,
    values: HashStore,
    server: Mutex<Server>,
}

impl StoreServer {
    pub(crate) fn new(kernel: &Arc<Kernel>, network: &Arc<Network>) -> Arc<Self> {
        Arc::new(Self {
            kernel: kernel.clone(),
            network: network.clone(),
            values: HashStore::new(),
            server: Mutex::default(),
        })
    }

    /// How long a request has waited for the server's thread, at most, since this was asked last.
    pub(crate) fn take_longest_queue(&self) -> Duration {
        std::mem::take(&mut lock(&self.server).longest_queue)
    }

    pub(crate) fn keys(&self) -> u64 {
        self.values.num_keys().unwrap_or(0)
    }

    /// The first of `keys` that is not there.
    fn absent(&self, keys: &[String]) -> Option<String> {
        let is_absent = |key: &&String| !matches!(self.values.check(&[key.as_str()]), Ok(true));
        keys.iter().find(is_absent).cloned()
    }

    /// The time at which the thread has served a request that has arrived now.
    fn serve(&self, keys: usize) -> Duration {
        let now = self.kernel.now();
        let keys = u32::try_from(keys).unwrap_or(u32::MAX);
        let mut server = lock(&self.server);
        let begins = server.busy_until.max(now);
        server.longest_queue = server.longest_queue.max(begins - now);
        server.busy_until = begins + PER_REQUEST + PER_KEY * keys;
        server.busy_until
    }

    /// Answers those who wait for `key`, which is there now.
    fn appeared(&self, key: &str) {
        let mut answers = Vec::new();
        let mut server = lock(&self.server);
        for id in server.waited.remove(key).unwrap_or_default() {
            let Some(waiter) = server.waiters.remove(&id) else {
                continue;
            };
            match self.absent(&waiter.keys) {
                Some(absent) => {
                    server.waited.entry(absent).or_default().push(id);
                    server.waiters.insert(id, waiter);
                }
                None => answers.push(waiter),
            }
        }
        drop(server);
        for waiter in answers {
            if !waiter.cancelled.load(Ordering::Acquire) {
                (waiter.answer)();
            }
        }
    }
}
