//! Floods of connections and of bytes: the server keeps within its limits and serves its clients.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use everburn_collectives::store::{Store, StoreAccess, StoreOptions, TcpStore, TcpStoreServer};
use socket2::{Domain, Socket, Type};

use crate::raw::{LONG, Raw, TOKEN, VALIDATE, client, connect, open, serve, with_token};

const PING: [u8; 5] = [13, 1, 2, 3, 4];

/// A server that demands a token and lets silent connections be for an hour.
fn patient(max_pending: usize, max_pending_per_address: usize) -> StoreOptions {
    StoreOptions {
        handshake_timeout: Duration::from_secs(3600),
        max_pending,
        max_pending_per_address,
        ..with_token(TOKEN)
    }
}

/// A connection from an address of this machine.
fn connect_from(host: [u8; 4], server: &TcpStoreServer) -> Raw {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let from = SocketAddr::from((Ipv4Addr::from(host), 0));
    socket.bind(&from.into()).unwrap();
    socket.connect(&server.local_addr().into()).unwrap();
    let raw = Raw(socket.into());
    raw.0.set_read_timeout(Some(LONG)).unwrap();
    raw
}

/// Whether the server still answers on this connection.
fn answers(raw: &mut Raw) -> bool {
    let mut pong = [0; 4];
    let asked = raw.0.write_all(&PING);
    match asked.and_then(|()| raw.0.read_exact(&mut pong)) {
        Ok(()) => true,
        Err(error) => {
            let closed = [
                ErrorKind::UnexpectedEof,
                ErrorKind::ConnectionReset,
                ErrorKind::BrokenPipe,
            ];
            assert!(closed.contains(&error.kind()), "{error}");
            false
        }
    }
}

#[test]
fn a_flood_of_silent_connections_drives_out_its_own_oldest() {
    let options = patient(64, 64);
    let server = serve(options.clone());
    let flood: Vec<Raw> = (0..300).map(|_| Raw::connect(&server)).collect();
    for _ in 0..3 {
        let store = connect(&server, options.clone()).unwrap();
        assert_eq!(store.add("n", 0).unwrap(), 0);
    }
    assert!(server.connections() <= 65);
    for raw in flood.into_iter().take(200) {
        assert_eq!(raw.closed(), b"");
    }
}

/// Linux has all of 127.0.0.0/8.
#[cfg(target_os = "linux")]
#[test]
fn a_flood_from_one_address_leaves_those_of_others_alone() {
    let options = patient(1000, 8);
    let server = serve(StoreOptions {
        access: StoreAccess::Open,
        ..options
    });
    let mut slow = connect_from([127, 0, 0, 3], &server);
    let flood: Vec<Raw> = (0..100)
        .map(|_| connect_from([127, 0, 0, 2], &server))
        .collect();
    for raw in flood.into_iter().take(92) {
        assert_eq!(raw.closed(), b"");
    }
    slow.send(&VALIDATE);
    assert!(answers(&mut slow));
}

#[test]
fn clients_have_the_place_of_silent_connections() {
    let options = StoreOptions {
        max_connections: 10,
        ..patient(1000, 1000)
    };
    let server = serve(options.clone());
    let flood: Vec<Raw> = (0..50).map(|_| Raw::connect(&server)).collect();
    let connect = |_| connect(&server, options.clone()).unwrap();
    let stores: Vec<TcpStore> = (0..10).map(connect).collect();
    for store in &stores {
        store.add("n", 1).unwrap();
    }
    assert_eq!(server.connections(), 10);
    // Clients are driven out by nobody.
    assert_eq!(Raw::connect(&server).closed(), b"");
    assert_eq!(stores[0].add("n", 0).unwrap(), 10);
    drop(flood);
}

#[test]
fn replies_that_nobody_reads_take_of_what_may_be_held() {
    const LIMIT: usize = 4 << 20;
    let server = serve(StoreOptions {
        max_stored_bytes: LIMIT,
        ..open()
    });
    let store = client(&server);
    store.set("large", &vec![7; 1 << 20]).unwrap();
    let get = [&[3_u8][..], &6_u64.to_ne_bytes(), b"/large"].concat();
    let mut readers: Vec<Raw> = (0..16).map(|_| Raw::validated(&server)).collect();
    for raw in &mut readers {
        let _ = raw.0.write_all(&get.repeat(64));
        assert!(server.held_bytes() <= LIMIT);
    }
    // Small requests are answered all the while.
    for _ in 0..100 {
        store.add("n", 1).unwrap();
        assert!(server.held_bytes() <= LIMIT);
    }
    drop(readers);
    assert_eq!(store.get("large").unwrap().len(), 1 << 20);
}
