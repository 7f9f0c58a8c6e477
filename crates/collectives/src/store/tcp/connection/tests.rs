//! When the kernel joins writes.

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
