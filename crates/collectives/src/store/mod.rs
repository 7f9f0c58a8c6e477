//! Key-value stores through which ranks find each other.
//!
//! A [`Store`] holds small values (addresses, counters, verdicts), never tensors. Every operation
//! carries a deadline: the store's own [`Store::timeout`] or one given to the call.

mod file;
mod hash;
#[cfg(any(test, fuzzing))]
pub(crate) mod hostile;
mod prefix;
mod semantics;
mod tcp;

use std::sync::Arc;
use std::time::Duration;

pub use file::FileStore;
pub use hash::HashStore;
pub use prefix::PrefixStore;
pub use tcp::{AUTH_OPCODE, StoreOptions, TcpStore, TcpStoreServer};
pub(crate) use tcp::{Deadline, random_u64, resolve, split};

/// The deadline of a store operation unless another is given, as in PyTorch.
pub const DEFAULT_STORE_TIMEOUT: Duration = Duration::from_secs(300);

/// The longest key that any store accepts, in bytes (PyTorch's limit).
pub const MAX_KEY_BYTES: usize = 8 * 1024;

/// The longest value that any store accepts, in bytes (PyTorch's limit).
pub const MAX_VALUE_BYTES: usize = 8 * 1024 * 1024;

/// What can go wrong with a store operation.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The deadline passed before every key was there.
    #[error(
        "the store did not answer `{operation}` for {keys:?} within {waited:?}; \
         check that every rank has started and that none has ended with an error"
    )]
    Timeout {
        /// The operation that waited.
        operation: &'static str,
        /// The keys that were waited for.
        keys: Vec<String>,
        /// How long it waited.
        waited: Duration,
    },
    /// The store cannot be reached, or the connection broke.
    #[error("the store at {address} cannot be reached for `{operation}`: {reason}")]
    Unreachable {
        /// Where the store is, as the user gave it.
        address: String,
        /// The operation that failed.
        operation: &'static str,
        /// The cause in words, with what to check.
        reason: String,
    },
    /// The other side does not speak the protocol, or refused this client.
    #[error("the store at {address} answered against the protocol: {reason}")]
    Protocol {
        /// Where the store is.
        address: String,
        /// What was wrong.
        reason: String,
    },
    /// The arguments can never succeed (a key or value too long, a counter that is no number).
    #[error("invalid store operation `{operation}`: {reason}")]
    Invalid {
        /// The operation that was refused.
        operation: &'static str,
        /// What was wrong.
        reason: String,
    },
    /// Waiting is in vain, because a member of an elastic generation is gone.
    #[error("generation {generation} is broken: {reason}; join the next round")]
    RoundBroken {
        /// The generation.
        generation: u64,
        /// Who is gone, and how that is known.
        reason: String,
    },
    /// A server cannot listen there because another process does.
    #[error(
        "the store cannot listen on {address}: the address is in use by another process; \
         choose another port, or port 0 for any free one"
    )]
    AddressInUse {
        /// The address that was asked for.
        address: String,
    },
    /// A server that other machines can reach was to be started without a job token.
    #[error(
        "the store will not listen on {address} without a job token, because other machines can \
         reach it; give every rank the same secret in EVERBURN_JOB_TOKEN (or \
         `StoreOptions::job_token`), or listen on 127.0.0.1"
    )]
    TokenRequired {
        /// The address that was asked for.
        address: String,
    },
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

    /// How many keys there are.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be reached.
    fn num_keys(&self) -> Result<u64, StoreError>;

    /// The deadline of operations that are given none.
    fn timeout(&self) -> Duration;
}

/// A store that can be handed to many owners.
pub type SharedStore = Arc<dyn Store>;
