//! A client that does not follow the protocol, or has no token, is turned away alone.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use everburn_auth::{CHALLENGE_BYTES, Dialer, JobToken, NONCE_BYTES, PROOF_BYTES};
use everburn_collectives::store::{
    AUTH_OPCODE, Store, StoreError, StoreOptions, TcpStore, TcpStoreServer,
};
use everburn_tests::{AssertContains, assert_matches, holds_within};

use crate::raw::{
    LONG, Raw, TOKEN, VALIDATE, assert_serves, connect, message, open, serve, with_token,
};

const AUTH_REFUSED: u8 = 0xEB;

#[test]
fn a_wrong_magic_is_refused_at_once() {
    let server = serve(StoreOptions {
        handshake_timeout: Duration::from_secs(3600),
        ..open()
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

/// What a test itself says and hears at a server that demands the token.
fn greeted(server: &TcpStoreServer, first: &[u8]) -> Raw {
    let mut raw = Raw::connect(server);
    raw.send(first);
    raw
}

/// The first message of a client with the secret, and what it answers to the challenge.
fn dialer(token: &str) -> (Dialer, Vec<u8>) {
    let token: JobToken = token.parse().unwrap();
    let dialer = Dialer::new(&token.key("store"), &[]).unwrap();
    let first = [&[AUTH_OPCODE][..], dialer.nonce()].concat();
    (dialer, first)
}

fn challenge(raw: &mut Raw) -> [u8; CHALLENGE_BYTES] {
    let mut challenge = [0; CHALLENGE_BYTES];
    raw.0.read_exact(&mut challenge).unwrap();
    challenge
}

#[test]
fn both_sides_prove_that_they_know_the_token_and_a_mismatch_says_what_to_check() {
    let server = serve(with_token(TOKEN));
    let address = server.local_addr().to_string();
    let store = connect(&server, with_token(TOKEN)).unwrap();
    store.set("k", b"v").unwrap();
    // A connection of its own for the wait passes the gate, too.
    thread::scope(|scope| {
        let waiting = scope.spawn(|| store.get_within("later", LONG));
        store.set("later", b"now").unwrap();
        assert_eq!(waiting.join().unwrap().unwrap(), b"now");
    });
    for (options, expected) in [
        (
            with_token("the token of another job"),
            "the job token of the store does not match that of this process; set the same EVERBURN_JOB_TOKEN on \
             every machine, and check that the address",
        ),
        (
            open(),
            "the store requires a job token and this process has none; set the same EVERBURN_JOB_TOKEN on every \
             machine",
        ),
    ] {
        let error = connect(&server, options).unwrap_err();
        assert_matches!(error, StoreError::Unauthenticated { .. });
        let text = error.to_string();
        let begin = format!("authentication with the store at {address} failed: {expected}");
        assert!(text.starts_with(&begin), "{text}");
    }
    let refused = || server.refused().unwrap_or_default();
    assert!(holds_within(LONG, || refused().contains("127.0.0.1: ")));
    // For ranks that wait for others.
    let named = || {
        let named = store.try_get("everburn/store/refused").unwrap();
        String::from_utf8(named.unwrap_or_default()).unwrap()
    };
    let all = "127.0.0.1 (2 times): its job token does not match";
    assert!(holds_within(LONG, || named().starts_with(all)));
}

#[test]
fn another_service_at_the_address_is_named_by_its_answer() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let service = thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        client.read_exact(&mut [0; 33]).unwrap();
        let answer =
            "HTTP/1.0 400 Bad Request\r\nServer: SimpleHTTP\r\nContent-Type: text/html\r\n\r\n";
        client.write_all(answer.as_bytes()).unwrap();
    });
    let error = TcpStore::connect(&address, with_token(TOKEN)).unwrap_err();
    assert_matches!(error, StoreError::Protocol { .. });
    let text = error.to_string();
    let expected = "it is no store: it answered `HTTP/1.0 400 Bad Request";
    assert!(text.contains(expected), "{text}");
    service.join().unwrap();
}

