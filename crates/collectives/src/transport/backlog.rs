//! How much may wait here that no call has asked for, and how a peer is asked to hold back.
//!
//! Payloads that arrived over a network are counted from their arrival until a call takes them. A peer is
//! asked to hold its data back once half of the limit is its own, or all peers together have reached
//! it, and to go on when half of that has been taken. While a call waits for a peer, that peer is
//! never held: what is wanted may be behind what nobody has asked for yet. So no order of sends and
//! receives waits for ever, as long as each rank comes to its receives.
//!
//! Asking is not forcing: frames are under way when the peer learns of it, so one message more is always
//! taken. A peer that goes on after that is cut off, with an error that says so, once the limit and one
//! message of its own wait here, or twice the limit and one message of all peers. A peer that
//! has not been asked is not cut off for what others have sent. While a call waits for a peer, twice
//! the limit and one message of it may come before the one that is wanted.
//!
//! So the most that waits here is twice the limit and one message, and two messages more of each peer.
//! Messages count from the moment at which their reader makes room for them, so that readers that
//! ask at the same time see each other.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use super::frame::HEADER_BYTES;
use crate::sync::{lock, wait_until};

/// How long a reader pauses once after its peer was asked to hold back, so that the peer learns of it
/// before it has sent much more. News behind the data is late by no more than this.
const PAUSE: Duration = Duration::from_millis(100);

/// Asks a peer to hold back (`true`) or to go on. It only takes note: it is called under a lock.
pub(crate) type Valve = Box<dyn Fn(bool) + Send>;

/// The payloads that wait on this rank, by peer.
pub(crate) struct Backlog {
    /// In bytes, over all peers.
    limit: u64,
    max_message_bytes: u64,
    state: Mutex<State>,
    /// A peer was asked to go on.
    opened: Condvar,
}

#[derive(Default)]
struct State {
    total: u64,
    /// Those whose payloads come over a network. Others, threads of this process, are not counted.
    peers: HashMap<usize, Peer>,
}

struct Peer {
    valve: Valve,
    bytes: u64,
    /// The payload that its reader is reading now.
    arriving: u64,
    /// What has come since it was asked to hold back.
    gone_on: u64,
    /// How many calls wait for it.
    awaited: usize,
    /// Since when it has been asked to hold back.
    held: Option<Instant>,
    /// The reader has paused for that.
    paused: bool,
}

impl Backlog {
    pub(crate) fn new(limit: u64, max_message_bytes: u64) -> Arc<Self> {
        Arc::new(Self {
            limit,
            max_message_bytes,
            state: Mutex::default(),
            opened: Condvar::new(),
        })
    }

    /// Counts what `peer` sends from now on.
    pub(crate) fn add_peer(&self, peer: usize, valve: Valve) {
        let peer_state = Peer {
            valve,
            bytes: 0,
            arriving: 0,
            gone_on: 0,
            awaited: 0,
            held: None,
            paused: false,
        };
        lock(&self.state).peers.insert(peer, peer_state);
    }

    /// Keeps a place for `bytes` more of `peer`; else says what to check. The reader of `peer`, of which
    /// there is one, asks before it reads them, and pauses here once after the peer was asked to hold back.
    /// It keeps the place until it has delivered them.
    pub(crate) fn make_room(self: &Arc<Self>, peer: usize, bytes: u64) -> Result<Room, String> {
        let mut state = lock(&self.state);
        // Ends: a pause has its end, and is made once for each time that the peer is held.
        while let Some(found) = state.peers.get_mut(&peer) {
            if let Some(since) = found.held
                && !found.paused
            {
                let (locked, late) = wait_until(&self.opened, state, since + PAUSE);
                state = locked;
                if late && let Some(found) = state.peers.get_mut(&peer) {
                    found.paused = true;
                }
                continue;
            }
            self.check(&state, peer, bytes)?;
            if let Some(found) = state.peers.get_mut(&peer) {
                found.arriving = bytes;
                found.gone_on = found.gone_on.saturating_add(bytes);
            }
            break;
        }
        Ok(Room {
            backlog: self.clone(),
            peer,
        })
    }

