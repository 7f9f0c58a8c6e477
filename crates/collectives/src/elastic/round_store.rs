//! A generation's part of the store, in which nobody waits for the dead.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::keys;
use super::member::Member;
use super::round_view::joined_in;
use crate::runtime;
use crate::store::{Deadline, PrefixStore, Store, StoreError, StoreView, entry};
use crate::sync::lock;

/// How often this process looks whether the others are still there, however often it asks for something.
const LOOK: Duration = Duration::from_millis(250);

/// This many members look that often. Each look reads a key of every member, so more members look less often.
const MEMBERS: usize = 64;

/// A [`PrefixStore`] whose waits fail once a member of the generation is known to be gone.
#[derive(Debug)]
pub(super) struct RoundStore {
    own: PrefixStore,
    generation: u64,
    others: Vec<Member>,
    looked: Mutex<Instant>,
    /// How often this process looks.
    interval: Duration,
}

impl RoundStore {
    pub(super) fn new(
        own: PrefixStore,
        generation: u64,
        rank: usize,
        mut members: Vec<Member>,
    ) -> Self {
        members.remove(rank);
        let factor = u32::try_from(1 + members.len() / MEMBERS).unwrap_or(u32::MAX);
        Self {
            own,
            generation,
            // The round has closed just now, and a first look of all members would be a storm.
            looked: Mutex::new(runtime::now()),
            others: members,
            interval: LOOK.saturating_mul(factor),
        }
    }

    /// Fails once this generation cannot form any more, or will not last: one round trip, and none soon after the
    /// last one, or after the round has closed.
    fn whole(&self) -> Result<(), StoreError> {
        let mut looked = lock(&self.looked);
        if runtime::elapsed(*looked) < self.interval {
            return Ok(());
        }
        self.look()?;
        *looked = runtime::now();
        Ok(())
    }

    fn look(&self) -> Result<(), StoreError> {
        let whole_store = &**self.own.inner();
        let broken = |member: &Member, what: &str| StoreError::RoundBroken {
            generation: self.generation,
            reason: format!("{member} {what}"),
        };
        let next = self.generation + 1;
        let of_member = |member: &Member| keys::ended(member.slot);
        let mut wanted: Vec<String> = self.others.iter().map(of_member).collect();
        wanted.push(keys::waiting(next));
        let found = entry::values(whole_store, &wanted)?;
        for (member, (key, ended)) in self.others.iter().zip(wanted.iter().zip(&found)) {
            if keys::number_in(key, ended.as_deref())? >= member.incarnation {
                return Err(broken(member, "has ended"));
            }
        }
        // Nobody has joined, nearly always.
        if found.last().is_none_or(Option::is_none) {
            return Ok(());
        }
        let of_member = |member: &Member| keys::joined(next, member.slot);
        let wanted: Vec<String> = self.others.iter().map(of_member).collect();
        let found = entry::values(whole_store, &wanted)?;
        for (member, (key, joined)) in self.others.iter().zip(wanted.iter().zip(&found)) {
            let joined = joined_in(key, joined.as_deref(), member.slot)?;
            if joined.is_some_and(|it| it.is_same_process(member)) {
                return Err(broken(member, "has gone on to the next round"));
            }
        }
        Ok(())
    }
}

impl StoreView for RoundStore {
    fn below(&self) -> &dyn Store {
        &self.own
    }

    /// Fails when the generation is broken: who dials a peer again and again reads something in between.
    fn before_read(&self) -> Result<(), StoreError> {
        self.whole()
    }

    /// Waits in pieces, and looks at the others in between.
    fn wait_for<R>(
        &self,
        limit: Duration,
        mut wait: impl FnMut(Duration) -> Result<R, StoreError>,
    ) -> Result<R, StoreError> {
        let deadline = Deadline::within(limit);
        loop {
            let left = deadline.left();
            match wait(left.min(self.interval)) {
                Err(StoreError::Timeout {
                    operation, keys, ..
                }) => {
                    self.whole()?;
                    if deadline.left().is_zero() {
                        return Err(StoreError::Timeout {
                            operation,
                            keys,
                            waited: deadline.elapsed(),
                        });
                    }
                }
                outcome => return outcome,
            }
        }
    }
}
