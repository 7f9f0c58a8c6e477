//! Bytes that follow no protocol, in any form and at any pace: whoever sends them is dropped by a
//! deadline, costs little memory, and harms nobody else.

use std::io::{ErrorKind, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use everburn_collectives::store::{Store, StoreOptions, TcpStoreServer};
use everburn_tests::assert_matches;
use proptest::prelude::*;

use crate::raw::{LONG, Raw, VALIDATE, assert_serves, client, list, message, number, open, serve};

/// Who owes bytes for longer is dropped.
const IMPATIENT: Duration = Duration::from_secs(1);

fn impatient() -> StoreOptions {
    StoreOptions {
        handshake_timeout: IMPATIENT,
        request_timeout: IMPATIENT,
        ..open()
    }
}

/// A request of each kind, well-formed.
fn requests() -> Vec<Vec<u8>> {
    vec![
        message(1, &[b"/k", b"value"]),                       // SET
        message(2, &[b"/k", b"value", b"new"]),               // COMPARE_SET
        message(3, &[b"/k"]),                                 // GET
        [message(4, &[b"/n"]), number(1).into()].concat(),    // ADD
        list(5, 2, &[b"/k", b"/n"]),                          // CHECK
        list(6, 1, &[b"/never"]),                             // WAIT
        message(8, &[b"/k"]),                                 // DELETE_KEY
        message(9, &[b"/k", b"more"]),                        // APPEND
        list(10, 2, &[b"/k", b"/n"]),                         // MULTI_GET
        list(11, 2, &[b"/a", b"1", b"/b", b"2"]),             // MULTI_SET
        vec![13, 1, 2, 3, 4],                                 // PING
        message(14, &[b"/q", b"item"]),                       // QUEUE_PUSH
        message(15, &[b"/q"]),                                // QUEUE_POP
        message(16, &[b"/q"]),                                // QUEUE_LEN
        [message(18, &[b"/bar"]), number(9).into()].concat(), // BARRIER
    ]
}

/// A number that a careless server would believe.
fn absurd_number() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(u64::MAX),
        Just(1_u64 << 63),
        Just(i64::MAX as u64),
        Just(u64::from(u32::MAX)),
        (8_u64 << 20) + 1..1 << 40,
        any::<u64>(),
    ]
}

/// A well-formed request with some eight bytes replaced by an absurd number, or a byte by another, or
/// cut short.
fn malformed_request() -> impl Strategy<Value = Vec<u8>> {
    let spoil = (
        0..requests().len(),
        any::<prop::sample::Index>(),
        absurd_number(),
        0..3,
    );
    spoil.prop_map(|(which, place, number, how)| {
        let mut bytes = requests().swap_remove(which);
        let place = place.index(bytes.len());
        match how {
            0 => {
                let end = bytes.len().min(place + 8);
                bytes[place..end].copy_from_slice(&number.to_ne_bytes()[..end - place]);
            }
            1 => bytes[place] = number as u8,
            _ => bytes.truncate(place),
        }
        bytes
    })
}

/// A server that is used by someone who follows the protocol while others do not.
fn in_use(options: StoreOptions) -> (TcpStoreServer, Raw) {
    let server = serve(options);
    let mut waiting = Raw::surely_validated(&server);
    waiting.send(&list(6, 1, &[b"/good news"]));
    (server, waiting)
}

/// Nobody else has suffered: who waited is woken, who comes is served.
fn unharmed(server: &TcpStoreServer, mut waiting: Raw) {
    assert_serves(server);
    client(server).set("good news", b"").unwrap();
    waiting.expect(&[0]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn spoilt_requests_in_any_pieces_do_not_hurt_the_server(
        spoilt in proptest::collection::vec(malformed_request(), 1..6),
        piece in 1_usize..40,
    ) {
        let (server, waiting) = in_use(open());
        let mut raw = Raw::validated(&server);
        for bytes in spoilt.concat().chunks(piece) {
            if raw.0.write_all(bytes).is_err() {
                break;
            }
        }
        let _ = raw.0.shutdown(Shutdown::Write);
        raw.closed();
        unharmed(&server, waiting);
    }
}

#[test]
fn every_request_cut_anywhere_is_given_up_at_the_deadline() {
    let (server, waiting) = in_use(impatient());
    let cut = requests().into_iter().flat_map(|request| {
        let lengths = 1..request.len();
        lengths.map(move |length| request[..length].to_vec())
    });
    // All at once: each waits for its own deadline and not for the others'.
    let halves: Vec<Raw> = cut
        .map(|half| {
            let mut raw = Raw::connect(&server);
            // On a busy machine it may be dropped before, and closed it is all the same.
            let _ = raw.0.write_all(&[&VALIDATE[..], &half].concat());
            raw
        })
        .collect();
    assert!(halves.len() > 200);
    for half in halves {
        assert_eq!(half.closed(), b"");
    }
    unharmed(&server, waiting);
}

/// The deadline is that of the whole request: a byte now and then does not put it off.
#[test]
fn a_slow_sender_is_given_up_however_busy_it_looks() {
    let (server, waiting) = in_use(impatient());
    for beginning in [
        // A handshake, and a request that announces 8 MiB.
        vec![],
        [
            &VALIDATE[..],
            &message(1, &[b"/k"]),
            &(8_u64 << 20).to_ne_bytes(),
        ]
        .concat(),
    ] {
        let mut raw = Raw::connect(&server);
        // On a busy machine it may be dropped before; the next bytes show it.
        let _ = raw.0.write_all(&beginning);
        let start = Instant::now();
        let dropped = loop {
            // Drip by drip, each well within the deadline. The first byte of a handshake is that of a
            // validation, of which there may be four more.
            match raw.0.write_all(&[0]) {
                Ok(()) => {}
                Err(error) => break error.kind(),
            }
            assert!(start.elapsed() < LONG, "it is listened to for ever");
            std::thread::sleep(IMPATIENT / 5);
        };
        assert_matches!(dropped, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe);
    }
    unharmed(&server, waiting);
}

/// This process holds the server, so that its memory is the server's; the peak, which never falls.
fn peak_memory_bytes() -> usize {
    everburn_record::proc::peak_memory().unwrap() as usize
}

/// Only Linux has the peak.
#[cfg(target_os = "linux")]
#[test]
fn announced_lengths_cost_no_memory() {
    let (server, waiting) = in_use(open());
    let before = peak_memory_bytes();
    // Were the announcement believed, 400 values of 8 MiB would be set aside: 3.2 GiB.
    let announced = [message(1, &[b"/k"]), (8_u64 << 20).to_ne_bytes().into()].concat();
    let many_keys = [&[6][..], &131_072_u64.to_ne_bytes()].concat();
    let holding: Vec<Raw> = (0..400)
        .map(|index| {
            let mut raw = Raw::validated(&server);
            raw.send(if index % 2 == 0 {
                &announced
            } else {
                &many_keys
            });
            raw
        })
        .collect();
    unharmed(&server, waiting);
    let grown = peak_memory_bytes() - before;
    assert!(grown < 1 << 30, "{grown} bytes for what was only announced");
    drop(holding);
}
