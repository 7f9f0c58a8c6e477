//! Connections of the store server: memory in use against memory charged, acknowledgements, refused proofs.

use super::*;
use crate::hostile::connection;
use crate::store::StoreAccess;
use crate::store::tcp::wire::{AUTH_OPCODE, VALIDATION_MAGIC, opcode};
use everburn_auth::JobToken;

/// A connection of the server, and the client's end.
fn served(id: ClientId, options: &StoreOptions) -> (Peer, std::net::TcpStream) {
    let (near, far) = connection().unwrap();
    far.set_nonblocking(true).unwrap();
    (Peer::new(id, TcpStream::from_std(far), options), near)
}

/// Why the server closes a connection to which nothing more comes.
fn closing(peer: &mut Peer, options: &StoreOptions) -> Closing {
    let mut contents = Contents::new(options.max_stored_bytes);
    let mut scratch = vec![0; 64 << 10];
    loop {
        match peer.take_turn(&mut contents, options, &mut scratch, &mut Vec::new()) {
            Ok(_) => std::thread::yield_now(),
            Err(closing) => return closing,
        }
    }
}

/// PyTorch's first message.
fn validation() -> Vec<u8> {
    [&[opcode::VALIDATE][..], &VALIDATION_MAGIC.to_ne_bytes()].concat()
}

/// Connections that were validated and have sent half of a request each, of `half` bytes: what is left
/// of them, with the other ends.
fn with_half_a_request(
    count: usize,
    half: usize,
    contents: &mut Contents,
    options: &StoreOptions,
) -> Vec<(Peer, std::net::TcpStream)> {
    let mut scratch = vec![0; 64 << 10];
    let validation = validation();
    let mut peers = Vec::new();
    for id in 0..count {
        let (mut peer, mut near) = served(id as ClientId, options);
        // A `set` of a value that does not come to its end.
        let key = (id as u64).to_ne_bytes();
        let key = [&(key.len() as u64).to_ne_bytes()[..], &key].concat();
        let length = 1_u64 << 20;
        let start = [&[opcode::SET][..], &key, &length.to_ne_bytes()].concat();
        let sent = validation.len() + start.len() + half;
        near.write_all(&[&validation[..], &start, &vec![7; half]].concat())
            .unwrap();
        let mut woken = Vec::new();
        // The kernel hands loopback's bytes on before the write ends, mostly.
        let kept = loop {
            match peer.take_turn(contents, options, &mut scratch, &mut woken) {
                Ok(_) if peer.input.len() == sent - validation.len() => break true,
                Ok(_) => std::thread::yield_now(),
                Err(Closing::Refused(Refusal::Full(_))) => break false,
                Err(other) => panic!("{other}"),
            }
        };
        match kept {
            true => peers.push((peer, near)),
            false => peer.release(contents),
        }
    }
    peers
}

fn capacity(peers: &[(Peer, std::net::TcpStream)]) -> usize {
    let of = |(peer, _): &(Peer, _)| peer.input.capacity() + peer.output.capacity();
    peers.iter().map(of).sum()
}

#[test]
fn half_sent_requests_hold_what_they_are_counted_as_and_two_small_buffers() {
    const COUNT: usize = 200;
    let options = StoreOptions {
        max_stored_bytes: 1 << 20,
        ..StoreOptions::new(StoreAccess::Open)
    };
    for (half, all_stay) in [(3 << 10, true), (12 << 10, false)] {
        let mut contents = Contents::new(options.max_stored_bytes);
        let peers = with_half_a_request(COUNT, half, &mut contents, &options);
        assert_eq!(peers.len() == COUNT, all_stay, "{} stay", peers.len());
        assert!(peers.len() > COUNT / 4, "{} stay", peers.len());
        let outside = 2 * FREE_BUFFER * peers.len();
        assert!(contents.held_bytes <= options.max_stored_bytes);
        let real = capacity(&peers);
        assert!(real >= half * peers.len());
        assert!(real <= contents.held_bytes + outside, "{real} bytes");
        for (peer, _) in peers {
            peer.release(&mut contents);
        }
        assert_eq!(contents.held_bytes, 0);
    }
}

