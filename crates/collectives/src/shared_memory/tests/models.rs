//! Every interleaving of two or three threads, by loom. Rings of four bytes suffice: positions wrap
//! in the data after four bytes as they do after a million.
//!
//! Nothing here spins: a loop that waits has no end in a model. What a thread does not get at once
//! it leaves, or it sleeps on a doorbell.

use std::sync::Arc;
use std::time::Duration;

use loom::thread;

use super::super::{Doorbell, Layout, RingReceiver, RingSender, Segment};

const CAPACITY: usize = 4;

fn segment(ranks: usize) -> Segment {
    Segment::on_heap(Layout::new(ranks, CAPACITY).unwrap())
}

fn ends(segment: &Segment, from: usize, to: usize) -> (RingSender, RingReceiver) {
    let sender = segment.sender(from, to).unwrap();
    (sender, segment.receiver(from, to).unwrap())
}

/// Runs every interleaving in which no more than four times a thread is stopped where it could go
/// on: seconds in place of minutes. `LOOM_MAX_PREEMPTIONS=255` runs all there are; they pass.
fn model(run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(4));
    builder.check(run);
}

/// What the sender put in comes out, and no byte is read while it is written.
#[test]
fn bytes_arrive_whole_and_in_order() {
    model(|| {
        let (mut sender, mut receiver) = ends(&segment(2), 0, 1);
        let writer = thread::spawn(move || {
            let mut sent = sender.try_write(&[1, 2, 3]).unwrap();
            for _ in 0..2 {
                let next = [sent as u8 + 1, sent as u8 + 2];
                sent += sender.try_write_parts(&[&next[..1], &next[1..]]).unwrap();
            }
            sent
        });
        let mut received = Vec::new();
        for _ in 0..3 {
            take(&mut receiver, &mut received);
        }
        let sent = writer.join().unwrap();
        take(&mut receiver, &mut received);
        assert_eq!(received, (1..=sent as u8).collect::<Vec<_>>());
    });
}

fn take(receiver: &mut RingReceiver, received: &mut Vec<u8>) {
    let mut into = [0; CAPACITY];
    let count = receiver.try_read(&mut into).unwrap();
    received.extend_from_slice(&into[..count]);
}

/// The same for what is read in place.
#[test]
fn places_belong_to_one_end_at_a_time() {
    model(|| {
        let (mut sender, mut receiver) = ends(&segment(2), 0, 1);
        let writer = thread::spawn(move || {
            let mut sent = 0;
            for bytes in [3, 2, 2] {
                let next: Vec<u8> = (sent + 1..=sent + bytes).collect();
                sent += sender.try_write(&next).unwrap() as u8;
            }
            sent
        });
        let mut received = Vec::new();
        for at_most in [1, 4, 2] {
            peek(&mut receiver, at_most, &mut received);
        }
        let sent = writer.join().unwrap();
        // Twice: what is left may be on both sides of the ring's end.
        peek(&mut receiver, CAPACITY, &mut received);
        peek(&mut receiver, CAPACITY, &mut received);
        assert_eq!(received, (1..=sent).collect::<Vec<_>>());
    });
}

fn peek(receiver: &mut RingReceiver, at_most: usize, received: &mut Vec<u8>) {
    let view = receiver.peek(at_most).unwrap();
    received.extend_from_slice(view);
    let count = view.len();
    receiver.consume(count);
}

/// Looks, takes a ticket, looks again, sleeps: as the engine does.
fn sleep_until<T>(doorbell: &Doorbell, mut look: impl FnMut() -> Option<T>) -> T {
    loop {
        let ticket = doorbell.ticket();
        if let Some(found) = look() {
            return found;
        }
        doorbell.wait(ticket, Duration::MAX);
    }
}

/// More than the ring holds.
const BYTES: [u8; 6] = [1, 2, 3, 4, 5, 6];

/// Both ends sleep: the sender on a full ring, the receiver on an empty one.
#[test]
fn no_wake_up_is_lost_between_sender_and_receiver() {
    model(|| {
        let segment = Arc::new(segment(2));
        let (mut sender, mut receiver) = ends(&segment, 0, 1);
        let bells = [0, 1].map(|rank| segment.doorbell(rank).unwrap());
        let [mine, theirs] = bells.clone();
        let writer = thread::spawn(move || {
            let mut sent = 0;
            sleep_until(&mine, || {
                let count = sender.try_write(&BYTES[sent..]).unwrap();
                sent += count;
                if count > 0 {
                    theirs.ring();
                }
                (sent == BYTES.len()).then_some(())
            });
        });
        let [theirs, mine] = bells;
        let mut received = Vec::new();
        sleep_until(&mine, || {
            let before = received.len();
            take(&mut receiver, &mut received);
            if received.len() > before {
                theirs.ring();
            }
            (received.len() == BYTES.len()).then_some(())
        });
        assert_eq!(received, BYTES);
        writer.join().unwrap();
    });
}

/// Two ring at once for one who sleeps.
#[test]
fn no_wake_up_is_lost_between_two_senders_and_a_receiver() {
    model(|| {
        let segment = segment(3);
        let bell = segment.doorbell(2).unwrap();
        let mut receivers = Vec::new();
        let writers = [0, 1].map(|from| {
            let (mut sender, receiver) = ends(&segment, from, 2);
            receivers.push(receiver);
            let bell = bell.clone();
            thread::spawn(move || {
                assert_eq!(sender.try_write(&[from as u8]), Ok(1));
                bell.ring();
            })
        });
        let mut missing = 2;
        sleep_until(&bell, || {
            for (from, receiver) in receivers.iter_mut().enumerate() {
                let mut into = [9];
                if receiver.try_read(&mut into).unwrap() == 1 {
                    assert_eq!(into, [from as u8]);
                    missing -= 1;
                }
            }
            (missing == 0).then_some(())
        });
        for writer in writers {
            writer.join().unwrap();
        }
    });
}
