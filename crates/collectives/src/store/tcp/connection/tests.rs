//! When the kernel joins writes, and what is said of a store that does not answer.

use super::*;
use crate::hostile::GENEROUS;
use crate::store::{StoreAccess, StoreOptions, TcpStoreServer};

#[test]
fn only_writes_in_a_row_are_joined_until_a_reply_is_waited_for() {
    let options = StoreOptions::new(StoreAccess::Open);
    let server = TcpStoreServer::bind("127.0.0.1:0".parse().unwrap(), options).unwrap();
    let deadline = Deadline::within(GENEROUS);
    let mut connection = Connection::open(server.local_addr(), None, deadline).unwrap();
    let mut joined_at = |now: Instant| {
        let deadline = Deadline {
            started: now,
            limit: GENEROUS,
        };
        connection.note("set", "key", 40, deadline).unwrap();
        !connection.stream.nodelay().unwrap()
    };
    let mut now = Instant::now();
    for _ in 0..2 * STREAM_WRITES {
        now += 2 * STREAM_GAP;
        assert!(!joined_at(now));
    }
    for _ in 0..2 {
        now += 2 * STREAM_GAP;
        for count in 1..=2 * STREAM_WRITES {
            assert_eq!(joined_at(now), count >= STREAM_WRITES, "write {count}");
        }
    }
    connection.confirm(&[], deadline).unwrap();
    assert!(connection.stream.nodelay().unwrap());
}

#[test]
fn of_a_store_that_does_not_answer_the_launcher_that_is_stopped_is_named() {
    let said = |stopped| not_answered("10.0.0.1:29500", Duration::from_secs(10), stopped);
    let begin = "the store at 10.0.0.1:29500 has not answered for 10 s; ranks that train continue without heartbeats, and one \
                 that has to meet others, at the start or after a loss, waits 10 s more: ";
    let stopped = said(Some(4711));
    assert!(stopped.starts_with(begin), "{stopped}");
    assert!(
        stopped.ends_with(
            "(process 4711) is stopped: `kill -CONT 4711`, or `fg` in its terminal, continues it"
        ),
        "{stopped}"
    );
    let unknown = said(None);
    assert!(
        unknown.starts_with(begin) && !unknown.contains("4711"),
        "{unknown}"
    );
    assert!(
        unknown.contains("the launcher of machine 0 or rank 0"),
        "{unknown}"
    );
}
