//! A store that puts a prefix before every key of another.

use std::time::Duration;

use super::{SharedStore, Store, StoreError};

/// A view of another [`Store`] in which every key is `prefix + "/" + key`, as in PyTorch.
///
/// Several jobs, groups or attempts share one store by it. [`Store::num_keys`] counts the keys of
/// the whole store below, as PyTorch's does.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use std::sync::Arc;
/// use everburn::collectives::store::{HashStore, PrefixStore, Store};
///
/// let whole = Arc::new(HashStore::new());
/// let group = PrefixStore::new("group0", whole.clone());
/// group.set("size", b"4")?;
/// assert_eq!(whole.get("group0/size")?, b"4");
/// # Ok::<(), everburn_collectives::store::StoreError>(())
/// ```
#[derive(Debug, Clone)]
pub struct PrefixStore {
    prefix: String,
    inner: SharedStore,
}

impl PrefixStore {
    /// A view of `inner` below `prefix`.
    #[must_use]
    pub fn new(prefix: impl Into<String>, inner: SharedStore) -> Self {
        Self {
            prefix: prefix.into(),
            inner,
        }
    }

    /// The store below.
    #[must_use]
    pub fn inner(&self) -> &SharedStore {
        &self.inner
    }

    fn prefixed(&self, key: &str) -> String {
        format!("{}/{key}", self.prefix)
    }

    fn all_prefixed(&self, keys: &[&str]) -> Vec<String> {
        keys.iter().map(|key| self.prefixed(key)).collect()
    }
}

fn as_strs(keys: &[String]) -> Vec<&str> {
    keys.iter().map(String::as_str).collect()
}

impl Store for PrefixStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.inner.set(&self.prefixed(key), value)
    }

    fn get_within(&self, key: &str, deadline: Duration) -> Result<Vec<u8>, StoreError> {
        self.inner.get_within(&self.prefixed(key), deadline)
    }

    fn multi_get_within(
        &self,
        keys: &[&str],
        deadline: Duration,
    ) -> Result<Vec<Vec<u8>>, StoreError> {
        let keys = self.all_prefixed(keys);
        self.inner.multi_get_within(&as_strs(&keys), deadline)
    }

    fn try_get_many(&self, keys: &[&str]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        let keys = self.all_prefixed(keys);
        self.inner.try_get_many(&as_strs(&keys))
    }

    fn wait_within(&self, keys: &[&str], deadline: Duration) -> Result<(), StoreError> {
        let keys = self.all_prefixed(keys);
        self.inner.wait_within(&as_strs(&keys), deadline)
    }

    fn add(&self, key: &str, amount: i64) -> Result<i64, StoreError> {
        self.inner.add(&self.prefixed(key), amount)
    }

    fn compare_set(
        &self,
        key: &str,
        expected: &[u8],
        desired: &[u8],
    ) -> Result<Vec<u8>, StoreError> {
        self.inner
            .compare_set(&self.prefixed(key), expected, desired)
    }

    fn check(&self, keys: &[&str]) -> Result<bool, StoreError> {
        let keys = self.all_prefixed(keys);
        self.inner.check(&as_strs(&keys))
    }

    fn delete(&self, key: &str) -> Result<bool, StoreError> {
        self.inner.delete(&self.prefixed(key))
    }

    fn delete_many(&self, keys: &[&str]) -> Result<(), StoreError> {
        self.inner.delete_many(&as_strs(&self.all_prefixed(keys)))
    }

    fn num_keys(&self) -> Result<u64, StoreError> {
        self.inner.num_keys()
    }

    fn timeout(&self) -> Duration {
        self.inner.timeout()
    }
}
