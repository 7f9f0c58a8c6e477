//! The names of the keys, and what is written under them.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::printable;
use crate::store::{SharedStore, Store, StoreError};

pub(super) const KEYS: &str = "everburn/elastic";

/// How much is shown of what is wrong with an entry.
const LONGEST_FAULT: usize = 200;

/// How much is shown of what should be a number.
const LONGEST_NUMBER: usize = 40;

/// Names below [`KEYS`].
pub(super) fn key(name: &str) -> String {
    format!("{KEYS}/{name}")
}

pub(super) fn newest() -> String {
    key("newest")
}

pub(super) fn finished() -> String {
    key("finished")
}

pub(super) fn given_up() -> String {
    key("given_up")
}

pub(super) fn incarnation(slot: usize) -> String {
    key(&format!("slot/{slot}/incarnation"))
}

pub(super) fn ended(slot: usize) -> String {
    key(&format!("slot/{slot}/ended"))
}

pub(super) fn launcher_ended(node: usize) -> String {
    key(&format!("launcher/{node}/ended"))
}

pub(super) fn joined(generation: u64, slot: usize) -> String {
    key(&format!("{generation}/joined/{slot}"))
}

pub(super) fn waiting(generation: u64) -> String {
    key(&format!("{generation}/waiting"))
}

pub(super) fn closed(generation: u64) -> String {
    key(&format!("{generation}/closed"))
}

/// The prefix of all that the group of a generation stores.
pub(super) fn group(generation: u64) -> String {
    key(&format!("{generation}/group"))
}

/// The values of `keys` as they stand, in one round trip.
pub(super) fn values(
    store: &dyn Store,
    keys: &[String],
) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    store.try_get_many(&keys)
}

/// The number that `value` of `key` is; 0 where there is none.
pub(super) fn number_in(key: &str, value: Option<&[u8]>) -> Result<u64, StoreError> {
    let Some(bytes) = value else {
        return Ok(0);
    };
    let text = std::str::from_utf8(bytes).unwrap_or_default();
    text.parse().map_err(|_| {
        unreadable(
            key,
            &format!("`{}` is not a number", printable(text, LONGEST_NUMBER)),
        )
    })
}

pub(super) fn written(value: &impl Serialize) -> Result<Vec<u8>, StoreError> {
    serde_json::to_vec(value).map_err(|error| StoreError::Invalid {
        operation: "join",
        reason: error.to_string(),
    })
}

pub(super) fn read<T: DeserializeOwned>(key: &str, bytes: &[u8]) -> Result<T, StoreError> {
    serde_json::from_slice(bytes).map_err(|error| {
        // It may quote what is there.
        unreadable(key, &printable(&error.to_string(), LONGEST_FAULT))
    })
}

pub(super) fn unreadable(key: &str, reason: &str) -> StoreError {
    StoreError::Protocol {
        address: key.into(),
        reason: format!("the entry of another process cannot be read: {reason}"),
    }
}

/// Deletes all that belongs to a generation, on behalf of all its members, of whom some may be dead.
pub(super) fn forget(store: &SharedStore, generation: u64, slots: usize) -> Result<(), StoreError> {
    let mut keys: Vec<String> = (0..slots).map(|slot| joined(generation, slot)).collect();
    keys.extend([waiting(generation), closed(generation)]);
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    store.delete_many(&keys)?;
    crate::transport::forget_meshes(store, &group(generation), slots)
}
