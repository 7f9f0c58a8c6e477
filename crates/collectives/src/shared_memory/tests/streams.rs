//! Two threads at the two ends of a ring: what ThreadSanitizer watches.
//!
//! It sees what the code does to memory, and takes two accesses for a race unless it has also seen
//! what orders them. So the rings here are on the heap (it distinguishes places by address, and a
//! second mapping has other addresses), and the threads are joined (the standard library, which is
//! not built for it, orders scoped threads by other means).

use std::thread;
use std::time::Instant;

use super::super::{Doorbell, RingReceiver, RingSender, Ticket};
use super::GENEROUS;
use super::rings::ring;

/// What an end does when there is nothing to do, and after it has done something.
trait Pace: Send + 'static {
    fn look(&mut self) {}
    fn wait(&mut self);
    fn moved(&mut self) {}
}

struct Spinning;

impl Pace for Spinning {
    fn wait(&mut self) {
        thread::yield_now();
    }
}

struct Sleeping {
    own: Doorbell,
    peers: Doorbell,
    ticket: Option<Ticket>,
}

impl Pace for Sleeping {
    fn look(&mut self) {
        self.ticket = Some(self.own.ticket());
    }

    fn wait(&mut self) {
        self.own.wait(self.ticket.unwrap(), GENEROUS);
    }

    fn moved(&mut self) {
        self.peers.ring();
    }
}

/// Streams from one thread to another.
fn stream(mut sender: RingSender, mut receiver: RingReceiver, paces: [impl Pace; 2]) {
    let total = 3_000_000usize;
    let end = Instant::now() + GENEROUS;
    let [mut pace, mut own_pace] = paces;
    let writer = thread::spawn(move || {
        let bytes: Vec<u8> = (0..total).map(|at| (at % 251) as u8).collect();
        let mut sent = 0;
        while sent < total {
            assert!(Instant::now() < end, "sent {sent}");
            pace.look();
            let piece = &bytes[sent..total.min(sent + 1 + sent % 3001)];
            match sender.try_write(piece).unwrap() {
                0 => pace.wait(),
                count => sent += count,
            }
            pace.moved();
        }
    });
    let mut received = 0;
    while received < total {
        assert!(Instant::now() < end, "received {received}");
        own_pace.look();
        let view = receiver.peek(1777).unwrap();
        let expected = (received..).map(|at| (at % 251) as u8);
        assert!(view.iter().copied().eq(expected.take(view.len())));
        match view.len() {
            0 => own_pace.wait(),
            count => {
                receiver.consume(count);
                received += count;
                own_pace.moved();
            }
        }
    }
    writer.join().unwrap();
}

#[test]
fn threads_stream_through_a_ring_and_sleep_on_doorbells() {
    let (segment, sender, receiver) = ring();
    let bells = [0, 1].map(|rank| segment.doorbell(rank).unwrap());
    let sleeping = |own: usize| Sleeping {
        own: bells[own].clone(),
        peers: bells[1 - own].clone(),
        ticket: None,
    };
    stream(sender, receiver, [sleeping(0), sleeping(1)]);
}

/// Nothing but the positions orders what the two threads do.
#[test]
fn threads_stream_through_a_ring_and_spin() {
    let (_segment, sender, receiver) = ring();
    stream(sender, receiver, [Spinning, Spinning]);
}