#[test]
fn an_open_store_holds_little_however_many_come() {
    let options = StoreOptions::new(StoreAccess::Open);
    let most = options.max_stored_bytes + options.max_connections * 2 * FREE_BUFFER;
    assert!(most <= 64 << 20, "{most} bytes");
}

#[cfg(target_os = "linux")]
#[test]
fn a_stream_of_writes_is_acknowledged_at_once() {
    use rustix::net::sockopt::{set_tcp_quickack, tcp_quickack};

    const PING: [u8; 5] = [opcode::PING, 1, 2, 3, 4];
    let options = StoreOptions::new(StoreAccess::Open);
    let mut contents = Contents::new(options.max_stored_bytes);
    let (mut peer, mut near) = served(0, &options);
    let mut scratch = vec![0; 64 << 10];
    let mut turn = |peer: &mut Peer, done: &dyn Fn(&Peer, &Contents) -> bool| {
        while !done(peer, &contents) {
            let turn = peer.take_turn(&mut contents, &options, &mut scratch, &mut Vec::new());
            turn.unwrap();
            std::thread::yield_now();
        }
    };
    let string = |text: &[u8]| [&(text.len() as u64).to_ne_bytes()[..], text].concat();
    let set = |key: &[u8]| [&[opcode::SET][..], &string(key), &string(b"value")].concat();
    near.write_all(&[&validation()[..], &PING].concat())
        .unwrap();
    turn(&mut peer, &|peer, _| peer.answered);
    for round in 0..2_u8 {
        // As the kernel does by itself where questions and answers alternate.
        set_tcp_quickack(&peer.stream, false).unwrap();
        peer.answered = false;
        let sets = [set(&[round, 0]), set(&[round, 1])].concat();
        near.write_all(&sets).unwrap();
        let held = usize::from(round + 1) * 2 * (2 + 5 + 128);
        turn(&mut peer, &|_, contents| contents.held_bytes == held);
        assert!(tcp_quickack(&peer.stream).unwrap());
        near.write_all(&PING).unwrap();
        turn(&mut peer, &|peer, _| peer.answered);
    }
}

#[test]
fn a_refused_proof_is_reported_as_a_token_that_does_not_match() {
    use everburn_auth::{CHALLENGE_BYTES, NONCE_BYTES, PROOF_BYTES};

    let token = "a token of the tests".parse().unwrap();
    let options = StoreOptions::new(StoreAccess::Token(token));
    let (mut peer, mut near) = served(0, &options);
    let first = [&[AUTH_OPCODE][..], &[3; NONCE_BYTES], &[7; PROOF_BYTES]].concat();
    near.write_all(&first).unwrap();
    near.shutdown(Shutdown::Write).unwrap();
    let closing = closing(&mut peer, &options);
    let text = closing.to_string();
    assert!(text.starts_with("its job token does not match"), "{text}");
    assert!(text.contains("EVERBURN_JOB_TOKEN"), "{text}");
    let mut answer = [0; CHALLENGE_BYTES + 1];
    near.read_exact(&mut answer).unwrap();
    assert_eq!(answer[CHALLENGE_BYTES], AUTH_REFUSED);
}

#[test]
fn a_client_that_was_gone_before_the_challenge_has_no_wrong_token() {
    let token = JobToken::random().unwrap();
    let options = StoreOptions::new(StoreAccess::Token(token));
    // As a server finds it that was stopped for longer than its client waited.
    for gone in [true, false] {
        let (mut peer, mut near) = served(0, &options);
        near.write_all(&[AUTH_OPCODE]).unwrap();
        near.write_all(&[7; everburn_auth::NONCE_BYTES]).unwrap();
        near.shutdown(Shutdown::Write).unwrap();
        peer.half_closed = gone;
        match closing(&mut peer, &options) {
            Closing::Left => assert!(gone),
            other => assert!(!gone && matches!(other, Closing::WrongToken), "{other}"),
        }
    }
}

#[test]
fn a_client_that_is_slow_or_leaves_is_not_counted_as_one_without_the_secret() {
    for closing in [Closing::NoClient, Closing::OpenStore, Closing::WrongToken] {
        assert!(closing.is_unproved(), "{closing}");
    }
    for closing in [Closing::Left, Closing::Evicted, Closing::Late] {
        assert!(!closing.is_unproved(), "{closing}");
    }
}
