//! Key-value stores through which ranks find each other.
//!
//! A [`Store`] holds small values (addresses, counters, verdicts), never tensors. Every operation
//! carries a deadline: the store's own [`Store::timeout`] or one given to the call.

mod address;
mod backoff;
mod descriptors;
pub(crate) mod entry;
mod error;
mod etcd;
mod file;
mod hash;
#[cfg(any(test, fuzzing))]
pub(crate) mod hostile;
mod prefix;
mod semantics;
mod tcp;
mod view;

use std::sync::Arc;
use std::time::Duration;

pub use address::{join_address, split_address};
pub use descriptors::raise_descriptor_limit;
pub use error::StoreError;
pub use etcd::{EtcdAddress, EtcdStore};
pub use file::FileStore;
pub use hash::HashStore;
pub use prefix::PrefixStore;
pub use tcp::{AUTH_OPCODE, StoreAccess, StoreOptions, TcpStore, TcpStoreServer, nobody_listens};
pub(crate) use tcp::{Deadline, REFUSED_KEY, random_u64, resolve};
pub(crate) use view::StoreView;

/// The deadline of a store operation unless another is given, as in PyTorch.
pub const DEFAULT_STORE_TIMEOUT: Duration = Duration::from_secs(300);

/// The longest key that any store accepts, in bytes (PyTorch's limit).
pub const MAX_KEY_BYTES: usize = 8 * 1024;

/// The longest value that any store accepts, in bytes (PyTorch's limit).
pub const MAX_VALUE_BYTES: usize = 8 * 1024 * 1024;

/// A user's key as PyTorch's stores have it, apart from keys of their own.
fn user_key(key: &str) -> Vec<u8> {
    [b"/", key.as_bytes()].concat()
}

/// Refuses a key that no store accepts.
pub(crate) fn check_key(operation: &'static str, key: &str) -> Result<(), StoreError> {
    if key.len() <= MAX_KEY_BYTES {
        return Ok(());
    }
    let start: String = key.chars().take(40).collect();
    Err(StoreError::Invalid {
        operation,
        reason: format!(
            "the key `{start}...` has {} bytes; at most {MAX_KEY_BYTES} are allowed",
            key.len()
        ),
    })
}

/// Refuses keys of which no store accepts one.
fn check_keys(operation: &'static str, keys: &[&str]) -> Result<(), StoreError> {
    keys.iter().try_for_each(|key| check_key(operation, key))
}

/// Refuses a value that no store accepts.
pub(crate) fn check_value(
    operation: &'static str,
    key: &str,
    value: &[u8],
) -> Result<(), StoreError> {
    if value.len() <= MAX_VALUE_BYTES {
        return Ok(());
    }
    Err(StoreError::Invalid {
        operation,
        reason: format!(
            "the value for `{key}` has {} bytes; at most {MAX_VALUE_BYTES} are allowed",
            value.len()
        ),
    })
}

/// A key-value store shared by all ranks of a job, with the semantics of PyTorch's stores.
///
/// Keys are UTF-8 strings of at most [`MAX_KEY_BYTES`]; values are bytes of at most
/// [`MAX_VALUE_BYTES`]. All methods may be called from many threads.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::store::{HashStore, Store, StoreError};
///
/// /// The number of ranks that have come so far.
/// fn arrive(store: &dyn Store) -> Result<i64, StoreError> {
///     store.add("arrived", 1)
/// }
/// assert_eq!(arrive(&HashStore::new())?, 1);
/// # Ok::<(), StoreError>(())
/// ```
pub trait Store: Send + Sync + std::fmt::Debug {
    /// Stores `value` under `key`, replacing what was there, and wakes those who wait for `key`.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be reached or the arguments are out of bounds.
    fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError>;

    /// Returns the value of `key`, waiting for it until `deadline` has passed.
    ///
    /// # Errors
    /// [`StoreError::Timeout`] when the key has not appeared in time.
    fn get_within(&self, key: &str, deadline: Duration) -> Result<Vec<u8>, StoreError>;

    /// [`Store::get_within`] with the store's own [`Store::timeout`].
    ///
    /// # Errors
    /// [`StoreError::Timeout`] when the key has not appeared in time.
    fn get(&self, key: &str) -> Result<Vec<u8>, StoreError> {
        self.get_within(key, self.timeout())
    }

