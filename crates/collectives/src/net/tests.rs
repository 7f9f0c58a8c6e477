//! Connections of ranks and of unauthenticated clients at an acceptor.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

use everburn_auth::Key;
use everburn_tests::{AssertContains, assert_matches};

use super::{Acceptor, DialError, Expected, Hello, Listening, Purpose, introduce};

const GENEROUS: Duration = Duration::from_secs(60);

const HELLO: Hello = Hello {
    purpose: Purpose::Mesh,
    rank: 1,
    world_size: 2,
    scope: 7,
    index: 0,
};

fn key() -> Key {
    Key::from_secret(&[3; 32], "test")
}

/// Rank 0 of two, which waits for mesh 7.
fn acceptor() -> Acceptor {
    let expected = Expected {
        purpose: Purpose::Mesh,
        rank: 0,
        world_size: 2,
        scope: 7,
        streams: 1,
    };
    let listening = Listening::bind(Ipv4Addr::LOCALHOST.into(), |_| ()).unwrap();
    listening.start(key(), expected).unwrap()
}

fn dial(acceptor: &Acceptor, key: &Key, hello: &Hello) -> Result<TcpStream, DialError> {
    let mut stream = TcpStream::connect(acceptor.address()).unwrap();
    introduce(&mut stream, key, hello, 0, Instant::now() + GENEROUS)?;
    Ok(stream)
}

/// The reason of a dial that fails.
fn refusal(acceptor: &Acceptor, key: &Key, hello: &Hello) -> String {
    match dial(acceptor, key, hello) {
        Err(DialError::Failed(reason)) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_rank_that_knows_the_secret_is_accepted() {
    let acceptor = acceptor();
    let mut near = dial(&acceptor, &key(), &HELLO).unwrap();
    assert!(acceptor.has(1, 0));
    let mut far = acceptor.take(1, 0).unwrap();
    far.set_nonblocking(false).unwrap();
    near.write_all(b"hello").unwrap();
    let mut heard = [0; 5];
    far.read_exact(&mut heard).unwrap();
    assert_eq!(&heard, b"hello");
}

#[test]
fn refused_dialers_get_a_reason_only_if_they_know_the_secret() {
    let acceptor = acceptor();
    let other_secret = Key::from_secret(&[4; 32], "test");
    let reason = refusal(&acceptor, &other_secret, &HELLO);
    reason.assert_contains(["does not have the job's secret"]);
    let elsewhere = [
        Hello { scope: 8, ..HELLO },
        Hello {
            purpose: Purpose::Channel,
            ..HELLO
        },
        Hello { rank: 0, ..HELLO },
        Hello { index: 1, ..HELLO },
    ];
    for hello in elsewhere {
        let reason = refusal(&acceptor, &key(), &hello);
        assert!(reason.contains("waits for no such"), "{hello:?}: {reason}");
    }
    assert!(acceptor.other_world().is_none());
    let larger = Hello {
        world_size: 3,
        ..HELLO
    };
    assert_matches!(
        dial(&acceptor, &key(), &larger),
        Err(DialError::WorldSize { theirs: 2 })
    );
    acceptor.wait(Instant::now() + GENEROUS, |it| it.other_world().is_some());
    assert_eq!(acceptor.other_world(), Some((1, 3)));
}

#[test]
fn a_second_process_of_a_rank_is_refused_while_the_first_is_connected() {
    let acceptor = acceptor();
    let first = dial(&acceptor, &key(), &HELLO).unwrap();
    let reason = refusal(&acceptor, &key(), &HELLO);
    reason.assert_contains(["another process that is rank 1"]);
    // Like a dialer that missed the verdict.
    drop(first);
    let deadline = Instant::now() + GENEROUS;
    let second = loop {
        match dial(&acceptor, &key(), &HELLO) {
            Ok(stream) => break stream,
            Err(error) => assert!(Instant::now() < deadline, "{error:?}"),
        }
    };
    let in_use = acceptor.take(1, 0).unwrap();
    drop(second);
    let reason = refusal(&acceptor, &key(), &HELLO);
    reason.assert_contains(["another process that is rank 1"]);
    drop(in_use);
}

#[test]
fn a_flood_of_silent_connections_does_not_block_ranks() {
    let acceptor = acceptor();
    let mut silent = Vec::new();
    for _ in 0..700 {
        silent.push(TcpStream::connect(acceptor.address()).unwrap());
    }
    let rank = dial(&acceptor, &key(), &HELLO);
    assert!(rank.is_ok(), "{rank:?}");
}
