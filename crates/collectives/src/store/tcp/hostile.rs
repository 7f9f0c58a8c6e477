//! Arbitrary bytes at the store's server and at its client.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use everburn_auth::{Acceptor, CHALLENGE_BYTES, Dialer, Key, NONCE_BYTES, PROOF_BYTES};

use super::contents::Contents;
use super::peer::{Closing, Peer};
use super::wire::{AUTH_ACCEPTED, AUTH_OPCODE, AUTH_REFUSED, VALIDATION_MAGIC, opcode};
use super::{StoreAccess, StoreOptions, TcpStore, TcpStoreServer};
use crate::hostile::{Script, connection, leave_no_port, read_to_the_end};
use crate::store::{MAX_VALUE_BYTES, Store, StoreError};

const TOKEN: &str = "a token of the tests";

/// Rounds in which the server looks at a connection after it has been written to: more than bytes
/// over loopback need to arrive.
const LOOKS: usize = 3;

/// PyTorch's first message.
fn validation() -> Vec<u8> {
    let mut message = vec![opcode::VALIDATE];
    message.extend(VALIDATION_MAGIC.to_ne_bytes());
    message
}

fn access(token: bool) -> StoreAccess {
    match token {
        true => StoreAccess::Token(TOKEN.parse().expect("it is long enough")),
        false => StoreAccess::Open,
    }
}

fn key() -> Key {
    access(true).key().expect("it has a token")
}

fn options(token: bool) -> StoreOptions {
    StoreOptions {
        max_stored_bytes: 1 << 20,
        max_connections: 64,
        ..StoreOptions::new(access(token))
    }
}

/// A client proves that it has the token; `look` lets the server read what has been said.
fn authenticate(stream: &mut TcpStream, mut look: impl FnMut()) -> io::Result<()> {
    let dialer = Dialer::new(&key(), &[]).map_err(io::Error::other)?;
    stream.write_all(&[AUTH_OPCODE])?;
    stream.write_all(dialer.nonce())?;
    look();
    let mut challenge = [0; CHALLENGE_BYTES];
    stream.read_exact(&mut challenge)?;
    stream.write_all(&dialer.answer(&challenge).expect("it is our server"))?;
    look();
    let mut accepted = [0];
    stream.read_exact(&mut accepted)?;
    assert_eq!(accepted, [AUTH_ACCEPTED]);
    Ok(())
}

/// One connection of the server gets the bytes in pieces, with or without authentication before.
///
/// # Panics
/// If an unauthenticated client stores something, an unfinished request has no deadline, or the store
/// exceeds its memory budget.
pub fn store_stream(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    let token = script.chance();
    let introduced = script.chance();
    let options = options(token);
    let (mut near, far) = connection().expect("loopback");
    far.set_nonblocking(true).expect("a socket of our own");
    let mut peer = Peer::new(2, mio::net::TcpStream::from_std(far), &options);
    let mut contents = Contents::new(options.max_stored_bytes);
    let mut scratch = vec![0; 4096];
    if token && introduced {
        let look = || {
            for _ in 0..LOOKS {
                let turn = peer.take_turn(&mut contents, &options, &mut scratch, &mut vec![]);
                turn.expect("it keeps to the protocol");
            }
        };
        authenticate(&mut near, look).expect("loopback");
    }
    let mut said = Vec::new();
    let mut first = introduced.then(validation);
    while !script.is_over() || first.is_some() {
        let piece = match first.take() {
            Some(validation) => validation,
            None if script.chance() => script.bytes().to_vec(),
            None => script.rest().to_vec(),
        };
        if near.write_all(&piece).is_err() {
            break;
        }
        said.extend(&piece);
        let client = introduced || (!token && said.starts_with(&validation()));
        for _ in 0..LOOKS {
            let mut woken = Vec::new();
            let turn = peer.take_turn(&mut contents, &options, &mut scratch, &mut woken);
            if !client {
                assert_eq!(
                    contents.held_bytes, 0,
                    "an unauthenticated client stored something"
                );
                let waits = peer.deadline().is_some();
                assert!(
                    waits || turn.is_err(),
                    "a pending connection without a deadline"
                );
            }
            assert!(contents.held_bytes <= options.max_stored_bytes);
            match turn {
                Ok(_) => {}
                Err(Closing::WrongToken) if !token => panic!("there is no token to refuse for"),
                Err(_) => return,
            }
        }
        // What it answers is read, so that it continues.
        near.set_nonblocking(true).expect("a socket of our own");
        while matches!(near.read(&mut scratch), Ok(1..)) {}
        near.set_nonblocking(false).expect("a socket of our own");
    }
}

