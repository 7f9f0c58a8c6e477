//! Flow control for received data: bounds the bytes without a receive call, and pauses peers.
//!
//! Payloads received over a network are counted from their arrival until a call receives them. A peer is
//! paused once it has more than half of the limit, or all peers together exceed it, and resumed when half
//! of that has been received. A peer that a call waits for is never paused, because the awaited message may
//! come after others. So no order of sends and receives deadlocks, as long as each rank reaches its
//! receives.
//!
//! A pause takes effect late: one more message, in flight, is always accepted. A peer that continues to
//! send after that is disconnected with an error, once the limit and one message of its own, or twice the
//! limit and one message of all peers, are buffered. A peer that was not paused is not disconnected because
//! of other peers' data. While a call waits for a peer, twice the limit and one message may precede the
//! awaited one.
//!
//! So at most twice the limit and one message are buffered, plus two messages per peer. Messages count
//! from the reservation by their reader, so that messages of several peers that are being read see each other.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::frame::HEADER_BYTES;
use crate::sync::lock;

/// How long a reader waits once after its peer was paused, so that the request arrives before the peer has
/// sent much more. Aborts after the data are delayed by at most this.
const READER_WAIT: Duration = Duration::from_millis(100);

/// Requests a pause (`true`) or a resume of a peer. It is called under a lock and must not block.
pub(crate) type FlowControl = Box<dyn Fn(bool) + Send>;

/// The unreceived bytes on this rank, by peer.
pub(crate) struct Backlog {
    /// In bytes, over all peers.
    limit: u64,
    max_message_bytes: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    total: u64,
    /// Peers over a network. Threads of this process are not counted.
    peers: HashMap<usize, Peer>,
}

struct Peer {
    flow_control: FlowControl,
    bytes: u64,
    /// The payload that its reader is reading now.
    arriving: u64,
    /// The bytes received since the pause was requested.
    since_pause: u64,
    /// The number of calls that wait for it.
    awaited: usize,
    pause_requested: Option<Instant>,
    /// The reader has waited after the request.
    reader_waited: bool,
}

impl Backlog {
    pub(crate) fn new(limit: u64, max_message_bytes: u64) -> Arc<Self> {
        Arc::new(Self {
            limit,
            max_message_bytes,
            state: Mutex::default(),
        })
    }

    /// Counts the unreceived bytes of `peer` from now on.
    pub(crate) fn add_peer(&self, peer: usize, flow_control: FlowControl) {
        let peer_state = Peer {
            flow_control,
            bytes: 0,
            arriving: 0,
            since_pause: 0,
            awaited: 0,
            pause_requested: None,
            reader_waited: false,
        };
        lock(&self.state).peers.insert(peer, peer_state);
    }

    /// Reserves `bytes` for the next payload of `peer`, or says when to try again: once after a pause request,
    /// or as soon as the peer is resumed. The only reader of `peer` calls this before it reads the payload,
    /// and keeps the reservation until it has delivered it.
    ///
    /// # Errors
    /// The exceeded limit, with what to check.
    pub(crate) fn reserve(self: &Arc<Self>, peer: usize, bytes: u64) -> Result<Admission, String> {
        let mut state = lock(&self.state);
        if let Some(found) = state.peers.get_mut(&peer) {
            if let Some(since) = found.pause_requested
                && !found.reader_waited
            {
                if since.elapsed() < READER_WAIT {
                    return Ok(Admission::After(since + READER_WAIT));
                }
                found.reader_waited = true;
            }
            self.check(&state, peer, bytes)?;
        }
        if let Some(found) = state.peers.get_mut(&peer) {
            found.arriving = bytes;
            found.since_pause = found.since_pause.saturating_add(bytes);
        }
        Ok(Admission::Now(Reservation {
            backlog: self.clone(),
            peer,
        }))
    }

