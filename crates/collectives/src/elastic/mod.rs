//! Elastic membership: process groups that form again when ranks are lost or join.
//!
//! A **slot** is a rank's number at launch, 0 to max - 1, and does not change. An **incarnation** is one
//! process of a slot (1, 2, ...). A **generation** is one process group (1, 2, ...); it forms in a
//! *round*. A **rank** is a member's number within one generation, in the order of slots.
//!
//! 1. [`Membership::connect`] connects to the launcher's store, or to one in etcd.
//! 2. [`Membership::join`] blocks until a round closes with this process as a member, and returns a
//!    [`Round`].
//! 3. [`Round::rendezvous`] is the argument of [`ProcessGroup::connect`](crate::group::ProcessGroup::connect).
//! 4. When the group has failed, or [`Membership::has_pending_members`], all abort it and join again.
//!
//! Launchers use a [`MembershipCoordinator`], which numbers incarnations and records which have ended, and a
//! [`Lease`], which keeps a second launcher of the same machine out.
//!
//! Before the first round, ranks compare their bounds with the first of all ranks at the store, elastic or not; in it,
//! they end with an error when one comes that is not elastic.
//!
//! # When a round closes
//! Any participant closes it, by one compare-and-set, so that a generation has one list of members:
//! 1. All slots have joined: as soon as one that looks sees it.
//! 2. At least [`ElasticOptions::min`] have joined, and so have all expected processes that have not
//!    *ended*: as soon. Expected are the live members of the previous generation; if there are none (in
//!    the first round, or all have ended), all slots that are not known to be down.
//! 3. At least that many have joined, the group is known to be broken, and [`ElasticOptions::patience`]
//!    has passed: missing members are *expelled*. Their launcher kills and restarts them.
//!
//! A group is known to be broken once one of its live members has joined the next round. Before that a
//! new process cannot expel members: they may be in a long step. New processes that have joined when the
//! round closes become members. In the first round, ranks wait for missing slots for
//! [`ElasticOptions::wait_for_min`]. Later, new processes wait until the members come: for the groups' timeout, or for twelve of
//! them while the members' heartbeats arrive, as rounds of local steps may be long.
//!
//! # Keys
//! All keys begin with `everburn/elastic`:
//!
//! | key | value |
//! |---|---|
//! | `newest` | the [`Generation`] that closed last, by compare-and-set from the one before |
//! | `<g>/joined/<slot>` | the [`Member`] that has joined the round of generation `g` |
//! | `<g>/waiting` | how many processes have joined |
//! | `<g>/closed` | set after `newest`; wakes waiting processes |
//! | `<g>/group/...` | the keys of the process group of generation `g` |
//! | `slot/<slot>/incarnation` | the number of processes of the slot so far, set by its launcher |
//! | `slot/<slot>/ended` | the last incarnation that has ended, set by its launcher |
//! | `launcher/<node>/lease` | who the launcher of the machine is, and a count that it raises ([`Lease`]) |
//! | `launcher/<node>/ended` | set by a launcher that ends; the last one deletes all keys of a store in etcd |
//! | `finished` | set by a launcher when a rank has finished |
//! | `given_up` | the reason of a launcher that has stopped restarting ranks |
//! | `stop_requested` | set by a launcher that was asked to stop the job: which machine's, and how |
//! | `refused` | which rank was refused last, and why, set by its launcher |
//!
//! One `newest` key for all generations prevents a process that was stopped for long from closing an old
//! round again. The keys of generation `g` are deleted when `g + 2` closes.

mod coordinator;
mod error;
#[cfg(any(test, fuzzing))]
pub(crate) mod hostile;
mod keys;
mod member;
mod membership;
mod options;
mod round;
mod round_store;
mod round_view;

pub use coordinator::{MembershipCoordinator, News};
pub use error::{ElasticError, MissingSlot, SlotState};
pub use member::{Generation, Member, PendingMembers};
pub use membership::Membership;
pub use options::ElasticOptions;
pub use round::Round;

pub use crate::rendezvous::lease::{Holding, Lease, LeaseState};

#[cfg(test)]
mod tests;
