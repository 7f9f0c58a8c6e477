//! Who does not follow the protocol, or does not know the token, is turned away alone.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use everburn_collectives::store::{
    AUTH_OPCODE, Store, StoreError, StoreOptions, TcpStore, TcpStoreServer,
};

use crate::raw::{LONG, Raw, VALIDATE, assert_serves, client, list, message, serve};

#[test]
fn a_wrong_magic_is_refused_at_once() {
    let server = serve(StoreOptions {
        handshake_timeout: Duration::from_secs(3600),
        ..StoreOptions::default()
    });
    for wrong in [
        &[0, 1, 2, 3, 4][..],
        b"GET / HTTP/1.1\r\n",
        &[1],
        &[13, 0, 0, 0, 0],
    ] {
        let mut raw = Raw::connect(&server);
        raw.send(wrong);
        assert_eq!(raw.closed(), b"");
    }
    assert_serves(&server);
}

#[test]
fn absurd_lengths_and_opcodes_close_only_their_connection() {
    let server = serve(StoreOptions::default());
    let huge = u64::MAX.to_ne_bytes();
    for bad in [
        vec![99],
        vec![0xEB],
        vec![19],
        [&[1][..], &huge].concat(),
        [&message(1, &[b"/k"])[..], &(9_u64 << 20).to_ne_bytes()].concat(),
        [&[6][..], &huge].concat(),
        [&[11][..], &131_073_u64.to_ne_bytes()].concat(),
        VALIDATE.to_vec(),
    ] {
        let mut raw = Raw::validated(&server);
        raw.send(&bad);
        // What is bad only with its arguments gets some.
        let _ = raw.0.write_all(&[0; 16]);
        assert_eq!(raw.closed(), b"", "{bad:?}");
    }
    assert_serves(&server);
}

#[test]
fn who_says_nothing_or_half_a_message_is_dropped_after_the_deadline() {
    let server = serve(StoreOptions {
        handshake_timeout: Duration::from_secs(1),
        request_timeout: Duration::from_secs(1),
        ..StoreOptions::default()
    });
    let silent = Raw::connect(&server);
    let mut half_validated = Raw::connect(&server);
    // On a busy machine it may be dropped before; that it is dropped is what counts.
    let _ = half_validated.0.write_all(&VALIDATE[..3]);
    let mut half_request = Raw::surely_validated(&server);
    let _ = half_request
        .0
        .write_all(&message(1, &[b"/k", b"value"])[..12]);
    for raw in [silent, half_validated, half_request] {
        assert_eq!(raw.closed(), b"");
    }
    // Who is validated and waits, or has nothing to say, is not dropped.
    let mut waiting = Raw::surely_validated(&server);
    waiting.send(&list(6, 1, &[b"/k"]));
    let silent = Raw::connect(&server);
    assert_eq!(silent.closed(), b"", "a deadline has passed meanwhile");
    client(&server).set("k", b"").unwrap();
    waiting.expect(&[0]);
}

fn with_token(token: Option<&str>) -> StoreOptions {
    StoreOptions {
        job_token: token.map(str::to_owned),
        timeout: LONG,
        ..StoreOptions::default()
    }
}

#[test]
fn an_open_address_demands_the_token() {
    let open = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    let error = TcpStoreServer::bind(open, with_token(None)).unwrap_err();
    assert!(matches!(error, StoreError::TokenRequired { .. }), "{error}");
    let text = error.to_string();
    for part in ["0.0.0.0", "EVERBURN_JOB_TOKEN", "127.0.0.1"] {
        assert!(text.contains(part), "{part} in: {text}");
    }

    let server = TcpStoreServer::bind(open, with_token(Some("secret"))).unwrap();
    let address = format!("127.0.0.1:{}", server.local_addr().port());
    let store = TcpStore::connect(&address, with_token(Some("secret"))).unwrap();
    store.set("k", b"v").unwrap();
    // A connection of its own for the wait passes the gate, too.
    thread::scope(|scope| {
        let waiting = scope.spawn(|| store.get_within("later", LONG));
        store.set("later", b"now").unwrap();
        assert_eq!(waiting.join().unwrap().unwrap(), b"now");
    });
    for (token, expected) in [(Some("wrong"), "token is wrong"), (None, "has none")] {
        let error = TcpStore::connect(&address, with_token(token)).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
    // PyTorch's first message is refused, as is a token cut short.
    let at_loopback = SocketAddr::new(
        IpAddr::from(Ipv4Addr::LOCALHOST),
        server.local_addr().port(),
    );
    for first in [VALIDATE.to_vec(), message(AUTH_OPCODE, &[b"secre"])] {
        let mut raw = Raw(TcpStream::connect(at_loopback).unwrap());
        raw.0.set_read_timeout(Some(LONG)).unwrap();
        raw.send(&first);
        assert_eq!(raw.closed(), [AUTH_OPCODE]);
    }
}

#[test]
fn who_is_refused_and_sends_without_end_keeps_nobody_waiting() {
    let server = TcpStoreServer::bind(
        SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        with_token(Some("secret")),
    )
    .unwrap();
    let address = server.local_addr();
    let flood = || {
        let mut raw = TcpStream::connect(address).unwrap();
        raw.set_write_timeout(Some(LONG)).unwrap();
        let mut sent = 0_u64;
        // Until the server closes the connection.
        while raw.write_all(&[1; 1 << 20]).is_ok() {
            sent += 1;
        }
        sent
    };
    thread::scope(|scope| {
        let floods: Vec<_> = (0..3).map(|_| scope.spawn(flood)).collect();
        let store = TcpStore::connect(&address.to_string(), with_token(Some("secret"))).unwrap();
        for _ in 0..100 {
            store.add("served", 1).unwrap();
        }
        // Each flood ends by the server's own deadline.
        for flood in floods {
            flood.join().unwrap();
        }
        assert_eq!(store.add("served", 0).unwrap(), 100);
    });
}

/// An address of this machine under which others reach it, if it has one. Connecting a datagram
/// socket sends nothing.
fn outward() -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_loopback() && !address.is_unspecified()).then_some(address)
}

#[test]
#[allow(clippy::print_stderr, reason = "a skipped test is to be seen")]
fn an_address_of_the_network_demands_the_token() {
    let Some(address) = outward() else {
        eprintln!("SKIPPED: this machine has loopback only");
        return;
    };
    let address = SocketAddr::new(address, 0);
    let error = TcpStoreServer::bind(address, with_token(None)).unwrap_err();
    assert!(matches!(error, StoreError::TokenRequired { .. }), "{error}");
    let listener = TcpListener::bind(address).unwrap();
    let error = TcpStoreServer::from_listener(listener, with_token(None)).unwrap_err();
    assert!(matches!(error, StoreError::TokenRequired { .. }), "{error}");
    let server = TcpStoreServer::bind(address, with_token(Some("secret"))).unwrap();
    let mut raw = Raw::connect(&server);
    raw.send(&VALIDATE);
    assert_eq!(raw.closed(), [AUTH_OPCODE]);
}