    fn check(&self, state: &State, peer: usize, bytes: u64) -> Result<(), String> {
        let Some(found) = state.peers.get(&peer) else {
            return Ok(());
        };
        let limit = self.limit;
        let most_of_one = limit.saturating_add(self.max_message_bytes);
        let most_of_all = limit.saturating_add(most_of_one);
        let own = found.bytes.saturating_add(bytes);
        if found.pause_requested.is_none() {
            if own > most_of_all {
                return Err(format!(
                    "a message of {bytes} bytes, while {} bytes of its messages are unreceived that precede \
                     the one that a call waits for. Receive in the order of the sends, or raise the option \
                     `max_unreceived_bytes`, which is {limit}",
                    found.bytes
                ));
            }
            return Ok(());
        }
        // One message may have been in flight at the pause request.
        if found.since_pause.saturating_add(bytes) <= self.max_message_bytes {
            return Ok(());
        }
        let arriving = state.peers.values().map(|it| it.arriving);
        let total = arriving.fold(state.total, u64::saturating_add);
        if own > most_of_one || total.saturating_add(bytes) > most_of_all {
            return Err(format!(
                "a message of {bytes} bytes, while {} bytes of its messages and {total} bytes of all ranks \
                 are unreceived; it was asked to pause and has sent {} bytes since. Check that every send has \
                 its receive, or raise the option `max_unreceived_bytes`, which is {limit}",
                found.bytes, found.since_pause
            ));
        }
        Ok(())
    }

    /// Counts an unreceived payload of `peer` until the charge is dropped.
    pub(crate) fn charge(self: &Arc<Self>, peer: usize, payload_bytes: usize) -> Charge {
        let bytes = (payload_bytes + HEADER_BYTES) as u64;
        let waits = |found: &mut Peer| {
            found.bytes += bytes;
            found.arriving = 0;
        };
        self.change(peer, waits, |total| total + bytes);
        Charge {
            backlog: self.clone(),
            peer,
            bytes,
        }
    }

    /// Marks `peers` as awaited until the guard is dropped; they are not paused meanwhile.
    pub(crate) fn awaits(self: &Arc<Self>, peers: &[usize]) -> Awaited {
        for peer in peers {
            self.change(*peer, |found| found.awaited += 1, |total| total);
        }
        Awaited {
            backlog: self.clone(),
            peers: peers.to_vec(),
        }
    }

    /// Changes the counts of `peer`, if it is counted, and pauses or resumes peers accordingly.
    fn change(&self, peer: usize, peers: impl FnOnce(&mut Peer), total: impl FnOnce(u64) -> u64) {
        let mut state = lock(&self.state);
        let Some(found) = state.peers.get_mut(&peer) else {
            return;
        };
        peers(found);
        state.total = total(state.total);
        let total = state.total;
        for (number, found) in &mut state.peers {
            if *number == peer || found.pause_requested.is_some() {
                self.settle(total, found);
            }
        }
    }

    /// Pauses or resumes `peer` if due.
    fn settle(&self, total: u64, peer: &mut Peer) {
        let free = peer.awaited > 0 || peer.bytes == 0;
        if peer.pause_requested.is_none() {
            if !free && (peer.bytes > self.limit / 2 || total > self.limit) {
                (peer.pause_requested, peer.reader_waited) = (Some(Instant::now()), false);
                peer.since_pause = 0;
                (peer.flow_control)(true);
            }
        } else if free || (peer.bytes <= self.limit / 4 && total <= self.limit / 2) {
            peer.pause_requested = None;
            (peer.flow_control)(false);
        }
    }

    /// The unreceived bytes of `peer`.
    #[cfg(test)]
    pub(crate) fn of(&self, peer: usize) -> u64 {
        lock(&self.state).peers.get(&peer).map_or(0, |it| it.bytes)
    }
}

/// The answer to a request for a reservation.
pub(crate) enum Admission {
    Now(Reservation),
    /// To be requested again then.
    After(Instant),
}

/// A reservation for a payload that is being read.
pub(crate) struct Reservation {
    backlog: Arc<Backlog>,
    peer: usize,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // Zero already if the payload was charged.
        if let Some(found) = lock(&self.backlog.state).peers.get_mut(&self.peer) {
            found.arriving = 0;
        }
    }
}

/// An unreceived payload.
pub(crate) struct Charge {
    backlog: Arc<Backlog>,
    peer: usize,
    bytes: u64,
}

impl Drop for Charge {
    fn drop(&mut self) {
        let bytes = self.bytes;
        self.backlog.change(
            self.peer,
            |found| found.bytes = found.bytes.saturating_sub(bytes),
            |total| total.saturating_sub(bytes),
        );
    }
}

pub(crate) struct Awaited {
    backlog: Arc<Backlog>,
    peers: Vec<usize>,
}

impl Drop for Awaited {
    fn drop(&mut self) {
        for peer in &self.peers {
            self.backlog.change(
                *peer,
                |found| found.awaited = found.awaited.saturating_sub(1),
                |total| total,
            );
        }
    }
}

#[cfg(test)]
mod tests;
