//! Ranks that have reached the store agree on who they are.
//!
//! All keys are below `everburn/join`, apart from those of PyTorch's ranks on the same store:
//!
//! | key | value |
//! |---|---|
//! | `left/<rank>` | how often this rank has joined and left before: the generation `<g>` |
//! | `<g>/<rank>` | the [`StartedRank`] who claimed the rank, by compare-and-set |
//! | `<g>/first` | the [`StartedRank`] with whom all others compare their world size and `--elastic` |
//! | `<g>/joined` | how many have joined |
//! | `<g>/decided` | the first [`Verdict`], by compare-and-set |
//! | `<g>/verdict` | the same, by `set`, which wakes those who wait on every server |
//! | `0/told` | set by a rank of an elastic job that has read a contradiction there |
//!
//! Every rank waits for one key only, the verdict. The rank that completes the world sets it, or
//! the first to see a contradiction, so all learn of it at once and none runs into its deadline.
//!
//! Ranks of an elastic job meet elsewhere ([`elastic`](crate::elastic)); before that they compare themselves with
//! `0/first`, and in their first round they look for a contradiction at `0/verdict`.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{RanksAwaited, RendezvousError, StartedRank, WaitListener};
use crate::store::{Deadline, Store, StoreError, entry};
use crate::wait_notice::WaitNotice;

const KEYS: &str = "everburn/join";

/// How long a rank that ends of a contradiction waits until a rank of an elastic job has read it: a few of its looks. The
/// store may end with the one that waits.
const TOLD: Duration = Duration::from_secs(1);

/// What the ranks have found out about their world.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum Verdict {
    Agreed,
    WorldSizes {
        first: StartedRank,
        other: StartedRank,
    },
    RankTaken {
        first: StartedRank,
        other: StartedRank,
    },
    Elastic {
        first: StartedRank,
        other: StartedRank,
    },
    Stopped,
    /// The deadline of a rank passed.
    Missing {
        ranks: Vec<usize>,
        world_size: usize,
        ranks_per_machine: Option<usize>,
        waited: Duration,
    },
}

impl Verdict {
    fn into_result(self) -> Result<(), RendezvousError> {
        match self {
            Self::Agreed => Ok(()),
            Self::Stopped => Err(RendezvousError::Stopped),
            Self::Missing {
                ranks,
                world_size,
                ranks_per_machine,
                waited,
            } => Err(RendezvousError::NotAllJoined {
                missing: ranks,
                world_size,
                ranks_per_machine,
                waited,
            }),
            Self::WorldSizes { first, other } => Err(RendezvousError::WorldSizeMismatch {
                rank: first.rank,
                world_size: first.world_size,
                other_rank: other.rank,
                other_world_size: other.world_size,
            }),
            Self::RankTaken { first, other } => Err(RendezvousError::RankTaken {
                first: Box::new(first),
                other: Box::new(other),
            }),
            Self::Elastic { first, other } => Err(RendezvousError::ElasticMismatch {
                first: Box::new(first),
                other: Box::new(other),
            }),
        }
    }
}

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

/// Has the ranks that wait in `store` for others to join, and those that join later, learn that the job was stopped on request.
/// Whether it has: `false` where all ranks had joined before, or have found out why they cannot. For launchers, whose ranks
/// join once per process.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::rendezvous::stop_joining;
/// use everburn::collectives::store::HashStore;
///
/// assert!(stop_joining(&HashStore::new())?);
/// # Ok::<(), everburn_collectives::store::StoreError>(())
/// ```
///
/// # Errors
/// [`StoreError`] of a store that is out of reach.
pub fn stop_joining(store: &dyn Store) -> Result<bool, StoreError> {
    let key = |name: &str| key_of(0, name);
    Ok(decide(store, &Verdict::Stopped, &key)? == Verdict::Stopped)
}

