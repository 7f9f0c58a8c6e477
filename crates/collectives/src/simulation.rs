//! What a simulated rank needs of the inside of a group. No part of the API.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::group::{CollectiveError, ProcessGroup, WORLD};
use crate::rendezvous::join::Joining;
use crate::rendezvous::{Rendezvous, RendezvousError, WaitListener};
use crate::store::{Deadline, Store};
use crate::transport::Inbox;

/// Joins `world_size` ranks over a store, as [`crate::rendezvous::rendezvous`] does once it has reached it.
///
/// # Errors
/// [`RendezvousError`]
pub fn join(
    store: &dyn Store,
    rank: usize,
    world_size: usize,
    limit: Duration,
) -> Result<(), RendezvousError> {
    let joining = Joining {
        store,
        rank,
        world_size,
        ranks_per_machine: None,
        deadline: Deadline::within(limit),
        on_wait: &WaitListener::default(),
    };
    joining.join(|| ())
}

/// Exchanges addresses as a mesh does, and waits for `connected` in place of its connections.
///
/// # Errors
/// [`CollectiveError`]
pub fn exchange_addresses(
    rendezvous: &Rendezvous,
    address: SocketAddr,
    connected: &dyn Fn(Duration) -> bool,
) -> Result<(), CollectiveError> {
    crate::transport::exchange_addresses(rendezvous, address, connected)
}

/// Waits, as a rank does in a collective of all, until `is_done`; it is asked again after [`wake`].
///
/// # Errors
/// [`CollectiveError`] as of a collective: the group has failed or a rank is lost.
pub fn wait(
    group: &ProcessGroup,
    is_done: &dyn Fn() -> bool,
    deadline: Instant,
) -> Result<(), CollectiveError> {
    group.core().wait_for(is_done, deadline)
}

/// Has the rank of `inbox`, which [`wait`]s in its group, look again.
pub fn wake(inbox: &Inbox) {
    if let Some(mailbox) = inbox.mailbox(WORLD) {
        mailbox.wake();
    }
}
