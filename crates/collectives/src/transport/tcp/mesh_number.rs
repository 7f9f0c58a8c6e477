//! The numbers of a job's meshes in the store, and deleting what meshes have left there.

use std::sync::Arc;

use crate::store::entry::as_strs;
use crate::store::{PrefixStore, SharedStore, Store, StoreError};

const LAST: &str = "everburn/mesh/last";

/// How many meshes are looked for at most when their keys are deleted: a generation makes one or two, and
/// a counter that somebody has spoilt must not keep us busy.
const MOST_MESHES: u64 = 1024;

/// The number of the last mesh that was made through `store`, or that failed for all ranks.
pub(super) fn last_mesh(store: &dyn Store) -> Result<u64, StoreError> {
    let Some(value) = store.try_get(LAST)? else {
        return Ok(0);
    };
    numbered(&value).ok_or_else(|| StoreError::Invalid {
        operation: "get",
        reason: format!("`{LAST}` holds `{}`", String::from_utf8_lossy(&value)),
    })
}

fn numbered(value: &[u8]) -> Option<u64> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

/// Notes that mesh `number` is no longer to be made. A rank that is late takes nothing back.
pub(super) fn mark_last(store: &dyn Store, number: u64) -> Result<(), StoreError> {
    let desired = number.to_string().into_bytes();
    let mut seen = Vec::new();
    loop {
        let there = store.compare_set(LAST, &seen, &desired)?;
        if there == desired || numbered(&there).is_some_and(|last| last >= number) {
            return Ok(());
        }
        if there == seen {
            // The key is gone, deleted with all others of a mesh that is over.
            return Ok(());
        }
        seen = there;
    }
}

/// Deletes what meshes of up to `ranks` ranks have left below `prefix` of `store`.
pub(crate) fn forget_meshes(
    store: &SharedStore,
    prefix: &str,
    ranks: usize,
) -> Result<(), StoreError> {
    let store = PrefixStore::new(prefix, Arc::clone(store));
    let last = last_mesh(&store)?;
    store.delete(LAST)?;
    // One more may have begun.
    for mesh in 1..=last.saturating_add(1).min(MOST_MESHES) {
        let prefix = format!("everburn/mesh/{mesh}");
        let of_ranks = (0..ranks)
            .flat_map(|rank| ["address", "made"].map(|name| format!("{prefix}/{name}/{rank}")));
        let of_mesh = ["session", "published", "all", "failed"];
        let of_mesh = of_mesh.map(|name| format!("{prefix}/{name}"));
        let keys: Vec<String> = of_ranks.chain(of_mesh).collect();
        store.delete_many(&as_strs(&keys))?;
    }
    Ok(())
}
