//! Members and generations.

use serde::{Deserialize, Serialize};

use super::keys;
use crate::store::{Store, StoreError, entry};

/// The highest number of a generation.
const MOST_GENERATIONS: u64 = u64::MAX >> 1;

/// A process that is, or wants to be, in a generation.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::elastic::Member;
///
/// let member = Member { slot: 3, incarnation: 2, committed_step: 40, process: 4711, node: 0 };
/// assert_eq!(member.to_string(), "slot 3 (process 4711, number 2)");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its slot.
    pub slot: usize,
    /// The number of the process in its slot, from 1.
    pub incarnation: u64,
    /// Its last complete step when it joined.
    pub committed_step: u64,
    /// Its process id on its machine.
    pub process: u32,
    /// The number of its machine.
    pub node: usize,
}

impl Member {
    /// Whether both are the same process; steps are not compared.
    #[must_use]
    pub fn is_same_process(&self, other: &Self) -> bool {
        (self.slot, self.incarnation) == (other.slot, other.incarnation)
    }
}

impl std::fmt::Display for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            slot,
            process,
            incarnation,
            ..
        } = self;
        write!(f, "slot {slot} (process {process}, number {incarnation})")
    }
}

/// The processes that have joined the next round while the current group continues.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::elastic::PendingMembers;
///
/// // All ranks meet again at once, or soon.
/// assert_ne!(PendingMembers::Complete, PendingMembers::Incomplete);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PendingMembers {
    /// Others have been started since the current group formed, and have not joined yet: the ranks of a machine that
    /// returns, for example.
    Incomplete,
    /// No other process is on its way, or a member of the current group has joined: it makes no more steps.
    Complete,
}

/// The result of a round: the members of a process group.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::elastic::{Generation, Member};
///
/// let member = |slot| Member { slot, incarnation: 1, committed_step: 0, process: 1, node: 0 };
/// let generation = Generation { number: 1, members: vec![member(0), member(2)], lost: vec![] };
/// assert_eq!(generation.rank_of(&member(2)), Some(1));
/// assert_eq!(generation.rank_of(&member(1)), None);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Generation {
    /// Its number, from 1.
    pub number: u64,
    /// Its members by rank, that is in the order of their slots.
    pub members: Vec<Member>,
    /// The members of the generation before that are none of this one, and those of earlier ones in whose slots no process has
    /// been a member since.
    pub lost: Vec<Member>,
}

impl Generation {
    /// The rank of a process in this generation.
    #[must_use]
    pub fn rank_of(&self, member: &Member) -> Option<usize> {
        self.members
            .iter()
            .position(|it| it.is_same_process(member))
    }

    /// The lost members of the generation of `members`, which follows this one.
    pub(super) fn lost_before(&self, members: &[Member]) -> Vec<Member> {
        let has_slot = |members: &[Member], slot: usize| members.iter().any(|it| it.slot == slot);
        let is_left = |old: &Member| members.iter().any(|it| it.is_same_process(old));
        let newly = self.members.iter().filter(|old| !is_left(old));
        // Their launcher may be lost with them, so that nobody records their ends.
        let earlier = self
            .lost
            .iter()
            .filter(|old| !has_slot(&self.members, old.slot) && !has_slot(members, old.slot));
        newly.chain(earlier).cloned().collect()
    }

    /// The newest generation and its bytes; `None` before the first round has closed. If it is still the one that is
    /// `known`, its list of members is not parsed again.
    pub(super) fn newest(
        store: &dyn Store,
        known: Option<(Self, Vec<u8>)>,
    ) -> Result<Option<(Self, Vec<u8>)>, StoreError> {
        let key = keys::newest();
        let Some(bytes) = store.try_get(&key)? else {
            return Ok(None);
        };
        if let Some(known) = known.filter(|known| known.1 == bytes) {
            return Ok(Some(known));
        }
        let this: Self = entry::read(&key, &bytes)?;
        let ordered = this
            .members
            .windows(2)
            .all(|pair| pair[0].slot < pair[1].slot);
        // Leaves room for the number of the next generation.
        let counts = (1..=MOST_GENERATIONS).contains(&this.number);
        if !counts || this.members.is_empty() || !ordered {
            return Err(entry::unreadable(&key, "no list of members by slot"));
        }
        Ok(Some((this, bytes)))
    }
}
