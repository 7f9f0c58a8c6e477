//! Memory that the ranks of one machine share: rings for bytes, doorbells for sleep.
//!
//! A [`Segment`] is one piece of memory for `n` ranks. In it are, for each ordered pair of ranks, a
//! ring that one rank writes ([`RingSender`]) and the other reads ([`RingReceiver`]), and for each
//! rank a [`Doorbell`], on which it sleeps when none of its rings has moved.
//!
//! The memory is a memfd: it has no name in any file system, so nothing is left however a
//! process ends. One rank creates it and sends the others its process and descriptor numbers; they
//! open it through `/proc` and check what they got. Threads of one process do the same.
//!
//! **Ring.** Lamport's queue for one producer and one consumer (L. Lamport, *Specifying Concurrent
//! Program Modules*, TOPLAS 1983): the sender alone writes the position `written`, the receiver
//! alone `consumed`; both only grow, and `written - consumed` bytes are in the ring. Each side keeps
//! its own position privately and remembers the other's, which it reads again only when what it
//! remembers is not enough (J. Giacomoni et al., *FastForward*, PPoPP 2008, on why: each such read
//! moves a cache line between cores). Cost of one write: one copy of the bytes, one store, at most
//! one load of a line that the other core has written. No step of it waits.
//!
//! **Doorbell.** One word: its lowest bit says that somebody may sleep, the others count rings. Who
//! wants to sleep takes a ticket (sets the bit), looks at its rings once more, and sleeps while the
//! word is as it was. Who has moved a ring looks at the bit and, only if it is set, changes the word
//! and wakes. A full fence on both sides between the first and the second of these steps makes sure
//! that at least one sees the other, so no wake-up is lost, and no system call is made while
//! nobody sleeps.
//!
//! **Whom it trusts.** A process that can write to the memory can change the bytes that a rank receives,
//! as with any other transport. It cannot make a rank read or write outside the memory: positions
//! that come from it are checked ([`RingError`]), sizes are computed from checked numbers, and the
//! seals keep the memory from shrinking.
//!
//! Its synchronisation is tested by `cargo xtask races`, as `tests/mod.rs` says.

mod doorbell;
mod error;
#[cfg(all(target_os = "linux", not(loom)))]
mod header;
mod layout;
#[cfg_attr(
    not(all(target_os = "linux", not(loom))),
    path = "memfd_unavailable.rs"
)]
mod memfd;
#[cfg_attr(loom, path = "memory_modelled.rs")]
mod memory;
mod ring;
mod segment;
#[cfg(test)]
mod tests;

pub(crate) use doorbell::{Doorbell, Ticket};
pub(crate) use error::{RingError, SegmentError};
pub(crate) use layout::Layout;
pub(crate) use ring::{RingReceiver, RingSender};
pub(crate) use segment::{Address, Nonce, Segment};
