//! Ranks as threads, each with an environment of its own.

use std::net::{SocketAddr, TcpListener};
use std::thread;

use socket2::{Domain, Socket, Type};

use everburn_tests::{AssertContains, lookup};

use super::*;
use crate::store::Store;

const LONG: Duration = Duration::from_secs(60);

fn token() -> JobToken {
    "a secret of these tests".parse().unwrap()
}

fn options() -> StoreOptions {
    StoreOptions::new(StoreAccess::Token(token()))
}

type Outcome = Result<Rendezvous, RendezvousError>;

fn request(rank: usize, world_size: usize) -> RendezvousRequest {
    RendezvousRequest {
        rank: Some(rank),
        world_size: Some(world_size),
        timeout: Some(LONG),
        job_token: Some(token()),
        ..RendezvousRequest::default()
    }
}

/// Lets all ranks join at once and hands each outcome to `then` in the rank's own thread.
fn join_all<R: Send>(
    init_method: &str,
    variables: &[(&str, &str)],
    members: &[(usize, usize)],
    then: impl Fn(Outcome) -> R + Sync,
) -> Vec<R> {
    let then = &then;
    thread::scope(|scope| {
        let ranks: Vec<_> = members
            .iter()
            .map(|&(rank, size)| {
                scope.spawn(move || {
                    let request = request(rank, size);
                    then(rendezvous_in(
                        init_method,
                        &request,
                        Variables::of(&lookup(variables)),
                    ))
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// What every rank does with a good rendezvous: publishes a value and reads those of all ranks.
fn exchange(joined: &Rendezvous) -> Vec<Vec<u8>> {
    let mine = format!("from/{}", joined.rank);
    joined
        .store
        .set(&mine, joined.rank.to_string().as_bytes())
        .unwrap();
    let all = (0..joined.world_size).map(|rank| joined.store.get(&format!("from/{rank}")));
    all.map(Result::unwrap).collect()
}

#[test]
fn ranks_meet_at_a_launchers_store_and_may_meet_again() {
    let loopback = "127.0.0.1:0".parse().unwrap();
    let server = TcpStoreServer::bind(loopback, options()).unwrap();
    let port = server.local_addr().port().to_string();
    let variables = [
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", port.as_str()),
        ("TORCHELASTIC_USE_AGENT_STORE", "True"),
    ];
    for _ in 0..2 {
        let heard = join_all("env://", &variables, &[(0, 3), (1, 3), (2, 3)], |joined| {
            let joined = joined.unwrap();
            assert!(joined.local_address.is_loopback());
            assert_eq!(joined.local_rank, joined.rank);
            exchange(&joined)
        });
        assert!(heard.iter().all(|all| all == &[b"0", b"1", b"2"]));
    }
    assert!(server.wait_until_unused(LONG), "all connections are closed");
}

#[test]
fn rank_0_hosts_and_waits_for_the_others_to_finish() {
    // Another process may take the port between the two calls: try again with another one then.
    for _ in 0..10 {
        let probe = TcpListener::bind("127.0.0.1:0").unwrap();
        let method = format!("tcp://{}", probe.local_addr().unwrap());
        drop(probe);
        let outcomes = join_all(&method, &[], &[(0, 2), (1, 2)], |joined| {
            let joined = joined?;
            let heard = exchange(&joined);
            Ok::<_, RendezvousError>(heard)
        });
        if matches!(
            &outcomes[0],
            Err(RendezvousError::Store {
                source: StoreError::AddressInUse { .. },
                ..
            })
        ) {
            continue;
        }
        for heard in outcomes {
            assert_eq!(heard.unwrap(), [b"0", b"1"]);
        }
        return;
    }
    panic!("no free port in 10 attempts");
}

#[test]
fn ranks_meet_in_a_file_which_goes_with_the_last() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("meeting");
    let method = format!("file://{}", path.display());
    let heard = join_all(&method, &[], &[(0, 2), (1, 2)], |joined| {
        exchange(&joined.unwrap())
    });
    assert!(heard.iter().all(|all| all == &[b"0", b"1"]));
    assert!(!path.exists());
}

#[test]
fn a_store_that_does_not_come_is_named_with_what_to_check() {
    // Nobody else has the port, and nobody listens.
    let silent = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let loopback: SocketAddr = "127.0.0.1:0".parse().unwrap();
    silent.bind(&loopback.into()).unwrap();
    let address = silent.local_addr().unwrap().as_socket().unwrap();
    let request = RendezvousRequest {
        timeout: Some(Duration::from_millis(50)),
        ..request(1, 2)
    };
    let error = rendezvous_in(
        &format!("tcp://{address}"),
        &request,
        Variables::of(&|_| None),
    )
    .unwrap_err();
    let message = error.to_string();
    message.assert_contains(["rank 1", &address.to_string(), "tried", "check that rank 0"]);
}

#[test]
fn an_elastic_rank_reaches_the_launchers_store_and_waits_for_nobody() {
    let loopback = "127.0.0.1:0".parse().unwrap();
    let server = TcpStoreServer::bind(loopback, options()).unwrap();
    let port = server.local_addr().port().to_string();
    let mut variables = vec![
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", port.as_str()),
        ("TORCHELASTIC_USE_AGENT_STORE", "True"),
        ("TORCHELASTIC_RESTART_COUNT", "3"),
    ];
    let reach = |variables: &[(&str, &str)]| {
        reach_launchers_store_in("env://", &request(1, 3), Variables::of(&lookup(variables)))
    };
    let reached = reach(&variables).unwrap().expect("the launcher hosts it");
    assert!(reached.local_address.is_loopback());
    assert!(reached.key.is_some());
    reached.store.set("here", b"1").unwrap();
    let address = server.local_addr().to_string();
    let launcher = TcpStore::connect(&address, options()).unwrap();
    assert_eq!(launcher.get("here").unwrap(), b"1", "not below a prefix");
    variables.remove(2);
    assert!(reach(&variables).unwrap().is_none(), "rank 0 would host it");
}