/// A rank that joins.
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
    /// Joins and waits until all ranks have. `claimed` is called once the rank is this process's.
    pub(crate) fn join(&self, claimed: impl FnOnce()) -> Result<(), RendezvousError> {
        let Self {
            store,
            rank,
            world_size,
            ..
        } = *self;
        let failed = |source| RendezvousError::Store { rank, source };
        let generation = store.add(&left_key(rank), 0).map_err(failed)?;
        let key = |name: &str| key_of(generation, name);
        let me = StartedRank {
            machine: self.ranks_per_machine.map(|ranks| rank / ranks),
            ..StartedRank::here(rank, world_size)
        };
        let objection = object(store, &me, &key, claimed).map_err(failed)?;
        if let Some(verdict) = objection {
            decide(store, &verdict, &key).map_err(failed)?;
            if let Verdict::Elastic { .. } = verdict {
                // An elastic job that has begun continues, and says nothing.
                let _ = store.wait_within(&[&key_of(0, "told")], self.deadline.left().min(TOLD));
            }
            return verdict.into_result();
        }
        let joined = store.add(&key("joined"), 1).map_err(failed)?;
        if usize::try_from(joined) == Ok(world_size) {
            decide(store, &Verdict::Agreed, &key).map_err(failed)?;
        }
        self.wait(&key, WaitNotice::new())
    }

    /// Waits for the verdict.
    fn wait(
        &self,
        key: &impl Fn(&str) -> String,
        mut notice: WaitNotice,
    ) -> Result<(), RendezvousError> {
        let (rank, world_size, deadline) = (self.rank, self.world_size, &self.deadline);
        let failed = |source| RendezvousError::Store { rank, source };
        loop {
            let until = notice.in_how_long(deadline.elapsed());
            let verdict = self
                .store
                .get_within(&key("verdict"), deadline.left().min(until));
            match verdict {
                Ok(verdict) => {
                    return entry::read::<Verdict>(KEYS, &verdict)
                        .map_err(failed)?
                        .into_result();
                }
                Err(StoreError::Timeout { .. }) => {}
                Err(error) => return Err(failed(error)),
            }
            let keys: Vec<String> = (0..world_size).map(|rank| key(&rank.to_string())).collect();
            let found = entry::values(self.store, &keys).map_err(failed)?;
            let (joined, missing): (Vec<usize>, Vec<usize>) =
                (0..world_size).partition(|rank| found[*rank].is_some());
            let per_machine = self.ranks_per_machine;
            if deadline.left().is_zero() {
                // Ranks of other machines hear of it, too: the store may end with this one.
                let verdict = Verdict::Missing {
                    ranks: missing,
                    world_size,
                    ranks_per_machine: per_machine,
                    waited: deadline.elapsed(),
                };
                let decided = decide(self.store, &verdict, key).map_err(failed)?;
                return decided.into_result();
            }
            // One of those that wait says so.
            let is_first = joined.first() == Some(&rank);
            let waited = deadline.elapsed();
            if notice.is_due(waited) && is_first && !missing.is_empty() {
                let times = [waited, deadline.left()];
                self.on_wait
                    .tell(&RanksAwaited::new(joined, &missing, per_machine, times));
            }
        }
    }
}

/// Claims the rank and compares world size and `--elastic`; returns what contradicts this rank.
fn object(
    store: &dyn Store,
    me: &StartedRank,
    key: &impl Fn(&str) -> String,
    claimed: impl FnOnce(),
) -> Result<Option<Verdict>, StoreError> {
    let mine = entry::written("join", me)?;
    let holder = store.compare_set(&key(&me.rank.to_string()), b"", &mine)?;
    if holder != mine {
        let first = entry::read::<StartedRank>(KEYS, &holder)?;
        let other = me.clone();
        return Ok(Some(Verdict::RankTaken { first, other }));
    }
    claimed();
    let first = first_of_all(store, me, key)?;
    let other = me.clone();
    Ok(match () {
        () if first.elastic != me.elastic => Some(Verdict::Elastic { first, other }),
        () if first.world_size != me.world_size => Some(Verdict::WorldSizes { first, other }),
        () => None,
    })
}

