//! The end of a round: one process closes it, and the others wait for that.

use std::time::Duration;

use serde::Serialize;

use super::Membership;
use crate::elastic::keys;
use crate::elastic::member::{Generation, Member};
use crate::store::{StoreError, entry};
use crate::sync::lock;

/// The polling interval of the first waiting process, by slots, which closes the round as soon as it sees that nobody else is
/// expected. Where processes are counted, the last one that joins closes it.
const POLL: Duration = Duration::from_millis(20);

/// The longest polling interval. It grows with the square of the position among the waiting slots, so that the load on
/// the store hardly grows with their number.
const LONGEST_POLL: Duration = Duration::from_millis(500);

/// Both are for jobs of fewer slots than this; each poll reads all slots, so larger jobs poll less often. There the
/// position is that of arrival: nobody but the first and the last reads the slots to know it.
pub(super) const SLOTS: usize = 64;

/// How many times less often the first process polls, at most.
const MOST_FACTOR: u32 = 5;

/// The most generations whose failed deletion is retried.
const MOST_UNDELETED: usize = 8;

/// What is written of a round: two processes that close it do not write the same.
#[derive(Serialize)]
struct Closed {
    #[serde(flatten)]
    next: Generation,
    by: usize,
}

impl Membership {
    /// Closes the round, unless another process has done so. Once the round is closed, later errors are only
    /// logged: this process may be a member.
    pub(super) fn close(
        &self,
        number: u64,
        newest: Option<Generation>,
        newest_bytes: Option<Vec<u8>>,
        members: Vec<Member>,
    ) -> Result<(), StoreError> {
        let lost = newest.map_or_else(Vec::new, |newest| newest.lost_before(&members));
        let next = Generation {
            number,
            members,
            lost,
        };
        let by = self.options.slot;
        let next = entry::written("join", &Closed { next, by })?;
        let expected = newest_bytes.unwrap_or_default();
        let there = self.store.compare_set(&keys::newest(), &expected, &next)?;
        if there != next {
            return Ok(());
        }
        if let Err(error) = self.store.set(&keys::closed(number), b"1") {
            // Waiting processes also poll.
            tracing::warn!(
                "waiting processes were not notified that generation {number} has formed: {error}"
            );
        }
        if let Some(old) = number.checked_sub(2).filter(|old| *old > 0) {
            self.delete_keys(old);
        }
        Ok(())
    }

    /// Deletes the keys of generation `old` and of earlier failed deletions. A failed deletion is retried
    /// when this process closes the next round.
    fn delete_keys(&self, old: u64) {
        let mut undeleted = lock(&self.undeleted);
        undeleted.push(old);
        undeleted.retain(|old| {
            let deleted = keys::forget(&self.store, *old, self.options.max);
            if let Err(error) = &deleted {
                tracing::warn!(
                    "the keys of generation {old} were not deleted from the store: {error}"
                );
            }
            deleted.is_err()
        });
        let excess = undeleted.len().saturating_sub(MOST_UNDELETED);
        undeleted.drain(..excess);
    }

    /// Waits until the round closes, for one polling interval at most: the `turn`th process that waits, from 1.
    pub(super) fn wait_for_close(&self, turn: usize, number: u64) -> Result<(), StoreError> {
        let turn = u32::try_from(turn).unwrap_or(u32::MAX);
        let slots = self.options.max / SLOTS;
        let factor = u32::try_from(1 + slots).unwrap_or(u32::MAX);
        // The first one looks often even in a large job: the others wait for it.
        let poll = POLL * factor.min(MOST_FACTOR);
        let pause = poll.saturating_mul(turn.saturating_mul(turn));
        let pause = pause.min(LONGEST_POLL.saturating_mul(factor));
        match self.store.wait_within(&[&keys::closed(number)], pause) {
            Err(StoreError::Timeout { .. }) => Ok(()),
            outcome => outcome,
        }
    }
}
