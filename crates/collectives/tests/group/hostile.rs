//! Unauthenticated clients at the mesh's listener, and a faulty peer.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, TcpStream, UdpSocket};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use everburn_auth::{Dialer, JobToken, Key};
use everburn_collectives::group::{CollectiveError, GroupOptions, ProcessGroup};
use everburn_collectives::rendezvous::Rendezvous;
use everburn_collectives::store::{HashStore, Store};
use everburn_tests::assert_matches;

use crate::harness::{GENEROUS, error, options, rendezvous};

const ADDRESS_OF_RANK_0: &str = "everburn/mesh/1/address/0";
const SESSION: &str = "everburn/mesh/1/session";

/// Connects to rank 0's listener as soon as there is one.
fn dial(store: &Arc<HashStore>) -> TcpStream {
    let address = store.get_within(ADDRESS_OF_RANK_0, GENEROUS).unwrap();
    let stream = TcpStream::connect(std::str::from_utf8(&address).unwrap()).unwrap();
    stream.set_read_timeout(Some(GENEROUS)).unwrap();
    stream
}

/// What a rank says first, by the wire's description: a second implementation of it.
fn hello(rank: u32, world_size: u32, nonce: &[u8; 32]) -> Vec<u8> {
    let mut bytes = b"EVERBURN".to_vec();
    // Version, purpose, rank, world size, number of the connection, zero.
    for number in [2, 1, rank, world_size, 0, 0] {
        bytes.extend(number.to_le_bytes());
    }
    bytes.extend(1_u64.to_le_bytes());
    bytes.extend(nonce);
    bytes
}

/// The key of the mesh, from the secret that rank 0 has put into the store.
fn mesh_key(store: &Arc<HashStore>) -> Key {
    let secret = store.get_within(SESSION, GENEROUS).unwrap();
    let secret: JobToken = std::str::from_utf8(&secret).unwrap().parse().unwrap();
    secret.key("mesh")
}

/// Introduces itself as `rank` and answers the challenge; the verdict, if there is one.
fn introduce(stream: &mut TcpStream, key: &Key, rank: u32, world_size: u32) -> Option<u32> {
    let dialer = Dialer::new(key, b"").unwrap();
    let hello = hello(rank, world_size, dialer.nonce());
    stream.write_all(&hello).unwrap();
    let mut answer = [0; 72];
    stream.read_exact(&mut answer).ok()?;
    let context = [&hello[..40], &answer[..8]].concat();
    let challenge = answer[8..].try_into().unwrap();
    let proof = dialer.with_context(&context).answer(challenge);
    // Without the secret there is no proof; any bytes will do.
    stream.write_all(&proof.unwrap_or([0x77; 32])).unwrap();
    let mut verdict = [0; 4];
    stream.read_exact(&mut verdict).ok()?;
    Some(u32::from_le_bytes(verdict))
}

/// Whether the other side closes the connection without a word.
fn is_turned_away(mut stream: TcpStream) -> bool {
    !matches!(stream.read(&mut [0; 64]), Ok(1..))
}

/// A rank that connects, meets the others once and leaves.
fn join(rendezvous: Rendezvous) -> JoinHandle<()> {
    thread::spawn(move || {
        let group = ProcessGroup::connect(rendezvous, options()).unwrap();
        group.barrier().wait().unwrap();
        group.destroy().unwrap();
    })
}

#[test]
fn unauthenticated_clients_are_refused_and_the_mesh_forms() {
    let store = Arc::new(HashStore::new());
    // An address under which others reach this machine, if it has one.
    let join = |rank| {
        join(Rendezvous {
            local_address: outward().unwrap_or(Ipv4Addr::LOCALHOST.into()),
            ..rendezvous(store.clone(), rank, 2)
        })
    };
    let first = join(0);
    let key = mesh_key(&store);
    let silent: Vec<_> = (0..20).map(|_| dial(&store)).collect();
    for bytes in [
        b"GET / HTTP/1.1\r\nHost: everburn\r\nAccept: everything, at length\r\n\r\n".to_vec(),
        vec![0xff; 4096],
        hello(u32::MAX, u32::MAX, &[0; 32]),
    ] {
        let mut stream = dial(&store);
        stream.write_all(&bytes).unwrap();
        assert!(is_turned_away(stream), "{bytes:?}");
    }
    // Whoever has read the store but for the secret.
    let another = JobToken::random().unwrap().key("mesh");
    assert_eq!(introduce(&mut dial(&store), &another, 1, 2), None);
    // One of the job that waits for itself.
    assert_eq!(introduce(&mut dial(&store), &key, 0, 2), Some(3));
    let second = join(1);
    first.join().unwrap();
    second.join().unwrap();
    drop(silent);
}

/// An address of this machine under which others reach it, if it has one. Connecting a datagram
/// socket sends nothing.
fn outward() -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_loopback() && !address.is_unspecified()).then_some(address)
}