/// The rank that came first, which this one is if no other has come.
fn first_of_all(
    store: &dyn Store,
    me: &StartedRank,
    key: &impl Fn(&str) -> String,
) -> Result<StartedRank, StoreError> {
    let mine = entry::written("join", me)?;
    entry::read(KEYS, &store.compare_set(&key("first"), b"", &mine)?)
}

/// Publishes a verdict unless another came first, in which case that one is published again. The verdict that stands.
fn decide(
    store: &dyn Store,
    verdict: &Verdict,
    key: &impl Fn(&str) -> String,
) -> Result<Verdict, StoreError> {
    let decided = store.compare_set(&key("decided"), b"", &entry::written("join", verdict)?)?;
    store.set(&key("verdict"), &decided)?;
    entry::read(KEYS, &decided)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;
    use crate::store::HashStore;

    const LONG: Duration = Duration::from_secs(60);

    fn join_alone(
        store: &HashStore,
        rank: usize,
        world_size: usize,
        limit: Duration,
    ) -> Result<(), RendezvousError> {
        joining(store, rank, world_size, limit, &WaitListener::default()).join(|| ())
    }

    fn joining<'a>(
        store: &'a HashStore,
        rank: usize,
        world_size: usize,
        limit: Duration,
        on_wait: &'a WaitListener,
    ) -> Joining<'a> {
        Joining {
            store,
            rank,
            world_size,
            ranks_per_machine: Some(2),
            deadline: Deadline::within(limit),
            on_wait,
        }
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
    fn ranks_that_wait_or_come_later_are_told_that_the_job_was_stopped() {
        let store = HashStore::new();
        thread::scope(|scope| {
            let waits = scope.spawn(|| join_alone(&store, 1, 3, LONG));
            store
                .wait_within(&[&format!("{KEYS}/0/joined")], LONG)
                .unwrap();
            assert!(stop_joining(&store).unwrap());
            for outcome in [waits.join().unwrap(), join_alone(&store, 2, 3, LONG)] {
                let error = outcome.unwrap_err();
                assert!(matches!(error, RendezvousError::Stopped), "{error}");
            }
        });
        let all = HashStore::new();
        join_alone(&all, 0, 1, LONG).unwrap();
        assert!(!stop_joining(&all).unwrap(), "all had joined");
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
    fn ranks_with_and_without_elastic_are_told_at_once_whoever_came_first() {
        let elastic = |range| StartedRank {
            machine: Some(1),
            elastic: Some(range),
            ..StartedRank::here(1, 2)
        };
        let without_first = HashStore::new();
        thread::scope(|scope| {
            let waits = scope.spawn(|| join_alone(&without_first, 0, 2, LONG));
            without_first.wait(&[&key_of(0, "joined")]).unwrap();
            let refused = compare_elastic(&without_first, &elastic((1, 2))).unwrap_err();
            let told = waits.join().unwrap().unwrap_err();
            let expected =
                "machine 0 was started without `--elastic`, machine 1 with `--elastic 1:2`";
            assert!(refused.to_string().contains(expected), "{refused}");
            assert_eq!(refused.to_string(), told.to_string());
        });
        let elastic_first = HashStore::new();
        compare_elastic(&elastic_first, &elastic((1, 2))).unwrap();
        let refused = join_alone(&elastic_first, 0, 2, LONG).unwrap_err();
        assert!(
            matches!(refused, RendezvousError::ElasticMismatch { .. }),
            "{refused}"
        );
        let verdict = elastic_first.get(&first_verdict_key()).unwrap();
        let told = refuse_contradiction(&elastic_first, &verdict).unwrap_err();
        assert_eq!(refused.to_string(), told.to_string());
        compare_elastic(&elastic_first, &elastic((1, 2))).unwrap();
    }

    #[test]
    fn ranks_of_two_elastic_ranges_are_refused_and_a_world_that_has_met_is_left_alone() {
        let elastic = |range| StartedRank {
            elastic: Some(range),
            ..StartedRank::here(0, 2)
        };
        let store = HashStore::new();
        compare_elastic(&store, &elastic((1, 2))).unwrap();
        let message = compare_elastic(&store, &elastic((2, 2)))
            .unwrap_err()
            .to_string();
        assert!(message.contains("with `--elastic 1:2`"), "{message}");
        assert!(message.contains("with `--elastic 2:2`"), "{message}");
        let verdict = store.get(&first_verdict_key()).unwrap();
        let told = refuse_contradiction(&store, &verdict).unwrap_err();
        assert_eq!(message, told.to_string());
        let met = HashStore::new();
        join_alone(&met, 0, 1, LONG).unwrap();
        compare_elastic(&met, &elastic((1, 2))).unwrap_err();
        let verdict = met.get(&first_verdict_key()).unwrap();
        assert!(refuse_contradiction(&met, &verdict).is_ok());
    }

    #[test]
    fn those_who_did_not_come_are_named() {
        let outcome = join_alone(&HashStore::new(), 1, 4, Duration::from_millis(20));
        let message = outcome.unwrap_err().to_string();
        assert!(message.contains("only 1 of 4 ranks"), "{message}");
        assert!(message.contains("missing: ranks 0, 2, 3"), "{message}");
    }

    #[test]
    fn ranks_with_time_left_and_late_ones_learn_who_was_missing_from_the_first_that_gives_up() {
        let store = HashStore::new();
        thread::scope(|scope| {
            let waits = scope.spawn(|| join_alone(&store, 2, 4, LONG));
            store.wait_within(&[&key_of(0, "joined")], LONG).unwrap();
            let first = join_alone(&store, 0, 4, Duration::from_millis(20)).unwrap_err();
            let waited = waits.join().unwrap().unwrap_err();
            let late = join_alone(&store, 3, 4, LONG).unwrap_err();
            for error in [first, waited, late] {
                let error = error.to_string();
                let missing = "missing: ranks 1, 3 of machines 0, 1;";
                assert!(error.contains(missing), "{error}");
            }
        });
    }

    #[test]
    fn who_has_joined_and_who_is_waited_for_is_told_by_the_first_that_waits() {
        let key = |name: &str| format!("{KEYS}/0/{name}");
        let with_two = || {
            let store = HashStore::new();
            for rank in ["1", "2"] {
                store.set(&key(rank), b"joined").unwrap();
            }
            store
        };
        let store = with_two();
        let (told, heard) = mpsc::channel();
        let agree = store.clone();
        let on_wait = WaitListener::new(move |awaited| {
            told.send(awaited.clone()).unwrap();
            decide(&agree, &Verdict::Agreed, &key).unwrap();
        });
        let wait = |store: &HashStore, rank: usize, limit| {
            let notice = WaitNotice::first_after(Duration::ZERO);
            joining(store, rank, 4, limit, &on_wait).wait(&key, notice)
        };
        let others = wait(&with_two(), 2, Duration::from_millis(20));
        let others = others.unwrap_err().to_string();
        assert!(others.contains("missing: ranks 0, 3 of"), "{others}");
        assert!(heard.try_recv().is_err(), "rank 1 tells it");
        wait(&store, 1, LONG).unwrap();
        let awaited = heard.try_recv().unwrap();
        assert_eq!(awaited.joined, [1, 2]);
        let text = &awaited.text;
        assert!(
            text.starts_with("waiting for ranks 0, 3 of machines 0, 1, "),
            "{text}"
        );
        assert!(
            text.contains(" s more; 2 of 4 ranks have joined after "),
            "{text}"
        );
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
