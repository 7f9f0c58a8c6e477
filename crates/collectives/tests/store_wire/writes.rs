//! Writes have no reply: a refused one is laid to nobody else's charge.

use everburn_collectives::store::{Store, StoreError, StoreOptions, TcpStoreServer};
use everburn_tests::{AssertContains, assert_matches};

use crate::raw::{LONG, client, open, serve};

/// A store that takes small values only.
fn small() -> TcpStoreServer {
    serve(StoreOptions {
        max_stored_bytes: 20_000,
        ..open()
    })
}

/// Which write was refused, and whether others are in question.
fn refused(error: &StoreError) -> (&'static str, &str, bool) {
    let StoreError::WriteRefused {
        operation,
        key,
        others,
        ..
    } = error
    else {
        panic!("{error}");
    };
    let text = error.to_string();
    text.assert_contains([operation, key.as_str(), "full", "warnings"]);
    (operation, key, !others.is_empty())
}

#[test]
fn a_refused_set_is_not_the_next_callers_fault() {
    let server = small();
    let store = client(&server);
    store.set("large", &[7; 19_900]).unwrap();
    let error = store.add("innocent", 1).unwrap_err();
    assert_eq!(refused(&error), ("set", "large", false));
    assert!(!error.to_string().contains("innocent"), "{error}");
    // A new connection, and the innocent operation was not carried out before.
    assert_eq!(store.add("innocent", 1).unwrap(), 1);
    assert!(!store.check(&["large"]).unwrap());
}

#[test]
fn a_large_write_learns_its_own_refusal() {
    let server = small();
    let store = client(&server);
    let value = vec![7; 1 << 20];
    let error = store.set("large", &value).unwrap_err();
    assert_eq!(refused(&error), ("set", "large", false));
    assert_eq!(store.num_keys().unwrap(), 0);
}

#[test]
fn of_several_writes_the_last_is_named_and_that_it_is_one_of_several() {
    let server = small();
    let store = client(&server);
    for item in 0..30 {
        // The server may hang up before the last is sent.
        if let Err(error) = store.set(&format!("key {item}"), &[item; 1000]) {
            let (operation, _, several) = refused(&error);
            return assert_eq!((operation, several), ("set", true));
        }
    }
    let error = store.get("key 0").unwrap_err();
    assert_eq!(refused(&error), ("set", "key 29", true));
}

#[test]
fn a_stream_of_small_writes_is_confirmed_now_and_then() {
    let server = small();
    let store = client(&server);
    let refusal = (0..1_000_000).find_map(|i| store.set(&format!("key {i}"), &[7; 100]).err());
    let error = refusal.expect("it does not take a hundred megabytes to find out");
    let (operation, key, several) = refused(&error);
    assert_eq!((operation, several), ("set", true));
    let number: usize = key.trim_start_matches("key ").parse().unwrap();
    assert!(number < 20_000, "{number}");
}

#[test]
fn the_last_of_a_stream_of_writes_arrives_though_its_client_asks_nothing_more() {
    let server = serve(open());
    let (writer, reader) = (client(&server), client(&server));
    for stream in 0..5 {
        for number in 0..5_000 {
            let key = format!("key {}", number % 100);
            writer.set(&key, &[stream; 32]).unwrap();
        }
        let last = format!("the last of stream {stream}");
        writer.set(&last, b"set").unwrap();
        assert_eq!(reader.get_within(&last, LONG).unwrap(), b"set");
        assert_eq!(reader.get("key 99").unwrap(), [stream; 32]);
    }
}

/// The request's own refusal is its own, whatever was written before.
#[test]
fn a_refused_request_does_not_blame_the_writes_before_it() {
    let server = small();
    let store = client(&server);
    store.set("n", b"not a number").unwrap();
    let error = store.add("n", 1).unwrap_err();
    assert_matches!(error, StoreError::Invalid { .. });
    assert_eq!(store.get("n").unwrap(), b"not a number");
}

#[test]
fn a_server_that_has_ended_refuses_nothing() {
    let server = small();
    let store = client(&server);
    store.set("k", b"v").unwrap();
    drop(server);
    let error = store.add("n", 1).unwrap_err();
    assert_matches!(error, StoreError::Unreachable { .. });
    assert!(error.to_string().contains("probably ended"), "{error}");
}