/// A real server over loopback: some connections with arbitrary bytes, then an honest client.
///
/// # Panics
/// If an unauthenticated client gets any answer but a refusal, its connection stays open after its
/// deadline, or the honest client is not served.
pub fn store_server(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    let token = script.chance();
    let options = StoreOptions {
        handshake_timeout: Duration::from_millis(20),
        request_timeout: Duration::from_millis(20),
        ..options(token)
    };
    let address = (Ipv4Addr::LOCALHOST, 0).into();
    let server = TcpStoreServer::bind(address, options.clone()).expect("a free port of loopback");
    let mut streams = Vec::new();
    for _ in 0..=script.below(3) {
        let Ok(mut stream) = TcpStream::connect(server.local_addr()) else {
            continue;
        };
        leave_no_port(&stream).expect("a socket of our own");
        let introduced = script.chance();
        // Closed already, as late or for what came first: that is as good.
        if introduced {
            if token && authenticate(&mut stream, || {}).is_err() {
                continue;
            }
            let _ = stream.write_all(&validation());
        }
        let said = script.bytes().to_vec();
        let _ = stream.write_all(&said);
        streams.push((stream, introduced, said));
    }
    for (mut stream, introduced, said) in streams {
        if introduced || (!token && said.starts_with(&validation())) {
            // It may rest in silence between two requests for as long as it likes.
            continue;
        }
        let answer = read_to_the_end(&mut stream);
        let challenged = token && said.len() > NONCE_BYTES && said[0] == AUTH_OPCODE;
        // Where the connection is reset, an answer may be lost.
        let refused = match answer.len() {
            0 => true,
            1 => token && !challenged && answer == [AUTH_REFUSED],
            CHALLENGE_BYTES => challenged,
            _ => {
                let (_, verdict) = answer.split_at(answer.len().min(CHALLENGE_BYTES));
                challenged && verdict == [AUTH_REFUSED]
            }
        };
        assert!(refused, "an unauthenticated client was sent {answer:?}");
    }
    let address = server.local_addr().to_string();
    let store = TcpStore::connect(&address, options).expect("the honest are served");
    // The bytes of those who knew the token may have filled the store.
    match store.compare_set("honest", b"", b"yes") {
        Ok(answer) => assert_eq!(answer, b"yes"),
        Err(error) => assert!(matches!(error, StoreError::Unreachable { .. }), "{error}"),
    }
}

/// What a hostile server does before it answers arbitrary bytes.
#[derive(Clone, Copy)]
struct Manners {
    /// The client asks for proof of the secret.
    token: bool,
    /// The server has the secret.
    knows: bool,
    /// It answers the ping.
    ping: bool,
}

