//! Ranks that have reached the store agree on who they are.
//!
//! All keys are below `everburn/join`, apart from those of PyTorch's ranks on the same store:
//!
//! | key | value |
//! |---|---|
//! | `left/<rank>` | how often this rank has joined and left before: the generation `<g>` |
//! | `<g>/<rank>` | the [`Member`] who claimed the rank, by compare-and-set |
//! | `<g>/first` | the [`Member`] with whom all others compare their world size |
//! | `<g>/joined` | how many have joined |
//! | `<g>/decided` | the first [`Verdict`], by compare-and-set |
//! | `<g>/verdict` | the same, by `set`, which wakes those who wait on every server |
//!
//! Every rank waits for one key only, the verdict. The rank that completes the world sets it, or
//! the first to see a contradiction, so all learn of it at once and none runs into its deadline.

use serde::{Deserialize, Serialize};

use super::RendezvousError;
use super::error::located;
use crate::runtime;
use crate::store::{Deadline, Store, StoreError, entry, random_u64};
use crate::wait_notice::WaitNotice;

const KEYS: &str = "everburn/join";

/// A rank that joins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Member {
    rank: usize,
    world_size: usize,
    process: u32,
    /// Process numbers repeat on other machines, and ranks may be threads.
    nonce: u64,
}

/// What the ranks have found out about their world.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum Verdict {
    Agreed,
    WorldSizes { first: Member, other: Member },
    RankTaken { first: Member, other: Member },
}

impl Verdict {
    fn into_result(self) -> Result<(), RendezvousError> {
        match self {
            Self::Agreed => Ok(()),
            Self::WorldSizes { first, other } => Err(RendezvousError::WorldSizeMismatch {
                rank: first.rank,
                world_size: first.world_size,
                other_rank: other.rank,
                other_world_size: other.world_size,
            }),
            Self::RankTaken { first, other } => Err(RendezvousError::RankTaken {
                rank: first.rank,
                process: first.process,
                world_size: first.world_size,
                other_process: other.process,
                other_world_size: other.world_size,
            }),
        }
    }
}

/// The counter that a rank moves when it leaves, so that it can join again on the same store.
pub(super) fn left_key(rank: usize) -> String {
    format!("{KEYS}/left/{rank}")
}

/// Joins and waits until all ranks have; who is missing is told with its machine, given how many ranks each has.
/// `claimed` is called once the rank is this process's.
pub(crate) fn join(
    store: &dyn Store,
    rank: usize,
    world_size: usize,
    ranks_per_machine: Option<usize>,
    deadline: Deadline,
    claimed: impl FnOnce(),
) -> Result<(), RendezvousError> {
    let failed = |source| RendezvousError::Store { rank, source };
    let generation = store.add(&left_key(rank), 0).map_err(failed)?;
    let key = |name: &str| format!("{KEYS}/{generation}/{name}");
    let me = Member {
        rank,
        world_size,
        process: runtime::process_id(),
        nonce: random_u64(),
    };
    let objection = object(store, &me, &key, claimed).map_err(failed)?;
    if let Some(verdict) = objection {
        decide(store, &verdict, &key).map_err(failed)?;
        return verdict.into_result();
    }
    let joined = store.add(&key("joined"), 1).map_err(failed)?;
    if usize::try_from(joined) == Ok(world_size) {
        decide(store, &Verdict::Agreed, &key).map_err(failed)?;
    }
    let mut notice = WaitNotice::new();
    loop {
        let until = notice.in_how_long(deadline.elapsed());
        match store.get_within(&key("verdict"), deadline.left().min(until)) {
            Ok(verdict) => {
                return entry::read::<Verdict>(KEYS, &verdict)
                    .map_err(failed)?
                    .into_result();
            }
            Err(StoreError::Timeout { .. }) => {}
            Err(error) => return Err(failed(error)),
        }
        let keys: Vec<String> = (0..world_size).map(|rank| key(&rank.to_string())).collect();
        let found = entry::values(store, &keys).map_err(failed)?;
        let missing = (0..world_size).filter(|rank| found[*rank].is_none());
        let missing: Vec<usize> = missing.collect();
        if deadline.left().is_zero() {
            return Err(RendezvousError::NotAllJoined {
                missing,
                world_size,
                ranks_per_machine,
                waited: deadline.elapsed(),
            });
        }
        // One of those that wait says so.
        let is_first = (0..rank).all(|lower| missing.contains(&lower));
        if notice.is_due(deadline.elapsed()) && is_first && !missing.is_empty() {
            let located = located(&missing, ranks_per_machine);
            tracing::warn!(
                "{} of {world_size} ranks have joined after {:.0?}; missing: {located}. They are waited for, {:.0?} more",
                world_size - missing.len(),
                deadline.elapsed(),
                deadline.left()
            );
        }
    }
}

