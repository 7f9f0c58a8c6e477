//! A group whose ranks may come and go: rounds in which those who are there find out who they are.
//!
//! The words: a **slot** is a rank's number at launch, 0 to max - 1, which stays. An **incarnation**
//! is one process of a slot (1, 2, ...). A **generation** is a process group that was formed (1, 2,
//! ...), and its *round* is the time in which it forms. A **rank** is a number within one generation: the
//! place among its members in the order of their slots.
//!
//! 1. [`Membership::meet`] reaches the launcher's store and waits for nobody.
//! 2. [`Membership::join`] blocks until a round closes with this process in it, and yields a [`Round`].
//! 3. [`Round::rendezvous`] goes into [`ProcessGroup::connect`](crate::group::ProcessGroup::connect).
//! 4. When the group has failed, or [`Membership::somebody_waits`], all abort it and join again.
//!
//! The launchers' side is [`Overseer`]: it numbers incarnations and says which of them have ended.
//!
//! # When a round closes
//! Any participant decides it, by one compare-and-set, so that there is one list of members a generation:
//! 1. All slots have joined: at once.
//! 2. At least [`ElasticOptions::min`] have joined, and so has everybody who is expected and has not
//!    *ended*: at once. Expected are the living members of the generation before; where there are none
//!    (the first round, or all have died), all slots that are not known to be down.
//! 3. At least that many have joined, the group is known to be broken, and
//!    [`ElasticOptions::patience`] has passed: those who have not come are *expelled*. Their launcher
//!    kills them and starts them anew.
//!
//! A group is known to be broken once one of its living members has joined the next round. Before that a
//! newcomer has no right to expel anybody: they may be in the middle of a long step.
//! A newcomer who has joined when the round closes is in it. In the first round, in which nothing is held up
//! that has begun, those who are there wait as long for the others as too few would.
//!
//! # Keys
//! All lie below `everburn/elastic`:
//!
//! | key | value |
//! |---|---|
//! | `newest` | the [`Generation`] that closed last, by compare-and-set from the one before |
//! | `<g>/joined/<slot>` | the [`Member`] who wants to be in generation `g` |
//! | `<g>/waiting` | there as soon as anybody has joined |
//! | `<g>/closed` | set after `newest`; it wakes those who wait |
//! | `<g>/group/...` | what the process group of generation `g` stores |
//! | `slot/<slot>/incarnation` | how many processes the slot has had, by its launcher |
//! | `slot/<slot>/ended` | the last incarnation that has ended, by its launcher |
//! | `finished` | set by a launcher when a rank has ended well |
//! | `given_up` | why a launcher does not restart ranks any more |
//!
//! One key for all generations, and not one each, makes it impossible that a process which was stopped for
//! long closes a generation of the past again. What belongs to generation `g` is deleted when `g + 2` closes.

mod error;
#[cfg(any(test, fuzzing))]
pub(crate) mod hostile;
mod keys;
mod member;
mod membership;
mod options;
mod overseer;
mod round;
mod round_store;
mod sight;

pub use error::{ElasticError, MissingSlot, SlotState};
pub use member::{Generation, Member};
pub use membership::Membership;
pub use options::ElasticOptions;
pub use overseer::Overseer;
pub use round::Round;

#[cfg(test)]
mod tests;
