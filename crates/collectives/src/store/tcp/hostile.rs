//! Arbitrary bytes at the store's server and at its client.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::contents::Contents;
use super::peer::{Closing, Peer};
use super::wire::{AUTH_ACCEPTED, AUTH_OPCODE, AUTH_REFUSED, VALIDATION_MAGIC, opcode, put_string};
use super::{StoreOptions, TcpStore, TcpStoreServer};
use crate::hostile::{Script, connection, leave_no_port, read_to_the_end};
use crate::store::{MAX_VALUE_BYTES, Store, StoreError};

const TOKEN: &str = "secret";

/// Rounds in which the server looks at a connection after it has been written to: more than bytes
/// over loopback need to arrive.
const LOOKS: usize = 3;

/// What a client of the job says before its requests.
fn greeting(token: bool) -> Vec<u8> {
    let mut greeting = Vec::new();
    if token {
        greeting.push(AUTH_OPCODE);
        put_string(&mut greeting, TOKEN.as_bytes());
    }
    greeting.push(opcode::VALIDATE);
    greeting.extend(VALIDATION_MAGIC.to_ne_bytes());
    greeting
}

fn options(token: bool) -> StoreOptions {
    StoreOptions {
        job_token: token.then(|| TOKEN.to_owned()),
        max_stored_bytes: 1 << 20,
        max_connections: 64,
        ..StoreOptions::default()
    }
}

/// One connection of the server gets the bytes in pieces, a stranger's or after a good greeting.
///
/// # Panics
/// Where a stranger changes what is stored, a connection that owes something has no deadline, or
/// the store holds more than it may.
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
    let greeting = greeting(token);
    let mut said = Vec::new();
    let mut first = introduced.then_some(greeting.clone());
    while !script.is_over() || first.is_some() {
        let piece = match first.take() {
            Some(greeting) => greeting,
            None if script.chance() => script.bytes().to_vec(),
            None => script.rest().to_vec(),
        };
        if near.write_all(&piece).is_err() {
            break;
        }
        said.extend(&piece);
        for _ in 0..LOOKS {
            let mut woken = Vec::new();
            let turn = peer.take_turn(&mut contents, &options, &mut scratch, &mut woken);
            // Without a token, any is the right one.
            let unsure = !token && said.first() == Some(&AUTH_OPCODE);
            if !said.starts_with(&greeting) && !unsure {
                assert_eq!(contents.stored_bytes(), 0, "a stranger stored something");
                let waits = peer.deadline().is_some();
                assert!(waits || turn.is_err(), "a stranger without a deadline");
            }
            assert!(contents.stored_bytes() <= options.max_stored_bytes);
            match turn {
                Ok(_) => {}
                Err(Closing::NoToken) if !token => panic!("there is no token to refuse for"),
                Err(_) => return,
            }
        }
        // What it answers is read, so that it goes on.
        near.set_nonblocking(true).expect("a socket of our own");
        while matches!(near.read(&mut scratch), Ok(1..)) {}
        near.set_nonblocking(false).expect("a socket of our own");
    }
}

/// A real server over loopback: some connections with arbitrary bytes, then an honest client.
///
/// # Panics
/// Where a stranger is told anything but that it is refused, its connection stays open after its
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
        let mut said = if introduced { greeting(token) } else { vec![] };
        said.extend(script.bytes());
        // Closed already for what came first: that is as good.
        let _ = stream.write_all(&said);
        streams.push((stream, said));
    }
    let authentication = &greeting(true)[..greeting(true).len() - 5];
    for (mut stream, said) in streams {
        let client = said.starts_with(&greeting(token));
        if client || (!token && said.first() == Some(&AUTH_OPCODE)) {
            // It may rest in silence between two requests for as long as it likes.
            continue;
        }
        let answer = read_to_the_end(&mut stream);
        let expected = match said.starts_with(authentication) {
            true => AUTH_ACCEPTED,
            false => AUTH_REFUSED,
        };
        assert!(
            answer.is_empty() || (token && answer == [expected]),
            "a stranger was told {answer:?}"
        );
    }
    let address = server.local_addr().to_string();
    let store = TcpStore::connect(&address, options).expect("the honest are served");
    // The bytes of those who knew the token may have filled the store.
    match store.compare_set("honest", b"", b"yes") {
        Ok(answer) => assert_eq!(answer, b"yes"),
        Err(error) => assert!(matches!(error, StoreError::Unreachable { .. }), "{error}"),
    }
}

/// A client asks a server that answers arbitrary bytes.
///
/// # Panics
/// Where the client does not come back soon after its deadline, or returns more than it may.
pub fn store_client(bytes: &[u8]) {
    const LIMIT: Duration = Duration::from_millis(30);
    let mut script = Script::new(bytes);
    let operation = script.below(10);
    let honest_ping = script.chance();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port of loopback");
    let address = listener.local_addr().expect("it is bound").to_string();
    let answers = script.rest().to_vec();
    listener.set_nonblocking(true).expect("a socket of our own");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let over = &over;
        let server = scope.spawn(move || serve(&listener, over, honest_ping, &answers));
        let options = StoreOptions {
            timeout: LIMIT,
            ..StoreOptions::default()
        };
        let started = Instant::now();
        if let Ok(store) = TcpStore::connect(&address, options) {
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
            .multi_get(&["k", "l"])
            .map(|values| values.iter().map(Vec::len).sum()),
        5 => store
            .queue_pop("k")
            .map(|item| item.map_or(0, |it| it.len())),
        6 => store.queue_pop_within("k", limit).map(|item| item.len()),
        7 => store.queue_len("k").map(|_| 0),
        8 => store.wait_within(&["k"], limit).map(|()| 0),
        _ => store.num_keys().map(|_| 0),
    };
    if let Ok(bytes) = found {
        assert!(bytes <= 8 * MAX_VALUE_BYTES, "{bytes} bytes were returned");
    }
}

/// Answers each connection: its ping where `honest_ping`, then `answers`, then nothing more until the
/// client has gone; until it is `over`.
fn serve(listener: &TcpListener, over: &AtomicBool, honest_ping: bool, answers: &[u8]) {
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
        let mut hello = [0; 10];
        if stream.read_exact(&mut hello).is_err() {
            continue;
        }
        let ping = if honest_ping { &hello[6..] } else { &[] };
        if stream.write_all(ping).is_err() || stream.write_all(answers).is_err() {
            continue;
        }
        let mut asked = [0; 1024];
        while matches!(stream.read(&mut asked), Ok(1..)) {}
    }
}