    /// Whether `bytes` more of `peer` may come.
    fn check(&self, state: &State, peer: usize, bytes: u64) -> Result<(), String> {
        let Some(found) = state.peers.get(&peer) else {
            return Ok(());
        };
        let limit = self.limit;
        let most_of_one = limit.saturating_add(self.max_message_bytes);
        let most_of_all = limit.saturating_add(most_of_one);
        let own = found.bytes.saturating_add(bytes);
        if found.held.is_none() {
            if own > most_of_all {
                return Err(format!(
                    "a message of {bytes} bytes, while {} bytes of its messages wait here that come \
                     before the one that a call waits for. Receive in the order of the sends, or raise \
                     the option `max_unreceived_bytes`, which is {limit}",
                    found.bytes
                ));
            }
            return Ok(());
        }
        // One message was under way when the peer was asked.
        if found.gone_on.saturating_add(bytes) <= self.max_message_bytes {
            return Ok(());
        }
        let arriving = state.peers.values().map(|it| it.arriving);
        let total = arriving.fold(state.total, u64::saturating_add);
        if own > most_of_one || total.saturating_add(bytes) > most_of_all {
            return Err(format!(
                "a message of {bytes} bytes, while {} bytes of its messages and {total} bytes of all ranks \
                 wait here for calls that receive them; it was asked to hold back and sent {} bytes since. \
                 Check that every send has its receive, or raise the option `max_unreceived_bytes`, which \
                 is {limit}",
                found.bytes, found.gone_on
            ));
        }
        Ok(())
    }

    /// Counts a payload of `peer` that nobody has asked for, until the charge is dropped.
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

    /// `peers` are waited for until the guard is dropped, and not held meanwhile.
    pub(crate) fn awaits(self: &Arc<Self>, peers: &[usize]) -> Awaited {
        for peer in peers {
            self.change(*peer, |found| found.awaited += 1, |total| total);
        }
        Awaited {
            backlog: self.clone(),
            peers: peers.to_vec(),
        }
    }

    /// Changes the count of `peer`, if it is counted, and asks whoever it concerns to hold or go on.
    fn change(&self, peer: usize, peers: impl FnOnce(&mut Peer), total: impl FnOnce(u64) -> u64) {
        let mut state = lock(&self.state);
        let Some(found) = state.peers.get_mut(&peer) else {
            return;
        };
        peers(found);
        state.total = total(state.total);
        let (total, mut opened) = (state.total, false);
        for (number, found) in &mut state.peers {
            if *number == peer || found.held.is_some() {
                opened |= self.settle(total, found);
            }
        }
        drop(state);
        if opened {
            self.opened.notify_all();
        }
    }

    /// Asks `peer` to hold back or to go on, where that is due; whether it was asked to go on.
    fn settle(&self, total: u64, peer: &mut Peer) -> bool {
        let free = peer.awaited > 0 || peer.bytes == 0;
        if peer.held.is_none() {
            if !free && (peer.bytes > self.limit / 2 || total > self.limit) {
                (peer.held, peer.paused) = (Some(Instant::now()), false);
                peer.gone_on = 0;
                (peer.valve)(true);
            }
            return false;
        }
        let open = free || (peer.bytes <= self.limit / 4 && total <= self.limit / 2);
        if open {
            peer.held = None;
            (peer.valve)(false);
        }
        open
    }

    /// The bytes of `peer` that wait here.
    #[cfg(test)]
    pub(crate) fn of(&self, peer: usize) -> u64 {
        lock(&self.state).peers.get(&peer).map_or(0, |it| it.bytes)
    }
}

/// A place for a payload that is being read.
pub(crate) struct Room {
    backlog: Arc<Backlog>,
    peer: usize,
}

impl Drop for Room {
    fn drop(&mut self) {
        // Nothing is left to free where the payload waits here now.
        if let Some(found) = lock(&self.backlog.state).peers.get_mut(&self.peer) {
            found.arriving = 0;
        }
    }
}

/// A payload that waits here.
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

/// Peers that a call waits for.
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
mod tests {
    use super::*;

    /// A backlog of 1000 bytes, and what its two peers were asked last.
    fn backlog() -> (Arc<Backlog>, Arc<Mutex<HashMap<usize, bool>>>) {
        let backlog = Backlog::new(1000, 300);
        let asked: Arc<Mutex<HashMap<usize, bool>>> = Arc::default();
        for peer in [1, 2] {
            let asked = asked.clone();
            let note = move |hold| {
                lock(&asked).insert(peer, hold);
            };
            backlog.add_peer(peer, Box::new(note));
        }
        (backlog, asked)
    }

    fn charges(backlog: &Arc<Backlog>, peer: usize, count: usize) -> Vec<Charge> {
        let charge = |_| backlog.charge(peer, 100 - HEADER_BYTES);
        (0..count).map(charge).collect()
    }

    fn refusal(backlog: &Arc<Backlog>, peer: usize, bytes: u64) -> String {
        backlog.make_room(peer, bytes).err().unwrap()
    }

    #[test]
    fn a_peer_is_held_at_half_of_the_limit_and_goes_on_at_a_quarter() {
        let (backlog, asked) = backlog();
        let mut waiting = charges(&backlog, 1, 5);
        assert_eq!(lock(&asked).get(&1), None);
        waiting.extend(charges(&backlog, 1, 1));
        assert_eq!(lock(&asked).get(&1), Some(&true));
        waiting.truncate(3);
        assert_eq!(lock(&asked).get(&1), Some(&true));
        waiting.truncate(2);
        assert_eq!(lock(&asked).get(&1), Some(&false));
        assert_eq!(lock(&asked).get(&2), None, "it has done nothing");
        drop(waiting);
        assert_eq!(backlog.of(1), 0);
    }

