//! Ranks that have reached the store agree on who they are.
//!
//! All keys are below `everburn/join`, apart from those of PyTorch's ranks on the same store:
//!
//! | key | value |
//! |---|---|
//! | `left/<rank>` | how often this rank has joined and left before: the generation `<g>` |
//! | `<g>/<rank>` | the [`StartedRank`] whose [`Lease`] the rank is; with a count of two or more it has joined |
//! | `<g>/first` | the [`StartedRank`] with whom all others compare their world size and `--elastic` |
//! | `<g>/joined` | how many have joined, some of which may be dead, and others have their leases |
//! | `<g>/decided` | the first [`Verdict`], by compare-and-set |
//! | `<g>/verdict` | the same, by `set`, which wakes those who wait on every server |
//! | `0/told` | set by a rank of an elastic job that has read a contradiction there |
//!
//! Every rank waits for one key only, the verdict. The rank that completes the world sets it, or
//! the first to see a contradiction, so all learn of it at once and none runs into its deadline; or the first whose
//! deadline passes, with the ranks that are missing. While ranks wait they keep their leases. That of a process which was
//! killed is free until all have joined.
//!
//! Ranks of an elastic job meet elsewhere ([`elastic`](crate::elastic)); before that they compare themselves with
//! `0/first`, and in their first round they look for a contradiction at `0/verdict`.

mod give_up;
mod verdict;

use std::time::Duration;

pub use self::give_up::give_up_joining;
use self::verdict::{Verdict, decide, first_of_all, object};
use super::lease::{Holder, Lease, LeaseState};
use super::{MissingRanks, RanksAwaited, RendezvousError, StartedRank, WaitListener};
use crate::store::{Deadline, Store, StoreError, entry};
use crate::wait_notice::WaitNotice;

const KEYS: &str = "everburn/join";

/// How long a rank that ends of a contradiction waits until a rank of an elastic job has read it: a few of its looks. The
/// store may end with the one that waits.
const TOLD: Duration = Duration::from_secs(1);

/// The counter that a rank moves when it leaves, so that it can join again on the same store.
pub(super) fn left_key(rank: usize) -> String {
    format!("{KEYS}/left/{rank}")
}

fn key_of(generation: i64, name: &str) -> String {
    format!("{KEYS}/{generation}/{name}")
}

/// Where a rank of an elastic job finds what others have found out before any group has formed.
pub(crate) fn first_verdict_key() -> String {
    key_of(0, "verdict")
}

/// Fails if the first verdict is that a rank was started without `--elastic`, or with another range.
pub(crate) fn refuse_contradiction(
    store: &dyn Store,
    verdict: &[u8],
) -> Result<(), RendezvousError> {
    // Ranks that are not elastic may be at odds with each other; what cannot be read is theirs, too.
    let Ok(verdict @ Verdict::Elastic { .. }) = serde_json::from_slice(verdict) else {
        return Ok(());
    };
    // Whoever waits for it does so for a moment only.
    let _ = store.set(&key_of(0, "told"), b"1");
    verdict.into_result()
}

/// Compares how a rank of an elastic job was started with the first of all ranks. Where they differ, ranks that wait learn
/// it, and are waited for for a moment if they are elastic, too: their store may end with this rank. A job that has begun
/// continues, and says nothing.
pub(crate) fn compare_elastic(store: &dyn Store, me: &StartedRank) -> Result<(), RendezvousError> {
    let failed = |source| RendezvousError::Store {
        rank: me.rank,
        source,
    };
    let key = |name: &str| key_of(0, name);
    let first = first_of_all(store, me, &key).map_err(failed)?;
    if first.elastic == me.elastic {
        return Ok(());
    }
    let is_elastic = first.elastic.is_some();
    let other = me.clone();
    let verdict = Verdict::Elastic { first, other };
    decide(store, &verdict, &key).map_err(failed)?;
    if is_elastic {
        let _ = store.wait_within(&[&key("told")], TOLD);
    }
    verdict.into_result()
}

/// Has the ranks that wait in `store` for others to join, and later ones, learn that the job was stopped on request.
/// Whether it has: `false` where all ranks had joined before, or have found out why they cannot. For launchers, whose ranks
/// join once per process.
///
/// # Errors
/// [`StoreError`] of a store that is out of reach.
pub fn stop_joining(store: &dyn Store) -> Result<bool, StoreError> {
    let key = |name: &str| key_of(0, name);
    Ok(decide(store, &Verdict::Stopped, &key)? == Verdict::Stopped)
}