/// A client asks a server that answers arbitrary bytes.
///
/// # Panics
/// Where the client does not come back soon after its deadline, returns more than it may, or says
/// more than its nonce to a server without the secret.
pub fn store_client(bytes: &[u8]) {
    const LIMIT: Duration = Duration::from_millis(30);
    let mut script = Script::new(bytes);
    let operation = script.below(10);
    let manners = Manners {
        token: script.chance(),
        knows: script.chance(),
        ping: script.chance(),
    };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port of loopback");
    let address = listener.local_addr().expect("it is bound").to_string();
    let answers = script.rest().to_vec();
    listener.set_nonblocking(true).expect("a socket of our own");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let over = &over;
        let server = scope.spawn(move || serve(&listener, over, manners, &answers));
        let options = StoreOptions {
            timeout: LIMIT,
            ..StoreOptions::new(access(manners.token))
        };
        let started = Instant::now();
        if let Ok(store) = TcpStore::connect(&address, options) {
            assert!(
                !manners.token || manners.knows,
                "a store without the secret was accepted"
            );
            ask(&store, operation, LIMIT);
        }
        assert!(started.elapsed() < crate::hostile::GENEROUS);
        over.store(true, Ordering::Release);
        server.join().expect("the hostile server does not panic");
    });
}

fn ask(store: &TcpStore, operation: usize, limit: Duration) {
    let found: Result<usize, StoreError> = match operation {
        0 => store.get_within("k", limit).map(|value| value.len()),
        1 => store.add("k", 1).map(|_| 0),
        2 => store.compare_set("k", b"a", b"b").map(|value| value.len()),
        3 => store.check(&["k", "l"]).map(|_| 0),
        4 => store
            .multi_get_within(&["k", "l"], limit)
            .map(|values| values.iter().map(Vec::len).sum()),
        5 => store
            .try_get_many(&["k", "l"])
            .map(|values| values.iter().flatten().map(Vec::len).sum()),
        6 => store.delete("k").map(|_| 0),
        7 => store.delete_many(&["k", "l"]).map(|()| 0),
        8 => store.wait_within(&["k"], limit).map(|()| 0),
        _ => store.num_keys().map(|_| 0),
    };
    if let Ok(bytes) = found {
        assert!(bytes <= 8 * MAX_VALUE_BYTES, "{bytes} bytes were returned");
    }
}

/// Answers each connection with as much of its manners as it has, then `answers`, then nothing more
/// until the client has gone; until it is `over`.
fn serve(listener: &TcpListener, over: &AtomicBool, manners: Manners, answers: &[u8]) {
    loop {
        let mut stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(_) if over.load(Ordering::Acquire) => return,
            Err(_) => {
                std::thread::sleep(Duration::from_micros(200));
                continue;
            }
        };
        stream.set_nonblocking(false).expect("a socket of our own");
        leave_no_port(&stream).expect("a socket of our own");
        let timeout = Some(Duration::from_millis(100));
        stream.set_read_timeout(timeout).expect("it is not zero");
        // A client that has gone, or has enough of the answers.
        let _ = converse(&mut stream, manners, answers);
    }
}

fn converse(stream: &mut TcpStream, manners: Manners, answers: &[u8]) -> io::Result<()> {
    if manners.token {
        let mut nonce = [0; 1 + NONCE_BYTES];
        stream.read_exact(&mut nonce)?;
        if !manners.knows {
            stream.write_all(answers)?;
            let said = stream.read(&mut [0])?;
            assert_eq!(said, 0, "the client accepted a store without the secret");
            return Ok(());
        }
        let nonce = nonce.last_chunk().expect("it is longer");
        let (acceptor, challenge) = Acceptor::new(&key(), &[], nonce).map_err(io::Error::other)?;
        stream.write_all(&challenge)?;
        let mut proof = [0; PROOF_BYTES];
        stream.read_exact(&mut proof)?;
        acceptor.verify(&proof).expect("it is our client");
        stream.write_all(&[AUTH_ACCEPTED])?;
    }
    let mut hello = [0; 10];
    stream.read_exact(&mut hello)?;
    if manners.ping {
        stream.write_all(&hello[6..])?;
    }
    stream.write_all(answers)?;
    let mut asked = [0; 1024];
    while stream.read(&mut asked)? > 0 {}
    Ok(())
}