    #[test]
    fn all_peers_together_are_held_at_the_limit() {
        let (backlog, asked) = backlog();
        let first = charges(&backlog, 1, 5);
        let second = charges(&backlog, 2, 5);
        assert!(lock(&asked).is_empty());
        let one_more = charges(&backlog, 2, 1);
        assert_eq!(lock(&asked).get(&2), Some(&true));
        drop(one_more);
        assert_eq!(lock(&asked).get(&2), Some(&true));
        // What others leave makes room for it too.
        drop(second.into_iter().take(3).collect::<Vec<_>>());
        drop(first);
        assert_eq!(lock(&asked).get(&2), Some(&false));
    }

    #[test]
    fn a_peer_that_is_waited_for_is_not_held() {
        let (backlog, asked) = backlog();
        let waiting = charges(&backlog, 1, 9);
        assert_eq!(lock(&asked).get(&1), Some(&true));
        let awaited = backlog.awaits(&[1]);
        assert_eq!(lock(&asked).get(&1), Some(&false));
        let more = charges(&backlog, 1, 1);
        assert_eq!(lock(&asked).get(&1), Some(&false));
        drop(awaited);
        assert_eq!(lock(&asked).get(&1), Some(&true));
        drop((waiting, more));
    }

    #[test]
    fn who_goes_on_all_the_same_is_refused_with_the_option_to_raise() {
        let (backlog, _asked) = backlog();
        // Held at 600; one message of 300 is under way, and the limit and one message may wait.
        let waiting = charges(&backlog, 1, 12);
        drop(backlog.make_room(1, 300).unwrap());
        let refused = refusal(&backlog, 1, 101);
        for part in [
            "101 bytes",
            "1200 bytes",
            "hold back",
            "`max_unreceived_bytes`",
        ] {
            assert!(refused.contains(part), "{refused}");
        }
        drop(backlog.make_room(1, 100).unwrap());
        drop(waiting);
        drop(backlog.make_room(1, 300).unwrap());
        // A thread of this process is not counted.
        drop(charges(&backlog, 7, 100));
        drop(backlog.make_room(7, u64::MAX).unwrap());
    }

    #[test]
    fn a_message_that_was_under_way_is_taken_from_who_is_asked_to_hold_back() {
        let (backlog, asked) = backlog();
        let first = backlog.charge(1, 5000);
        assert_eq!(lock(&asked).get(&1), Some(&true));
        drop(backlog.make_room(1, 300).unwrap());
        refusal(&backlog, 1, 1);
        drop(first);
    }

    #[test]
    fn who_was_not_asked_is_not_refused_for_what_others_have_sent() {
        let (backlog, asked) = backlog();
        let others = charges(&backlog, 1, 23);
        assert_eq!(lock(&asked).get(&2), None);
        drop(backlog.make_room(2, 300).unwrap());
        // Nor is one that a call waits for.
        let mine = charges(&backlog, 2, 3);
        assert_eq!(lock(&asked).get(&2), Some(&true));
        let awaited = backlog.awaits(&[2]);
        drop(backlog.make_room(2, 300).unwrap());
        drop(backlog.make_room(2, 300).unwrap());
        drop(awaited);
        // Asked again, it may end the message that was under way, and no more.
        drop(backlog.make_room(2, 300).unwrap());
        let refused = refusal(&backlog, 2, 1);
        assert!(refused.contains("2600 bytes of all ranks"), "{refused}");
        drop((others, mine));
    }

    #[test]
    fn who_is_waited_for_may_not_send_other_messages_without_end() {
        let (backlog, _asked) = backlog();
        let _awaited = backlog.awaits(&[1]);
        let _waiting = charges(&backlog, 1, 21);
        drop(backlog.make_room(1, 200).unwrap());
        let refused = refusal(&backlog, 1, 201);
        assert!(refused.contains("in the order of the sends"), "{refused}");
    }

    #[test]
    fn readers_that_ask_at_the_same_time_see_each_other() {
        let (backlog, _asked) = backlog();
        let waiting = (charges(&backlog, 1, 10), charges(&backlog, 2, 10));
        // Both have ended the message that was under way.
        for peer in [1, 2] {
            drop(backlog.make_room(peer, 300).unwrap());
        }
        let room = backlog.make_room(1, 200).unwrap();
        refusal(&backlog, 2, 200);
        // What was handed to a call waits no more, and what waits is not counted twice.
        drop(room);
        let room = backlog.make_room(2, 200).unwrap();
        let second = backlog.charge(2, 200 - HEADER_BYTES);
        refusal(&backlog, 1, 101);
        drop(backlog.make_room(1, 100).unwrap());
        drop((room, second, waiting));
    }
}