/// Whether the ranks that meet in `store` wait for none any more: all have joined, or have found out why they cannot. For
/// launchers, as [`stop_joining`].
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::rendezvous::{have_met, stop_joining};
/// use everburn::collectives::store::HashStore;
///
/// let store = HashStore::new();
/// assert!(!have_met(&store)?);
/// stop_joining(&store)?;
/// assert!(have_met(&store)?);
/// # Ok::<(), everburn_collectives::store::StoreError>(())
/// ```
///
/// # Errors
/// [`StoreError`] of a store that is out of reach.
pub fn have_met(store: &dyn Store) -> Result<bool, StoreError> {
    let decided = store.try_get(&key_of(0, "decided"))?;
    Ok(decided.is_some())
}

pub(crate) struct Joining<'a> {
    pub(crate) store: &'a dyn Store,
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    /// How many ranks each machine has, where that is known: missing ones are named with theirs.
    pub(crate) ranks_per_machine: Option<usize>,
    pub(crate) deadline: Deadline,
    pub(crate) on_wait: &'a WaitListener,
}

impl Joining<'_> {
    fn failed(&self, source: StoreError) -> RendezvousError {
        let rank = self.rank;
        RendezvousError::Store { rank, source }
    }

    /// Joins and waits until all ranks have. `claimed` is called once the rank is this process's.
    pub(crate) fn join(&self, claimed: impl FnOnce()) -> Result<(), RendezvousError> {
        let Self {
            store,
            rank,
            world_size,
            ..
        } = *self;
        let failed = |source| self.failed(source);
        let generation = store.add(&left_key(rank), 0).map_err(failed)?;
        let key = |name: &str| key_of(generation, name);
        let me = StartedRank {
            machine: self.ranks_per_machine.map(|ranks| rank / ranks),
            ..StartedRank::here(rank, world_size)
        };
        let mut lease = Lease::new(key(&rank.to_string()), me.clone(), world_size);
        self.claim(&mut lease, &me, &key)?;
        claimed();
        if let Some(verdict) = object(store, &me, &key).map_err(failed)? {
            return self.refuse(&verdict, &key);
        }
        // It has joined once it has looked again.
        self.keep(&mut lease, &me)?;
        let joined = store.add(&key("joined"), 1).map_err(failed)?;
        if usize::try_from(joined).is_ok_and(|joined| joined >= world_size) {
            let found = self.found(&key).map_err(failed)?;
            if found.iter().all(RankHolder::has_joined) {
                decide(store, &Verdict::Agreed, &key).map_err(failed)?;
            }
        }
        self.wait(&key, (&mut lease, &me), WaitNotice::new())
    }

    /// Waits until the rank is this process's. It is not while another process that has it lives, nor once all ranks have
    /// joined.
    fn claim(
        &self,
        lease: &mut Lease<StartedRank>,
        me: &StartedRank,
        key: &impl Fn(&str) -> String,
    ) -> Result<(), RendezvousError> {
        let failed = |source| self.failed(source);
        loop {
            let decided = self.store.try_get(&key("decided")).map_err(failed)?;
            if let Some(decided) = decided {
                return self.come_after(&decided, me, key);
            }
            match lease.look(self.store).map_err(failed)? {
                LeaseState::Held => return Ok(()),
                LeaseState::Taken(first) => {
                    let other = me.clone();
                    return self.refuse(&Verdict::RankTaken { first, other }, key);
                }
                LeaseState::Waiting => {}
            }
            let pause = lease.interval().min(self.deadline.left());
            match self.store.get_within(&key("verdict"), pause) {
                Err(StoreError::Timeout { .. }) if !self.deadline.left().is_zero() => {}
                Err(StoreError::Timeout { .. }) => {
                    return Err(failed(StoreError::Timeout {
                        operation: "join",
                        keys: vec![key(&self.rank.to_string())],
                        waited: self.deadline.elapsed(),
                    }));
                }
                other => drop(other.map_err(failed)?),
            }
        }
    }

    /// A verdict was found before this process had its rank.
    fn come_after(
        &self,
        decided: &[u8],
        me: &StartedRank,
        key: &impl Fn(&str) -> String,
    ) -> Result<(), RendezvousError> {
        let rank = self.rank;
        let failed = |source| self.failed(source);
        entry::read::<Verdict>(KEYS, decided)
            .map_err(failed)?
            .into_result()?;
        if let Some(verdict) = object(self.store, me, key).map_err(failed)? {
            return verdict.into_result();
        }
        let own = key(&rank.to_string());
        let holder = self.store.try_get(&own).map_err(failed)?;
        let holder = holder.ok_or_else(|| failed(entry::unreadable(&own, "it is gone")))?;
        let holder = entry::read::<Holder<StartedRank>>(&own, &holder).map_err(failed)?;
        let first = Box::new(holder.holder);
        Err(match first.process.is_alive() {
            Some(true) => RendezvousError::RankTaken {
                first,
                other: Box::new(me.clone()),
            },
            _ => RendezvousError::HasBegun { first },
        })
    }

    /// Says to all ranks why they cannot meet.
    fn refuse(
        &self,
        verdict: &Verdict,
        key: &impl Fn(&str) -> String,
    ) -> Result<(), RendezvousError> {
        decide(self.store, verdict, key).map_err(|source| self.failed(source))?;
        if let Verdict::Elastic { .. } = verdict {
            // An elastic job that has begun continues, and says nothing.
            let told = key_of(0, "told");
            let _ = self
                .store
                .wait_within(&[&told], self.deadline.left().min(TOLD));
        }
        verdict.clone().into_result()
    }

    /// Keeps the lease of this process. Another one has it if this one did not run for long.
    fn keep(
        &self,
        lease: &mut Lease<StartedRank>,
        me: &StartedRank,
    ) -> Result<(), RendezvousError> {
        let state = lease.look(self.store);
        match state.map_err(|source| self.failed(source))? {
            LeaseState::Taken(first) => Err(RendezvousError::RankTaken {
                first: Box::new(first),
                other: Box::new(me.clone()),
            }),
            LeaseState::Held | LeaseState::Waiting => Ok(()),
        }
    }

    fn found(&self, key: &impl Fn(&str) -> String) -> Result<Vec<RankHolder>, StoreError> {
        let ranks = 0..self.world_size;
        let keys: Vec<String> = ranks.map(|rank| key(&rank.to_string())).collect();
        let values = entry::values(self.store, &keys)?.into_iter();
        let found = values.map(|value| match value {
            Some(value) => entry::read(KEYS, &value).map(RankHolder),
            None => Ok(RankHolder(None)),
        });
        found.collect()
    }

    fn wait(
        &self,
        key: &impl Fn(&str) -> String,
        (lease, me): (&mut Lease<StartedRank>, &StartedRank),
        mut notice: WaitNotice,
    ) -> Result<(), RendezvousError> {
        let (rank, world_size, deadline) = (self.rank, self.world_size, &self.deadline);
        let failed = |source| self.failed(source);
        loop {
            let until = notice.in_how_long(deadline.elapsed());
            let pause = deadline.left().min(until).min(lease.interval());
            let verdict = self.store.get_within(&key("verdict"), pause);
            match verdict {
                Ok(verdict) => {
                    return entry::read::<Verdict>(KEYS, &verdict)
                        .map_err(failed)?
                        .into_result();
                }
                Err(StoreError::Timeout { .. }) => {}
                Err(error) => return Err(failed(error)),
            }
            self.keep(lease, me)?;
            let (waited, is_over) = (deadline.elapsed(), deadline.left().is_zero());
            if !notice.is_due(waited) && !is_over {
                continue;
            }
            let found = self.found(key).map_err(failed)?;
            let (joined, missing): (Vec<usize>, Vec<usize>) =
                (0..world_size).partition(|rank| found[*rank].is_there());
            let per_machine = self.ranks_per_machine;
            if is_over {
                // Ranks of other machines hear of it, too: the store may end with this one.
                let verdict = Verdict::Missing(MissingRanks {
                    missing,
                    world_size,
                    ranks_per_machine: per_machine,
                    waited,
                });
                let decided = decide(self.store, &verdict, key).map_err(failed)?;
                return decided.into_result();
            }
            // One of the ranks that wait says so.
            let is_first = joined.first() == Some(&rank);
            if is_first && !missing.is_empty() {
                let times = [waited, deadline.left()];
                let awaited = RanksAwaited::new(joined, &missing, per_machine, times);
                self.on_wait.tell(&awaited.with_refused(self.store));
            }
        }
    }
}

struct RankHolder(Option<Holder<StartedRank>>);

impl RankHolder {
    /// Whether it has joined, and is there: it has looked again after it had compared itself.
    fn has_joined(&self) -> bool {
        self.is_there() && self.0.as_ref().is_some_and(|holder| holder.count > 1)
    }

    /// The number of its machine, where that is known.
    fn machine(&self) -> Option<usize> {
        self.0.as_ref()?.holder.machine
    }

    /// Whether it has come, and is not known to be dead.
    fn is_there(&self) -> bool {
        let holder = self.0.as_ref();
        holder.is_some_and(|holder| holder.holder.process.is_alive() != Some(false))
    }
}

#[cfg(test)]
mod tests;
