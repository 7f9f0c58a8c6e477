//! Stores that are views of another one.

use std::borrow::Cow;
use std::fmt::Debug;
use std::time::Duration;

use super::{Store, StoreError};

/// A store that passes everything on to another, but for what it says here.
pub(crate) trait StoreView: Send + Sync + Debug {
    fn below(&self) -> &dyn Store;

    /// What `key` is called there.
    fn name<'a>(&self, key: &'a str) -> Cow<'a, str> {
        Cow::Borrowed(key)
    }

    /// Called before each read that waits for nobody, which fails with its error.
    fn before_read(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Makes `wait` wait for up to `limit`.
    fn wait_for<R>(
        &self,
        limit: Duration,
        mut wait: impl FnMut(Duration) -> Result<R, StoreError>,
    ) -> Result<R, StoreError> {
        wait(limit)
    }
}

/// Calls `body` with the names of `keys` in the store below.
fn named<R>(view: &impl StoreView, keys: &[&str], body: impl FnOnce(&[&str]) -> R) -> R {
    let names: Vec<Cow<'_, str>> = keys.iter().map(|key| view.name(key)).collect();
    let names: Vec<&str> = names.iter().map(|name| &**name).collect();
    body(&names)
}

impl<V: StoreView> Store for V {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.below().set(&self.name(key), value)
    }

    fn get_within(&self, key: &str, deadline: Duration) -> Result<Vec<u8>, StoreError> {
        let name = self.name(key);
        self.wait_for(deadline, |left| self.below().get_within(&name, left))
    }

    fn try_get_many(&self, keys: &[&str]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        self.before_read()?;
        named(self, keys, |names| self.below().try_get_many(names))
    }

    fn multi_get_within(
        &self,
        keys: &[&str],
        deadline: Duration,
    ) -> Result<Vec<Vec<u8>>, StoreError> {
        named(self, keys, |names| {
            self.wait_for(deadline, |left| self.below().multi_get_within(names, left))
        })
    }

    fn wait_within(&self, keys: &[&str], deadline: Duration) -> Result<(), StoreError> {
        named(self, keys, |names| {
            self.wait_for(deadline, |left| self.below().wait_within(names, left))
        })
    }

    fn add(&self, key: &str, amount: i64) -> Result<i64, StoreError> {
        self.below().add(&self.name(key), amount)
    }

    fn add_within(&self, key: &str, amount: i64, limit: Duration) -> Result<i64, StoreError> {
        self.below().add_within(&self.name(key), amount, limit)
    }

    fn compare_set(
        &self,
        key: &str,
        expected: &[u8],
        desired: &[u8],
    ) -> Result<Vec<u8>, StoreError> {
        let name = self.name(key);
        self.below().compare_set(&name, expected, desired)
    }

    fn check(&self, keys: &[&str]) -> Result<bool, StoreError> {
        self.before_read()?;
        named(self, keys, |names| self.below().check(names))
    }

    fn delete(&self, key: &str) -> Result<bool, StoreError> {
        self.below().delete(&self.name(key))
    }

    fn delete_many(&self, keys: &[&str]) -> Result<(), StoreError> {
        named(self, keys, |names| self.below().delete_many(names))
    }

    fn num_keys(&self) -> Result<u64, StoreError> {
        self.below().num_keys()
    }

    fn timeout(&self) -> Duration {
        self.below().timeout()
    }
}