/// Claims the rank and compares the world size; returns what contradicts this rank.
fn object(
    store: &dyn Store,
    me: &Member,
    key: &impl Fn(&str) -> String,
    claimed: impl FnOnce(),
) -> Result<Option<Verdict>, StoreError> {
    let mine = entry::written("join", me)?;
    let holder = store.compare_set(&key(&me.rank.to_string()), b"", &mine)?;
    if holder != mine {
        let first = entry::read::<Member>(KEYS, &holder)?;
        let other = me.clone();
        return Ok(Some(Verdict::RankTaken { first, other }));
    }
    claimed();
    let first = entry::read::<Member>(KEYS, &store.compare_set(&key("first"), b"", &mine)?)?;
    let differs = first.world_size != me.world_size;
    let other = me.clone();
    Ok(differs.then_some(Verdict::WorldSizes { first, other }))
}

/// Publishes a verdict unless another came first, in which case that one is published again.
fn decide(
    store: &dyn Store,
    verdict: &Verdict,
    key: &impl Fn(&str) -> String,
) -> Result<(), StoreError> {
    let decided = store.compare_set(&key("decided"), b"", &entry::written("join", verdict)?)?;
    store.set(&key("verdict"), &decided)
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::store::HashStore;

    const LONG: Duration = Duration::from_secs(60);

    fn join_alone(
        store: &HashStore,
        rank: usize,
        world_size: usize,
        limit: Duration,
    ) -> Result<(), RendezvousError> {
        join(
            store,
            rank,
            world_size,
            None,
            Deadline::within(limit),
            || (),
        )
    }

    /// The outcome of ranks that join at the same time.
    fn join_all(members: &[(usize, usize)]) -> Vec<Result<(), RendezvousError>> {
        let store = HashStore::new();
        thread::scope(|scope| {
            let ranks: Vec<_> = members
                .iter()
                .map(|&(rank, size)| {
                    let store = store.clone();
                    scope.spawn(move || join_alone(&store, rank, size, LONG))
                })
                .collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    #[test]
    fn all_ranks_join() {
        let outcomes = join_all(&[(2, 3), (0, 3), (1, 3)]);
        assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    }

    #[test]
    fn a_world_size_mismatch_is_told_to_every_rank_at_once() {
        for outcome in join_all(&[(0, 3), (1, 3), (3, 4)]) {
            let message = outcome.unwrap_err().to_string();
            assert!(message.contains("rank 3"), "{message}");
            assert!(
                message.contains("with 3") && message.contains("with 4"),
                "{message}"
            );
        }
    }

    #[test]
    fn a_rank_claimed_twice_is_told_to_every_rank_at_once() {
        for outcome in join_all(&[(0, 3), (1, 3), (1, 3)]) {
            let message = outcome.unwrap_err().to_string();
            assert!(message.contains("rank 1 was started twice"), "{message}");
            assert!(message.contains("world size 3"), "{message}");
        }
    }

    #[test]
    fn those_who_did_not_come_are_named() {
        let outcome = join_alone(&HashStore::new(), 1, 4, Duration::from_millis(20));
        let message = outcome.unwrap_err().to_string();
        assert!(message.contains("only 1 of 4 ranks"), "{message}");
        assert!(message.contains("missing: ranks 0, 2, 3"), "{message}");
    }

    #[test]
    fn a_rank_that_has_left_may_join_again() {
        let store = HashStore::new();
        for _ in 0..3 {
            join_alone(&store, 0, 1, LONG).unwrap();
            store.add(&left_key(0), 1).unwrap();
        }
        join_alone(&store, 0, 1, LONG).unwrap();
        let twice = join_alone(&store, 0, 1, LONG).unwrap_err();
        assert!(
            matches!(twice, RendezvousError::RankTaken { .. }),
            "{twice}"
        );
    }
}
