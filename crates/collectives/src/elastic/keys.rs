//! The names of the keys, and what is written under them.

use everburn_record::plain;

use crate::store::entry::{as_strs, unreadable};
use crate::store::{SharedStore, StoreError};

pub(super) const KEYS: &str = "everburn/elastic";

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

pub(super) fn stop_requested() -> String {
    key("stop_requested")
}

pub(super) fn refused() -> String {
    key("refused")
}

pub(super) fn incarnation(slot: usize) -> String {
    key(&format!("slot/{slot}/incarnation"))
}

pub(super) fn ended(slot: usize) -> String {
    key(&format!("slot/{slot}/ended"))
}

pub(super) fn launcher_lease(node: usize) -> String {
    key(&format!("launcher/{node}/lease"))
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

/// The number that `value` of `key` is; 0 where there is none.
pub(super) fn number_in(key: &str, value: Option<&[u8]>) -> Result<u64, StoreError> {
    let Some(bytes) = value else {
        return Ok(0);
    };
    let text = std::str::from_utf8(bytes).unwrap_or_default();
    text.parse().map_err(|_| {
        unreadable(
            key,
            &format!("`{}` is not a number", plain::line(text, LONGEST_NUMBER)),
        )
    })
}

/// Deletes all that belongs to a generation, on behalf of all its members, of whom some may be dead.
pub(super) fn forget(store: &SharedStore, generation: u64, slots: usize) -> Result<(), StoreError> {
    let mut keys: Vec<String> = (0..slots).map(|slot| joined(generation, slot)).collect();
    keys.extend([waiting(generation), closed(generation)]);
    store.delete_many(&as_strs(&keys))?;
    crate::transport::forget_meshes(store, &group(generation), slots)
}
