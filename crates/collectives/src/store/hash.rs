//! A store in the memory of one process, for ranks that are threads.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::semantics::{self, CompareSet};
use super::{DEFAULT_STORE_TIMEOUT, Store, StoreError, check_key, check_keys, check_value};
use crate::sync::lock;

/// A [`Store`] in the memory of this process; clones share one content.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::store::{HashStore, Store};
///
/// let store = HashStore::new();
/// let same = store.clone();
/// store.set("address", b"127.0.0.1:29500")?;
/// assert_eq!(same.get("address")?, b"127.0.0.1:29500");
/// assert_eq!(same.add("arrived", 1)?, 1);
/// # Ok::<(), everburn_collectives::store::StoreError>(())
/// ```
#[derive(Clone)]
pub struct HashStore {
    shared: Arc<Shared>,
    timeout: Duration,
}

#[derive(Default)]
struct Shared {
    values: Mutex<HashMap<String, Vec<u8>>>,
    changed: Condvar,
}

impl HashStore {
    /// An empty store with [`DEFAULT_STORE_TIMEOUT`].
    #[must_use]
    pub fn new() -> Self {
        Self::with_timeout(DEFAULT_STORE_TIMEOUT)
    }

    /// An empty store whose operations wait for `timeout` by default.
    #[must_use]
    pub fn with_timeout(timeout: Duration) -> Self {
        Self {
            shared: Arc::default(),
            timeout,
        }
    }

    fn values(&self) -> MutexGuard<'_, HashMap<String, Vec<u8>>> {
        lock(&self.shared.values)
    }

    /// Waits for all keys and returns the map still locked, so that a value cannot go away again.
    fn wait_locked(
        &self,
        operation: &'static str,
        keys: &[&str],
        deadline: Duration,
    ) -> Result<MutexGuard<'_, HashMap<String, Vec<u8>>>, StoreError> {
        check_keys(operation, keys)?;
        let start = Instant::now();
        let lacks = |values: &mut HashMap<String, Vec<u8>>| {
            !keys.iter().all(|key| values.contains_key(*key))
        };
        let changed = &self.shared.changed;
        let waited = changed.wait_timeout_while(self.values(), deadline, lacks);
        let (values, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if !timeout.timed_out() {
            return Ok(values);
        }
        let missing = keys.iter().filter(|key| !values.contains_key(**key));
        Err(StoreError::Timeout {
            operation,
            keys: missing.map(|key| (*key).to_owned()).collect(),
            waited: start.elapsed(),
        })
    }
}

impl Default for HashStore {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for HashStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HashStore")
            .field("keys", &self.values().len())
            .field("timeout", &self.timeout)
            .finish()
    }
}

impl Store for HashStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        check_key("set", key)?;
        check_value("set", key, value)?;
        self.values().insert(key.to_owned(), value.to_vec());
        self.shared.changed.notify_all();
        Ok(())
    }

    fn get_within(&self, key: &str, deadline: Duration) -> Result<Vec<u8>, StoreError> {
        let values = self.wait_locked("get", &[key], deadline)?;
        Ok(values.get(key).cloned().unwrap_or_default())
    }

    fn try_get_many(&self, keys: &[&str]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        let values = self.values();
        Ok(keys.iter().map(|key| values.get(*key).cloned()).collect())
    }

    fn wait_within(&self, keys: &[&str], deadline: Duration) -> Result<(), StoreError> {
        self.wait_locked("wait", keys, deadline).map(drop)
    }

    fn add(&self, key: &str, amount: i64) -> Result<i64, StoreError> {
        check_key("add", key)?;
        let mut values = self.values();
        let sum = semantics::counter_after(values.get(key).map(Vec::as_slice), amount)
            .map_err(|fault| fault.into_error(key, amount))?;
        values.insert(key.to_owned(), sum.to_string().into_bytes());
        self.shared.changed.notify_all();
        Ok(sum)
    }

    fn compare_set(
        &self,
        key: &str,
        expected: &[u8],
        desired: &[u8],
    ) -> Result<Vec<u8>, StoreError> {
        check_key("compare_set", key)?;
        check_value("compare_set", key, desired)?;
        let mut values = self.values();
        let current = values.get(key).map(Vec::as_slice);
        match semantics::compare_set(current, expected) {
            CompareSet::Store => {
                values.insert(key.to_owned(), desired.to_vec());
                self.shared.changed.notify_all();
                Ok(desired.to_vec())
            }
            CompareSet::Return(value) => Ok(value.to_vec()),
        }
    }

    fn check(&self, keys: &[&str]) -> Result<bool, StoreError> {
        let values = self.values();
        Ok(keys.iter().all(|key| values.contains_key(*key)))
    }

    fn delete(&self, key: &str) -> Result<bool, StoreError> {
        Ok(self.values().remove(key).is_some())
    }

    fn num_keys(&self) -> Result<u64, StoreError> {
        Ok(self.values().len() as u64)
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }
}
