//! A store that does not delete one of its keys.

use std::sync::Mutex;

use super::*;
use crate::store::{Store, StoreError};
use crate::sync::lock;

#[derive(Debug)]
pub(super) struct Stubborn {
    pub(super) inner: SharedStore,
    /// Empty when all can be deleted.
    pub(super) keeps: Mutex<String>,
}

impl Store for Stubborn {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.inner.set(key, value)
    }

    fn get_within(&self, key: &str, deadline: Duration) -> Result<Vec<u8>, StoreError> {
        self.inner.get_within(key, deadline)
    }

    fn try_get_many(&self, keys: &[&str]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        self.inner.try_get_many(keys)
    }

    fn wait_within(&self, keys: &[&str], deadline: Duration) -> Result<(), StoreError> {
        self.inner.wait_within(keys, deadline)
    }

    fn add(&self, key: &str, amount: i64) -> Result<i64, StoreError> {
        self.inner.add(key, amount)
    }

    fn compare_set(
        &self,
        key: &str,
        expected: &[u8],
        desired: &[u8],
    ) -> Result<Vec<u8>, StoreError> {
        self.inner.compare_set(key, expected, desired)
    }

    fn check(&self, keys: &[&str]) -> Result<bool, StoreError> {
        self.inner.check(keys)
    }

    fn delete(&self, key: &str) -> Result<bool, StoreError> {
        if *lock(&self.keeps) == key {
            return Err(StoreError::Invalid {
                operation: "delete",
                reason: "it stays".into(),
            });
        }
        self.inner.delete(key)
    }

    fn num_keys(&self) -> Result<u64, StoreError> {
        self.inner.num_keys()
    }

    fn timeout(&self) -> Duration {
        self.inner.timeout()
    }
}