/// A frame's header: magic, kind, type, phase, zero, group, number, step, length, the rest.
fn header(kind: u8, dtype: u8, group: u64, length: u64) -> Vec<u8> {
    let mut bytes = b"EVF1".to_vec();
    bytes.extend([kind, dtype, 0, 0]);
    for number in [group, 0, 0, length] {
        bytes.extend(number.to_le_bytes());
    }
    bytes.resize(64, 0);
    bytes
}

/// The error of `call` on rank 0 when its peer, after a good introduction, sends `bytes`, and perhaps closes.
fn error_after(
    bytes: &[u8],
    closes: bool,
    call: fn(&ProcessGroup) -> Result<(), CollectiveError>,
) -> CollectiveError {
    let store = Arc::new(HashStore::new());
    let rendezvous = rendezvous(store.clone(), 0, 2);
    let options = GroupOptions {
        max_message_bytes: 1 << 20,
        ..options()
    };
    let rank = thread::spawn(move || {
        let group = ProcessGroup::connect(rendezvous, options).unwrap();
        error(call(&group))
    });
    let key = mesh_key(&store);
    let mut stream = dial(&store);
    assert_eq!(introduce(&mut stream, &key, 1, 2), Some(0));
    stream.write_all(bytes).unwrap();
    if closes {
        stream.shutdown(Shutdown::Write).unwrap();
    }
    rank.join().unwrap()
}

#[test]
fn absurd_frames_cut_their_sender_off() {
    let good = header(0, 6, 1, 0);
    let cases = [
        (vec![0; 64], "does not begin with the magic bytes"),
        (header(99, 6, 1, 0), "a frame of the unknown kind 99"),
        (header(1, 99, 1, 0), "a frame with the unknown type 99"),
        (header(1, 6, 1, u64::MAX), "more than the 1048576 allowed"),
        (header(1, 0, 1, 3), "not a whole number of f32"),
        (header(2, 6, 1, 0), "an abort without a reason"),
        ([good.clone(), good].concat(), "collective 0 does not match"),
    ];
    for (bytes, expected) in cases {
        let error = error_after(&bytes, false, |group| group.barrier().wait());
        assert!(error.to_string().contains(expected), "{expected}: {error}");
    }
}

#[test]
fn a_peer_that_closes_inside_a_frame_is_lost() {
    for bytes in [header(1, 6, 1, 1 << 20), header(1, 6, 1, 0)[..10].to_vec()] {
        let error = error_after(&bytes, true, |group| {
            group.recv::<u8>(1, 0).wait().map(drop)
        });
        assert_matches!(error, CollectiveError::PeerLost { peer: 1, .. });
    }
}

#[test]
fn with_a_token_the_store_alone_lets_nobody_in() {
    let store = Arc::new(HashStore::new());
    let token = JobToken::random().unwrap();
    let join = |rank| {
        join(Rendezvous {
            key: Some(token.key("ranks")),
            ..rendezvous(store.clone(), rank, 2)
        })
    };
    let first = join(0);
    // All that the store holds.
    let guessed = mesh_key(&store);
    assert_eq!(introduce(&mut dial(&store), &guessed, 1, 2), None);
    let second = join(1);
    first.join().unwrap();
    second.join().unwrap();
}

#[test]
fn ranks_that_have_tried_a_different_number_of_times_meet_all_the_same() {
    let store = Arc::new(HashStore::new());
    for _ in 0..3 {
        let impatient = GroupOptions {
            timeout: Some(Duration::from_millis(100)),
            ..options()
        };
        let error = ProcessGroup::connect(rendezvous(store.clone(), 1, 2), impatient).unwrap_err();
        assert_matches!(error, CollectiveError::Incomplete { .. });
    }
    // The same again once they have met and parted.
    for _ in 0..2 {
        let ranks = [0, 1].map(|rank| join(rendezvous(store.clone(), rank, 2)));
        for rank in ranks {
            rank.join().unwrap();
        }
    }
}

#[test]
fn a_rank_whose_mesh_was_made_with_its_earlier_attempt_goes_on_to_the_next() {
    let store = Arc::new(HashStore::new());
    let join = |rank| join(rendezvous(store.clone(), rank, 2));
    let session = JobToken::random().unwrap();
    store.set(SESSION, session.reveal().as_bytes()).unwrap();
    let late = join(1);
    store
        .get_within("everburn/mesh/1/address/1", GENEROUS)
        .unwrap();
    // As rank 0 does that was connected with an attempt of rank 1 that failed elsewhere.
    store.set("everburn/mesh/last", b"1").unwrap();
    store.set("everburn/mesh/1/made/0", b"1").unwrap();
    let first = join(0);
    late.join().unwrap();
    first.join().unwrap();
}
