//! A server that ends before its clients, and one that begins after them.

use std::net::TcpListener;
use std::thread;

use everburn_collectives::store::{Store, StoreError, TcpStore, TcpStoreServer};
use everburn_tests::assert_matches;

use crate::raw::{LONG, client, open};

#[test]
fn a_server_stops_with_clients_connected_and_frees_its_port() {
    // Somebody else may take the port between its end and the next server, though not each time.
    assert!((0..5).any(|_| stops_and_can_begin_anew()));
}

fn stops_and_can_begin_anew() -> bool {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = TcpStoreServer::from_listener(listener, open()).unwrap();
    assert_eq!(server.local_addr(), address);
    let store = client(&server);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| store.get_within("never", LONG));
        // The second connection is that of the wait.
        while server.connections() < 2 {
            thread::yield_now();
        }
        let taken = TcpStoreServer::bind(address, open()).unwrap_err();
        assert_matches!(taken, StoreError::AddressInUse { .. });
        assert!(taken.to_string().contains(&address.to_string()), "{taken}");
        drop(server);
        let error = waiting.join().unwrap().unwrap_err();
        assert!(error.to_string().contains("has probably ended"), "{error}");
    });
    let error = store
        .set("k", b"")
        .and_then(|()| store.get("k"))
        .unwrap_err();
    assert!(error.to_string().contains(&address.to_string()), "{error}");
    match TcpStoreServer::bind(address, open()) {
        Ok(_) => true,
        Err(StoreError::AddressInUse { .. }) => false,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_client_may_come_before_its_server() {
    let probe = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = probe.local_addr().unwrap();
    thread::scope(|scope| {
        // The listener accepts for nobody until the server takes it over.
        let early =
            scope.spawn(move || TcpStore::connect(&address.to_string(), open())?.add("n", 1));
        let server = TcpStoreServer::from_listener(probe, open()).unwrap();
        assert_eq!(early.join().unwrap().unwrap(), 1);
        drop(server);
    });
}
