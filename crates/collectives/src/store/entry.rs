//! Entries of ranks and launchers in a store, as JSON, and lists of keys that are made.

use everburn_record::plain;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Store, StoreError};

/// How much is shown of what is wrong with an entry.
const LONGEST_FAULT: usize = 200;

/// The entry that holds `value`.
pub(crate) fn written(
    operation: &'static str,
    value: &impl Serialize,
) -> Result<Vec<u8>, StoreError> {
    serde_json::to_vec(value).map_err(|error| StoreError::Invalid {
        operation,
        reason: error.to_string(),
    })
}

/// What the entry `bytes` of `key` holds.
pub(crate) fn read<T: DeserializeOwned>(key: &str, bytes: &[u8]) -> Result<T, StoreError> {
    serde_json::from_slice(bytes).map_err(|error| {
        // It may quote what is there.
        unreadable(key, &plain::line(&error.to_string(), LONGEST_FAULT))
    })
}

pub(crate) fn unreadable(key: &str, reason: &str) -> StoreError {
    StoreError::Protocol {
        address: key.into(),
        reason: format!("the entry of another process cannot be read: {reason}"),
    }
}

/// The values of `keys` as they stand, in one round trip.
pub(crate) fn values(
    store: &dyn Store,
    keys: &[String],
) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
    store.try_get_many(&as_strs(keys))
}

pub(crate) fn as_strs(keys: &[String]) -> Vec<&str> {
    keys.iter().map(String::as_str).collect()
}
