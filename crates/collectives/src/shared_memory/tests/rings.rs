//! What the two ends of a ring see of each other.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Duration;

use proptest::prelude::*;

use super::super::{Layout, RingError, RingReceiver, RingSender, Segment, SegmentError};
use everburn_tests::assert_matches;

const CAPACITY: usize = 4096;

pub(super) fn ring() -> (Segment, RingSender, RingReceiver) {
    let segment = Segment::on_heap(Layout::new(2, CAPACITY).unwrap());
    let sender = segment.sender(0, 1).unwrap();
    let receiver = segment.receiver(0, 1).unwrap();
    (segment, sender, receiver)
}

#[test]
fn what_is_read_in_place_ends_with_the_ring() {
    let (_segment, mut sender, mut receiver) = ring();
    sender.try_write(&[0; 4000]).unwrap();
    receiver.try_read(&mut [0; 4000]).unwrap();
    sender.try_write(&[7; 200]).unwrap();
    assert_eq!(
        receiver.peek(200).unwrap(),
        [7; 96],
        "up to the end of the ring"
    );
    receiver.consume(96);
    assert_eq!(receiver.peek(200).unwrap(), [7; 104], "from the start");
}

#[test]
#[should_panic(expected = "2 bytes consumed, 1 seen")]
fn more_than_was_seen_cannot_be_consumed() {
    let (_segment, mut sender, mut receiver) = ring();
    sender.try_write(&[1]).unwrap();
    receiver.peek(8).unwrap();
    receiver.consume(2);
}

#[test]
fn an_end_is_given_once() {
    let (segment, _sender, _receiver) = ring();
    let again = segment.sender(0, 1).unwrap_err();
    assert_matches!(again, SegmentError::Taken { .. });
    assert_eq!(
        again.to_string(),
        "the sender of the ring from rank 0 to rank 1 in shared memory is taken: two ranks of this \
         machine claim the same number"
    );
    assert!(segment.receiver(0, 1).is_err());
    assert!(segment.sender(1, 0).is_ok(), "another ring");
    for (from, to) in [(0, 0), (0, 2), (2, 0)] {
        let none = segment.sender(from, to).unwrap_err();
        assert_matches!(none, SegmentError::NoSuchRing { .. });
    }
    assert!(segment.doorbell(2).is_none());
}

#[test]
fn a_position_that_is_none_is_an_error_on_the_sender() {
    for (found, lowest) in [(101, 40), (u64::MAX, 40), (39, 40), (0, 40)] {
        let (segment, mut sender, mut receiver) = ring();
        sender.try_write(&[0; 100]).unwrap();
        receiver.try_read(&mut [0; 40]).unwrap();
        sender.free().unwrap();
        let place = segment.layout.ring(0, 1).unwrap().consumed;
        segment
            .memory
            .position(place)
            .store(found, Ordering::Release);
        let error = RingError {
            from: 0,
            to: 1,
            position: "consumed",
            found,
            lowest,
            highest: 100,
        };
        assert_eq!(sender.free(), Err(error));
        assert_eq!(sender.try_write(&[0; CAPACITY]), Err(error));
    }
}

#[test]
fn a_position_that_is_none_is_an_error_on_the_receiver() {
    for found in [40 + CAPACITY as u64 + 1, u64::MAX, 99] {
        let (segment, mut sender, mut receiver) = ring();
        sender.try_write(&[0; 100]).unwrap();
        receiver.try_read(&mut [0; 40]).unwrap();
        let place = segment.layout.ring(0, 1).unwrap().written;
        segment
            .memory
            .position(place)
            .store(found, Ordering::Release);
        let error = receiver.readable().unwrap_err();
        assert_eq!((error.found, error.position), (found, "written"));
        assert_eq!(receiver.try_read(&mut [0; 100]), Err(error));
        assert_eq!(receiver.peek(100).err(), Some(error));
        let told = error.to_string();
        let expected = format!(
            "the ring from rank 0 to rank 1 in shared memory is broken: its position `written` is \
             {found} and must be between 100 and {}",
            40 + CAPACITY
        );
        assert!(told.starts_with(&expected), "{told}");
    }
}

