//! An unauthenticated peer of a rank, driven by arbitrary bytes.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::time::Instant;

use everburn_auth::{Acceptor, CHALLENGE_BYTES, Dialer, Key, PROOF_BYTES};

use super::hello::{ANSWER_BYTES, HELLO_BYTES, Hello, Purpose, Responder, Verdict, context};
use super::introduce;
use super::pending::{Pending, Progress};
use crate::hostile::{GENEROUS, Script, connection};

fn key() -> Key {
    Key::from_secret(&[0x5a; 32], "hostile")
}

/// A dialer with or without the secret connects to a rank.
///
/// # Panics
/// If it is accepted without the secret, or refused with it.
pub fn rank_hello(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    let own = Responder {
        rank: script.below(4),
        world_size: 1 + script.below(4),
    };
    let hello = Hello {
        purpose: [Purpose::Mesh, Purpose::Channel][script.below(2)],
        rank: script.below(6),
        world_size: 1 + script.below(6),
        scope: script.number(),
        index: script.below(4),
    };
    let knows = script.chance();
    let secret = if knows {
        key()
    } else {
        Key::from_secret(b"another", "hostile")
    };
    let dialer = Dialer::new(&secret, &[]).expect("random bytes");
    let mut said = hello.encode(dialer.nonce());
    let mut altered = hello.rank >= hello.world_size;
    if script.chance() {
        let place = script.below(HELLO_BYTES);
        let flipped = script.byte();
        said[place] ^= flipped;
        altered |= flipped != 0;
    }
    let (mut near, far) = connection().expect("loopback");
    far.set_nonblocking(true).expect("a socket");
    let mut pending = Pending::new(far, std::net::Ipv4Addr::LOCALHOST.into());
    near.write_all(&said).expect("a few bytes fit in");
    let first = settle(&mut pending, own);
    if let Progress::Refused(_) = first {
        assert!(altered, "a good hello was refused");
        return;
    }
    let mut answer = [0; ANSWER_BYTES];
    near.read_exact(&mut answer).expect("a challenge");
    let (responder, challenge) = Responder::decode(&answer);
    assert_eq!(responder, own);
    let proof = dialer
        .with_context(&context(&hello, responder))
        .answer(&challenge);
    assert_eq!(proof.is_ok(), knows && !altered);
    let (proof, right) = match proof {
        Ok(mut proof) => {
            let flipped = if script.chance() { script.byte() } else { 0 };
            proof[script.below(PROOF_BYTES)] ^= flipped;
            (proof, flipped == 0)
        }
        Err(_) => ([script.byte(); PROOF_BYTES], false),
    };
    near.write_all(&proof).expect("a few bytes fit in");
    near.write_all(script.rest()).expect("a few bytes fit in");
    near.shutdown(Shutdown::Write).expect("it is open");
    match settle(&mut pending, own) {
        Progress::Proved(known) => assert!(
            right && known == hello,
            "a dialer without the secret was accepted"
        ),
        Progress::Refused(_) => assert!(!right, "a rank was refused"),
        Progress::Waiting => panic!("all bytes are there"),
    }
}

/// Advances the handshake by one message.
fn settle(pending: &mut Pending, own: Responder) -> Progress {
    let ready = |pending: &Pending| {
        pending.stream.set_nonblocking(false).and_then(|()| {
            let peeked = pending.stream.peek(&mut [0]);
            pending.stream.set_nonblocking(true).and(peeked)
        })
    };
    // The bytes have been written on loopback; they are there, or about to be.
    ready(pending).expect("a socket");
    pending.advance(&key(), own)
}

/// An acceptor that answers a dialing rank with arbitrary bytes.
///
/// # Panics
/// If the dialer accepts it without the secret.
pub fn rank_answer(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    let own = Responder {
        rank: script.below(4),
        world_size: script.below(5),
    };
    let hello = Hello {
        purpose: Purpose::Mesh,
        rank: 1,
        world_size: 2,
        scope: 1,
        index: 0,
    };
    let (mut near, mut far) = connection().expect("loopback");
    std::thread::scope(|scope| {
        let dialer =
            scope.spawn(move || introduce(&mut near, &key(), &hello, 0, Instant::now() + GENEROUS));
        let mut said = [0; HELLO_BYTES];
        far.read_exact(&mut said).expect("a hello");
        let (_, nonce) = Hello::decode(&said).expect("a good hello");
        let mut challenge = [0; CHALLENGE_BYTES];
        challenge.fill_with(|| script.byte());
        if script.chance() {
            let secret = Key::from_secret(&[script.byte(); 31], "hostile");
            let (_, made) =
                Acceptor::new(&secret, &context(&hello, own), &nonce).expect("random bytes");
            challenge = made;
        }
        // The dialer may have closed the connection already.
        let _ = far.write_all(&own.encode(&challenge));
        let _ = far.write_all(&Verdict::Accepted.encode());
        let _ = far.write_all(script.rest());
        let _ = far.shutdown(Shutdown::Write);
        let outcome = dialer.join().expect("the dialer does not panic");
        assert!(
            outcome.is_err(),
            "an acceptor without the secret was accepted"
        );
    });
}
