//! What ranks find out about each other, and how one verdict comes of it.

use everburn_record::plain;
use serde::{Deserialize, Serialize};

use super::KEYS;
use super::give_up::LONGEST_REASON;
use crate::rendezvous::{MissingRanks, RendezvousError, StartedRank};
use crate::store::{Store, StoreError, entry};

/// What the ranks have found out about their world.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Verdict {
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
    /// The launcher of a machine has ended before its ranks had joined.
    GivenUp {
        machine: usize,
        reason: String,
    },
    /// The deadline of a rank passed.
    Missing(MissingRanks),
}

impl Verdict {
    pub(super) fn into_result(self) -> Result<(), RendezvousError> {
        match self {
            Self::Agreed => Ok(()),
            Self::Stopped => Err(RendezvousError::Stopped),
            Self::GivenUp { machine, reason } => Err(RendezvousError::GivenUp {
                machine,
                reason: plain::line(&reason, LONGEST_REASON),
            }),
            Self::Missing(missing) => Err(RendezvousError::NotAllJoined(missing)),
            Self::WorldSizes { first, other } => Err(RendezvousError::WorldSizeMismatch {
                first: Box::new(first),
                other: Box::new(other),
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

/// Compares world size and `--elastic`; returns what contradicts this rank.
pub(super) fn object(
    store: &dyn Store,
    me: &StartedRank,
    key: &impl Fn(&str) -> String,
) -> Result<Option<Verdict>, StoreError> {
    let first = first_of_all(store, me, key)?;
    let other = me.clone();
    Ok(match () {
        () if first.elastic != me.elastic => Some(Verdict::Elastic { first, other }),
        () if first.world_size != me.world_size => Some(Verdict::WorldSizes { first, other }),
        () => None,
    })
}

/// The rank that came first, which this one is if no other has come.
pub(super) fn first_of_all(
    store: &dyn Store,
    me: &StartedRank,
    key: &impl Fn(&str) -> String,
) -> Result<StartedRank, StoreError> {
    let mine = entry::written("join", me)?;
    entry::read(KEYS, &store.compare_set(&key("first"), b"", &mine)?)
}

/// Publishes a verdict unless another came first, in which case that one is published again. Returns the published one.
pub(super) fn decide(
    store: &dyn Store,
    verdict: &Verdict,
    key: &impl Fn(&str) -> String,
) -> Result<Verdict, StoreError> {
    let decided = store.compare_set(&key("decided"), b"", &entry::written("join", verdict)?)?;
    store.set(&key("verdict"), &decided)?;
    entry::read(KEYS, &decided)
}