#[test]
fn layouts_that_cannot_be_are_refused() {
    let limits = [
        (0, 4096, "the ranks must be 1 to 1024"),
        (1025, 4096, "the ranks must be 1 to 1024"),
        (2, 2048, "the size of a ring must be a power of two"),
        (2, 5000, "the size of a ring must be a power of two"),
        (2, 1 << 31, "the size of a ring must be a power of two"),
        (1024, 1 << 30, "together they are larger than 1 TiB"),
    ];
    for (ranks, capacity, limit) in limits {
        let error = Layout::new(ranks, capacity).unwrap_err().to_string();
        let start = format!("there is no shared memory for {ranks} ranks with rings of {capacity}");
        assert!(
            error.starts_with(&start) && error.contains(limit),
            "{error}"
        );
    }
    assert_eq!(Layout::new(1, 4096).unwrap().bytes, 8192);
}

#[test]
fn a_wait_without_a_ring_ends_when_its_time_is_up() {
    let (segment, _sender, _receiver) = ring();
    let doorbell = segment.doorbell(0).unwrap();
    let ticket = doorbell.ticket();
    assert!(!doorbell.wait(ticket, Duration::from_millis(1)));
    assert!(!doorbell.wait(ticket, Duration::ZERO));
    doorbell.ring();
    assert!(doorbell.wait(ticket, Duration::MAX), "rung before the wait");
    let ticket = doorbell.ticket();
    assert!(!doorbell.wait(ticket, Duration::ZERO), "not rung since");
}

#[derive(Debug, Clone)]
enum Step {
    Write(usize),
    WriteParts(usize, usize),
    Read(usize),
    Peek(usize, usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let size = || prop_oneof![0..70usize, 0..5000usize];
    let step = prop_oneof![
        size().prop_map(Step::Write),
        (size(), size()).prop_map(|(a, b)| Step::WriteParts(a, b)),
        size().prop_map(Step::Read),
        (size(), size()).prop_map(|(a, b)| Step::Peek(a, b)),
    ];
    prop::collection::vec(step, 1..200)
}

/// Bytes of which no two stretches are alike.
struct Source(u32);

impl Source {
    fn take(&mut self, count: usize) -> Vec<u8> {
        let mut next = || {
            self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (self.0 >> 24) as u8
        };
        (0..count).map(|_| next()).collect()
    }
}

proptest! {
    #[test]
    fn a_ring_is_a_queue(steps in steps()) {
        let (_segment, mut sender, mut receiver) = ring();
        let mut queue = VecDeque::new();
        let mut source = Source(1);
        for step in steps {
            match step {
                Step::Write(size) => {
                    let bytes = source.take(size);
                    let count = sender.try_write(&bytes).unwrap();
                    prop_assert_eq!(count, size.min(CAPACITY - queue.len()));
                    queue.extend(&bytes[..count]);
                }
                Step::WriteParts(first, second) => {
                    let parts = [source.take(first), source.take(second)];
                    let count = sender.try_write_parts(&[&parts[0], &parts[1]]).unwrap();
                    prop_assert_eq!(count, (first + second).min(CAPACITY - queue.len()));
                    queue.extend(&parts.concat()[..count]);
                }
                Step::Read(size) => {
                    let mut into = vec![0; size];
                    let count = receiver.try_read(&mut into).unwrap();
                    prop_assert_eq!(count, size.min(queue.len()));
                    let expected: Vec<u8> = queue.drain(..count).collect();
                    prop_assert_eq!(&into[..count], &expected[..]);
                }
                Step::Peek(at_most, used) => {
                    let view = receiver.peek(at_most).unwrap();
                    prop_assert_eq!(view.is_empty(), at_most == 0 || queue.is_empty());
                    prop_assert!(queue.iter().zip(view).all(|(a, b)| a == b));
                    let used = used.min(view.len());
                    receiver.consume(used);
                    queue.drain(..used);
                }
            }
            prop_assert_eq!(receiver.readable(), Ok(queue.len()));
            prop_assert_eq!(sender.free(), Ok(CAPACITY - queue.len()));
        }
    }
}
