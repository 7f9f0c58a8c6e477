//! A machine whose launcher ends before its ranks have joined.

use everburn_record::plain;

use super::verdict::{Verdict, decide};
use super::{KEYS, RankHolder, key_of};
use crate::rendezvous::StartedRank;
use crate::rendezvous::settings::MAX_WORLD_SIZE;
use crate::store::{Store, StoreError, entry};

/// How much is passed on of why a launcher has ended.
pub(super) const LONGEST_REASON: usize = 1000;

/// Has the ranks that wait in `store` for others to join, and later ones, learn that the launcher of `machine` has ended, and
/// why. Whether it has: `false` where all ranks had joined before, or have found out why they cannot, and where ranks of that
/// machine are there, as those of another launcher with its number. For launchers, whose ranks join once per process.
///
/// # Errors
/// [`StoreError`] of a store that is out of reach, or whose entries cannot be read.
pub fn give_up_joining(
    store: &dyn Store,
    machine: usize,
    reason: &str,
) -> Result<bool, StoreError> {
    if has_ranks_of(store, machine)? {
        return Ok(false);
    }
    let key = |name: &str| key_of(0, name);
    let reason = plain::line(reason, LONGEST_REASON);
    let verdict = Verdict::GivenUp { machine, reason };
    Ok(decide(store, &verdict, &key)? == verdict)
}

/// Whether a rank of `machine` has come, and is not known to be dead.
fn has_ranks_of(store: &dyn Store, machine: usize) -> Result<bool, StoreError> {
    let Some(first) = store.try_get(&key_of(0, "first"))? else {
        return Ok(false);
    };
    let first: StartedRank = entry::read(KEYS, &first)?;
    let ranks = 0..first.world_size.min(MAX_WORLD_SIZE);
    let keys: Vec<String> = ranks.map(|rank| key_of(0, &rank.to_string())).collect();
    for value in entry::values(store, &keys)?.into_iter().flatten() {
        let found = RankHolder(Some(entry::read(KEYS, &value)?));
        if found.machine() == Some(machine) && found.is_there() {
            return Ok(true);
        }
    }
    Ok(false)
}
