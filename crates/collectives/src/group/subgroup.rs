//! Groups of some of the ranks of a group.

use std::sync::Arc;

use super::ProcessGroup;
use super::communication::Shared;
use super::core::Core;
use super::error::CollectiveError;
use super::signature::{Call, Operation, Signature, check_rank};
use crate::sync::lock;

impl ProcessGroup {
    /// Makes a group of `ranks` (of this group): every rank of this group calls it with the same
    /// list. A member gets its end of the new group, in which rank `i` is `ranks[i]`; everybody
    /// else gets `None`.
    ///
    /// The sub-group has its own communication thread, so its collectives run beside those of
    /// this group; it shares the connections and the step label, and it fails when this group
    /// fails, but not the other way round.
    ///
    /// # Errors
    /// [`CollectiveError::Invalid`] if the list is empty, names a rank twice or one that does not
    /// exist; [`CollectiveError::Mismatch`] if the lists differ; and those of
    /// [`super::Work::wait`].
    #[doc(alias = "new_group")]
    pub fn subgroup(&self, ranks: &[usize]) -> Result<Option<Self>, CollectiveError> {
        let signature = Signature::new(Operation::Subgroup);
        let list: Vec<i64> = ranks.iter().map(|rank| *rank as i64).collect();
        let work = self.issue(signature, self.check_members(ranks), move |collective| {
            let lists = collective.gather_varied(list)?;
            collective.demand_same(&lists)
        });
        let sequence = work.sequence();
        work.wait()?;
        let core = self.core();
        let Some(rank) = ranks.iter().position(|rank| *rank == core.rank) else {
            return Ok(None);
        };
        let id = derive_id(core.id, sequence);
        let members = ranks.iter().map(|rank| core.members[*rank]).collect();
        let Some(mailbox) = core.transport.inbox().mailbox(id) else {
            let context = core.context(Call::Collective(signature));
            return Err(core.destroyed(&context));
        };
        core.mailbox.adopt(&mailbox);
        let (transport, step) = (Arc::clone(&core.transport), Arc::clone(&core.step));
        let mut child = Core::new(transport, mailbox, id, members, rank, core.options, step);
        child.parent = Arc::downgrade(core);
        let shared = Shared::new(child, self.local_rank());
        let mut children = lock(&core.children);
        children.retain(|child| child.strong_count() > 0);
        children.push(Arc::downgrade(shared.core()));
        drop(children);
        Ok(Some(Self {
            shared,
            wait_policy: self.wait_policy,
        }))
    }

    /// Makes another group of the same ranks, [named](Self::named) `name`: every rank calls it. Its collectives run beside
    /// those of this group, as a [`subgroup`](Self::subgroup)'s do.
    ///
    /// # Errors
    /// Those of [`subgroup`](Self::subgroup).
    #[doc(alias = "MPI_Comm_dup")]
    pub fn duplicate(&self, name: &'static str) -> Result<Self, CollectiveError> {
        let all: Vec<usize> = (0..self.world_size()).collect();
        let own = self.subgroup(&all)?.expect("every rank is a member");
        Ok(own.named(name))
    }

    /// The same sub-group with a name, by which errors and reports on a stall call it, as in `collective 12 of the
    /// gradients-0 group`. The first name counts; all ranks give the same.
    #[must_use]
    #[doc(alias = "group_desc")]
    pub fn named(self, name: &'static str) -> Self {
        self.core().name.get_or_init(|| name);
        self
    }

    fn check_members(&self, ranks: &[usize]) -> Result<(), String> {
        if ranks.is_empty() {
            return Err("a group needs at least one rank".to_owned());
        }
        for (index, rank) in ranks.iter().enumerate() {
            check_rank(*rank, self.world_size())?;
            if ranks[..index].contains(rank) {
                return Err(format!("rank {rank} is named twice in {ranks:?}"));
            }
        }
        Ok(())
    }
}

/// The id of the group made by the collective `sequence` of `parent`: the same on all ranks
/// without another message, and different for every call (SplitMix64, a bijection in each
/// argument).
const fn derive_id(parent: u64, sequence: u64) -> u64 {
    let mut id = parent.rotate_left(32) ^ sequence.wrapping_add(0x9e37_79b9_7f4a_7c15);
    id = (id ^ (id >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    id = (id ^ (id >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    id ^ (id >> 31)
}
