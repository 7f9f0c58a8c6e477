use std::thread;

use everburn_tests::AssertContains;

use super::*;

/// A backlog of 1000 bytes with two peers, and their last requests.
fn backlog() -> (Arc<Backlog>, Arc<Mutex<HashMap<usize, bool>>>) {
    let backlog = Backlog::new(1000, 300);
    let asked: Arc<Mutex<HashMap<usize, bool>>> = Arc::default();
    for peer in [1, 2] {
        let asked = asked.clone();
        let note = move |pause| {
            lock(&asked).insert(peer, pause);
        };
        backlog.add_peer(peer, Box::new(note));
    }
    (backlog, asked)
}

fn charges(backlog: &Arc<Backlog>, peer: usize, count: usize) -> Vec<Charge> {
    let charge = |_| backlog.charge(peer, 100 - HEADER_BYTES);
    (0..count).map(charge).collect()
}

fn reserve(backlog: &Arc<Backlog>, peer: usize, bytes: u64) -> Result<Reservation, String> {
    loop {
        match backlog.reserve(peer, bytes)? {
            Admission::Now(reservation) => return Ok(reservation),
            Admission::After(at) => thread::sleep(at - Instant::now()),
        }
    }
}

fn refusal(backlog: &Arc<Backlog>, peer: usize, bytes: u64) -> String {
    reserve(backlog, peer, bytes).err().unwrap()
}

#[test]
fn a_peer_is_paused_at_half_of_the_limit_and_resumed_at_a_quarter() {
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
fn all_peers_together_are_paused_at_the_limit() {
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
fn an_awaited_peer_is_not_paused() {
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
fn a_peer_that_ignores_a_pause_is_refused_with_the_option_to_raise() {
    let (backlog, _asked) = backlog();
    // Paused at 600; one message of 300 is in flight, and the limit and one message may be buffered.
    let waiting = charges(&backlog, 1, 12);
    drop(reserve(&backlog, 1, 300).unwrap());
    let refused = refusal(&backlog, 1, 101);
    refused.assert_contains([
        "101 bytes",
        "1200 bytes",
        "asked to pause",
        "`max_unreceived_bytes`",
    ]);
    drop(reserve(&backlog, 1, 100).unwrap());
    drop(waiting);
    drop(reserve(&backlog, 1, 300).unwrap());
    // A thread of this process is not counted.
    drop(charges(&backlog, 7, 100));
    drop(reserve(&backlog, 7, u64::MAX).unwrap());
}

#[test]
fn a_reader_waits_once_per_pause_or_until_its_peer_is_resumed() {
    let (backlog, _asked) = backlog();
    let waiting = charges(&backlog, 1, 6);
    let after = |backlog: &Arc<Backlog>| matches!(backlog.reserve(1, 100), Ok(Admission::After(at)) if at > Instant::now());
    assert!(after(&backlog));
    let awaited = backlog.awaits(&[1]);
    assert!(!after(&backlog));
    drop(awaited);
    assert!(after(&backlog), "it was paused again");
    drop(reserve(&backlog, 1, 100).unwrap());
    assert!(!after(&backlog));
    drop(waiting);
}

#[test]
fn a_message_in_flight_is_accepted_from_a_paused_peer() {
    let (backlog, asked) = backlog();
    let first = backlog.charge(1, 5000);
    assert_eq!(lock(&asked).get(&1), Some(&true));
    drop(reserve(&backlog, 1, 300).unwrap());
    refusal(&backlog, 1, 1);
    drop(first);
}

#[test]
fn a_peer_that_was_not_paused_is_not_refused_because_of_others() {
    let (backlog, asked) = backlog();
    let others = charges(&backlog, 1, 23);
    assert_eq!(lock(&asked).get(&2), None);
    drop(reserve(&backlog, 2, 300).unwrap());
    // Nor is one that a call waits for.
    let mine = charges(&backlog, 2, 3);
    assert_eq!(lock(&asked).get(&2), Some(&true));
    let awaited = backlog.awaits(&[2]);
    drop(reserve(&backlog, 2, 300).unwrap());
    drop(reserve(&backlog, 2, 300).unwrap());
    drop(awaited);
    // Asked again, it may end the message that was under way, and no more.
    drop(reserve(&backlog, 2, 300).unwrap());
    let refused = refusal(&backlog, 2, 1);
    assert!(refused.contains("2600 bytes of all ranks"), "{refused}");
    drop((others, mine));
}

#[test]
fn an_awaited_peer_cannot_send_other_messages_without_limit() {
    let (backlog, _asked) = backlog();
    let _awaited = backlog.awaits(&[1]);
    let _waiting = charges(&backlog, 1, 21);
    drop(reserve(&backlog, 1, 200).unwrap());
    let refused = refusal(&backlog, 1, 201);
    assert!(refused.contains("in the order of the sends"), "{refused}");
}

#[test]
fn concurrent_readers_see_each_other() {
    let (backlog, _asked) = backlog();
    let waiting = (charges(&backlog, 1, 10), charges(&backlog, 2, 10));
    // Both have ended the message that was under way.
    for peer in [1, 2] {
        drop(reserve(&backlog, peer, 300).unwrap());
    }
    let room = reserve(&backlog, 1, 200).unwrap();
    refusal(&backlog, 2, 200);
    // What was handed to a call waits no more, and what waits is not counted twice.
    drop(room);
    let room = reserve(&backlog, 2, 200).unwrap();
    let second = backlog.charge(2, 200 - HEADER_BYTES);
    refusal(&backlog, 1, 101);
    drop(reserve(&backlog, 1, 100).unwrap());
    drop((room, second, waiting));
}
