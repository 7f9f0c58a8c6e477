//! A store in this process, with just what the mesh asks of one.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use everburn_collectives::store::{Store, StoreError};

#[derive(Debug, Default)]
pub struct MemoryStore {
    values: Mutex<HashMap<String, Vec<u8>>>,
    changed: Condvar,
}

impl MemoryStore {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }
}

impl Store for MemoryStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.values
            .lock()
            .unwrap()
            .insert(key.to_owned(), value.to_vec());
        self.changed.notify_all();
        Ok(())
    }

    fn get_within(&self, key: &str, deadline: Duration) -> Result<Vec<u8>, StoreError> {
        self.wait_within(&[key], deadline)?;
        Ok(self.values.lock().unwrap()[key].clone())
    }

    fn wait_within(&self, keys: &[&str], deadline: Duration) -> Result<(), StoreError> {
        let end = Instant::now() + deadline;
        let mut values = self.values.lock().unwrap();
        while !keys.iter().all(|key| values.contains_key(*key)) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(StoreError::Timeout {
                    operation: "wait",
                    keys: keys.iter().map(ToString::to_string).collect(),
                    waited: deadline,
                });
            }
            values = self.changed.wait_timeout(values, left).unwrap().0;
        }
        Ok(())
    }

    fn add(&self, key: &str, amount: i64) -> Result<i64, StoreError> {
        let mut values = self.values.lock().unwrap();
        let old = values
            .get(key)
            .map_or("0", |value| std::str::from_utf8(value).unwrap());
        let new = old.parse::<i64>().unwrap() + amount;
        values.insert(key.to_owned(), new.to_string().into_bytes());
        self.changed.notify_all();
        Ok(new)
    }

    fn compare_set(&self, key: &str, _: &[u8], _: &[u8]) -> Result<Vec<u8>, StoreError> {
        let reason = format!("the mesh does not compare and set {key}");
        Err(StoreError::Invalid {
            operation: "compare_set",
            reason,
        })
    }

    fn check(&self, keys: &[&str]) -> Result<bool, StoreError> {
        let values = self.values.lock().unwrap();
        Ok(keys.iter().all(|key| values.contains_key(*key)))
    }

    fn delete(&self, key: &str) -> Result<bool, StoreError> {
        Ok(self.values.lock().unwrap().remove(key).is_some())
    }

    fn num_keys(&self) -> Result<u64, StoreError> {
        Ok(self.values.lock().unwrap().len() as u64)
    }

    fn timeout(&self) -> Duration {
        Duration::from_secs(30)
    }
}