    /// The value of `key` as it stands, `None` where there is none; nothing is waited for.
    ///
    /// It is one request. A [`check`](Self::check) and a [`get`](Self::get) after it are two, and the second
    /// waits its whole deadline for a key that was deleted in between.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be reached.
    fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let values = self.try_get_many(&[key])?;
        Ok(values.into_iter().next().flatten())
    }

    /// The values of `keys` in their order as they stand, `None` where there is none; nothing is waited for. A
    /// store over the network takes about as long for many keys as for one. Others may write in between: it is no
    /// snapshot.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be reached.
    fn try_get_many(&self, keys: &[&str]) -> Result<Vec<Option<Vec<u8>>>, StoreError>;

    /// The values of all keys in their order, waiting for them until `deadline` has passed. A store over the
    /// network takes no more requests for many keys than for one.
    ///
    /// # Errors
    /// [`StoreError::Timeout`] when a key has not appeared in time.
    fn multi_get_within(
        &self,
        keys: &[&str],
        deadline: Duration,
    ) -> Result<Vec<Vec<u8>>, StoreError> {
        let deadline = Deadline::within(deadline);
        let values = keys.iter();
        let values = values.map(|key| self.get_within(key, deadline.left()));
        values.collect()
    }

    /// Waits until every key exists or `deadline` has passed.
    ///
    /// # Errors
    /// [`StoreError::Timeout`] naming the keys when one of them has not appeared in time.
    fn wait_within(&self, keys: &[&str], deadline: Duration) -> Result<(), StoreError>;

    /// [`Store::wait_within`] with the store's own [`Store::timeout`].
    ///
    /// # Errors
    /// [`StoreError::Timeout`] naming the keys when one of them has not appeared in time.
    fn wait(&self, keys: &[&str]) -> Result<(), StoreError> {
        self.wait_within(keys, self.timeout())
    }

    /// Adds `amount` to the counter under `key` (absent counts as 0) and returns the new value.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] when the present value is not a decimal integer.
    fn add(&self, key: &str, amount: i64) -> Result<i64, StoreError>;

    /// [`Store::add`] within `limit`. A store that waits for nothing but its lock needs no limit.
    ///
    /// # Errors
    /// As [`Store::add`].
    fn add_within(&self, key: &str, amount: i64, _limit: Duration) -> Result<i64, StoreError> {
        self.add(key, amount)
    }

    /// Replaces the value of `key` by `desired` if it equals `expected`; returns what is (or
    /// would be) there afterwards.
    ///
    /// Absent and `expected` empty: stores and returns `desired`. Absent otherwise: stores nothing
    /// and returns `expected`. Equal: replaces and returns `desired`. Else: returns the value.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be reached or the arguments are out of bounds.
    fn compare_set(
        &self,
        key: &str,
        expected: &[u8],
        desired: &[u8],
    ) -> Result<Vec<u8>, StoreError>;

    /// Whether every key exists now.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be reached.
    fn check(&self, keys: &[&str]) -> Result<bool, StoreError>;

    /// Deletes `key`; returns whether it was there.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be reached.
    fn delete(&self, key: &str) -> Result<bool, StoreError>;

    /// Deletes `keys`, of which some may not be there. A store over the network takes about as long for many keys as
    /// for one.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be reached.
    fn delete_many(&self, keys: &[&str]) -> Result<(), StoreError> {
        keys.iter().try_for_each(|key| self.delete(key).map(drop))
    }

    /// How many keys there are.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be reached.
    fn num_keys(&self) -> Result<u64, StoreError>;

    /// The deadline of operations that are given none.
    fn timeout(&self) -> Duration;
}

/// A store that can be handed to many owners.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use std::sync::Arc;
/// use everburn::collectives::store::{HashStore, SharedStore};
///
/// let store: SharedStore = Arc::new(HashStore::new());
/// let same = Arc::clone(&store);
/// store.set("ready", b"yes")?;
/// assert_eq!(same.get("ready")?, b"yes");
/// # Ok::<(), everburn_collectives::store::StoreError>(())
/// ```
pub type SharedStore = Arc<dyn Store>;

#[cfg(test)]
mod tests;