#[test]
fn an_unauthenticated_client_is_served_nothing() {
    let server = serve(with_token(TOKEN));
    // PyTorch's first message, a request, and the token itself as it was sent in former times.
    for first in [
        VALIDATE.to_vec(),
        vec![17],
        message(17, &[TOKEN.as_bytes()]),
    ] {
        assert_eq!(
            greeted(&server, &first).closed(),
            [AUTH_REFUSED],
            "{first:?}"
        );
    }
    let list_keys = [&VALIDATE[..], &[17]].concat();
    // Another token's proof, a proof reflected, and one replayed.
    let (other, first) = dialer("the token of another job");
    let mut raw = greeted(&server, &first);
    assert!(other.answer(&challenge(&mut raw)).is_err());
    raw.send(&[[7; PROOF_BYTES].to_vec(), list_keys.clone()].concat());
    assert_eq!(raw.closed(), [AUTH_REFUSED]);

    let (_, first) = dialer(TOKEN);
    let mut raw = greeted(&server, &first);
    let reflected = challenge(&mut raw)[NONCE_BYTES..].to_vec();
    raw.send(&[reflected, list_keys.clone()].concat());
    assert_eq!(raw.closed(), [AUTH_REFUSED]);

    let (honest, first) = dialer(TOKEN);
    let mut raw = greeted(&server, &first);
    let proof = honest.answer(&challenge(&mut raw)).unwrap();
    raw.ask(&proof, &[0]);
    raw.send(&list_keys);
    let mut keys = [0; 8];
    raw.0.read_exact(&mut keys).unwrap();
    // Whom the server has refused, if it has written that already.
    assert!(u64::from_ne_bytes(keys) <= 1);
    let mut raw = greeted(&server, &first);
    challenge(&mut raw);
    raw.send(&[proof.to_vec(), list_keys].concat());
    assert_eq!(raw.closed(), [AUTH_REFUSED]);
}

#[test]
fn a_proof_is_no_validation() {
    let server = serve(with_token(TOKEN));
    let (honest, first) = dialer(TOKEN);
    let mut raw = greeted(&server, &first);
    let proof = honest.answer(&challenge(&mut raw)).unwrap();
    raw.ask(&proof, &[0]);
    raw.send(&message(1, &[b"/k", b"v"]));
    assert_eq!(raw.closed(), b"");
    let store = connect(&server, with_token(TOKEN));
    assert!(!store.unwrap().check(&["k"]).unwrap());
}

#[test]
fn a_client_whose_handshakes_are_broken_off_asks_once_whether_the_store_is_open() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::scope(|scope| {
        let client = scope.spawn(|| TcpStore::connect(&address, with_token(TOKEN)));
        let mut questions = 0;
        // Ten handshakes, after which it gives up, and the questions in between.
        for handshakes in 0.. {
            if handshakes - questions == 10 {
                break;
            }
            let mut connection = Raw(listener.accept().unwrap().0);
            connection.0.set_read_timeout(Some(LONG)).unwrap();
            let mut first = [0];
            connection.0.read_exact(&mut first).unwrap();
            questions += i32::from(first != [AUTH_OPCODE]);
        }
        assert_eq!(questions, 1);
        let error = client.join().unwrap().unwrap_err();
        assert!(error.to_string().contains("ten handshakes"), "{error}");
    });
}

#[test]
fn a_listener_that_says_nothing_is_named() {
    // The system accepts what nobody asks for.
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let options = StoreOptions {
        timeout: Duration::from_millis(300),
        ..with_token(TOKEN)
    };
    let address = listener.local_addr().unwrap().to_string();
    let error = TcpStore::connect(&address, options).unwrap_err();
    let text = error.to_string();
    text.assert_contains(["connections are accepted and nothing answers"]);
}

#[test]
fn a_client_with_a_token_does_not_use_an_open_store() {
    let server = serve(open());
    let error = connect(&server, with_token(TOKEN)).unwrap_err();
    let text = error.to_string();
    text.assert_contains(["the store is open", "EVERBURN_OPEN_STORE=1", "address"]);
    assert_serves(&server);
}

#[test]
fn a_proof_that_is_owed_for_too_long_ends_the_connection() {
    let server = serve(StoreOptions {
        handshake_timeout: Duration::from_secs(1),
        ..with_token(TOKEN)
    });
    let (_, first) = dialer(TOKEN);
    let whole = greeted(&server, &first);
    let half = greeted(&server, &first[..20]);
    let silent = Raw::connect(&server);
    // On a busy machine it may be late with its challenge; it is closed all the same.
    let challenge = whole.closed();
    assert!(
        [0, CHALLENGE_BYTES].contains(&challenge.len()),
        "{challenge:?}"
    );
    for raw in [half, silent] {
        assert_eq!(raw.closed(), b"");
    }
}

#[test]
fn who_is_refused_and_sends_without_end_keeps_nobody_waiting() {
    let server = serve(with_token(TOKEN));
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
        let store = connect(&server, with_token(TOKEN)).unwrap();
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

#[test]
fn an_address_that_others_can_reach_is_served_as_asked() {
    let everywhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    let at_loopback = |server: &TcpStoreServer| format!("127.0.0.1:{}", server.local_addr().port());
    let server = TcpStoreServer::bind(everywhere, open()).unwrap();
    let store = TcpStore::connect(&at_loopback(&server), open()).unwrap();
    assert_eq!(store.add("n", 1).unwrap(), 1);
    let server = TcpStoreServer::bind(everywhere, with_token(TOKEN)).unwrap();
    assert!(TcpStore::connect(&at_loopback(&server), open()).is_err());
    let store = TcpStore::connect(&at_loopback(&server), with_token(TOKEN)).unwrap();
    assert_eq!(store.add("n", 1).unwrap(), 1);
}
