//! Strangers at the mesh's listener, and a peer that goes mad.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::thread;

use everburn_collectives::group::{CollectiveError, GroupOptions, ProcessGroup, ReduceOp};
use everburn_collectives::store::Store;

use crate::harness::{GENEROUS, error, options, rendezvous};
use crate::memory_store::MemoryStore;

const ADDRESS_OF_RANK_0: &str = "everburn/mesh/1/address/0";
const SESSION_KEY: &str = "everburn/mesh/1/session_key";

/// Connects to rank 0's listener as soon as there is one.
fn dial(store: &Arc<MemoryStore>) -> TcpStream {
    let address = store.get_within(ADDRESS_OF_RANK_0, GENEROUS).unwrap();
    let stream = TcpStream::connect(std::str::from_utf8(&address).unwrap()).unwrap();
    stream.set_read_timeout(Some(GENEROUS)).unwrap();
    stream
}

/// An introduction as the mesh expects it, with the given values.
fn hello(key: &[u8], rank: u32, world_size: u32) -> Vec<u8> {
    let mut bytes = b"EVERMESH".to_vec();
    for number in [1, 0, rank, world_size] {
        bytes.extend(number.to_le_bytes());
    }
    bytes.extend(key);
    bytes
}

/// Whether the other side closes the connection without a word.
fn is_turned_away(mut stream: TcpStream) -> bool {
    !matches!(stream.read(&mut [0; 64]), Ok(1..))
}

#[test]
fn strangers_are_turned_away_and_the_mesh_forms() {
    let store = MemoryStore::new();
    let join = |rank| {
        let rendezvous = rendezvous(store.clone(), rank, 2);
        thread::spawn(move || {
            let group = ProcessGroup::connect(rendezvous, options()).unwrap();
            let sum = group.all_reduce(vec![1f32], ReduceOp::Sum).wait().unwrap();
            group.destroy().unwrap();
            sum[0]
        })
    };
    let first = join(0);
    let key = store.get_within(SESSION_KEY, GENEROUS).unwrap();
    let silent: Vec<_> = (0..20).map(|_| dial(&store)).collect();
    let absurd = [
        b"GET / HTTP/1.1\r\nHost: everburn\r\nAccept: everything, at length\r\n\r\n".to_vec(),
        vec![0xff; 4096],
        hello(&[0; 32], 1, 2),
        hello(&key[..31], 1, 2)
            .into_iter()
            .chain([!key[31]])
            .collect(),
        hello(&key, u32::MAX, u32::MAX),
        hello(&key, 0, 2),
        hello(&key, 2, 2),
    ];
    for bytes in absurd {
        let mut stream = dial(&store);
        stream.write_all(&bytes).unwrap();
        assert!(is_turned_away(stream), "{bytes:?}");
    }
    let second = join(1);
    assert_eq!((first.join().unwrap(), second.join().unwrap()), (2.0, 2.0));
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

#[test]
#[allow(clippy::print_stderr, reason = "a skipped test is to be seen")]
fn a_rank_on_the_network_lets_in_who_has_read_the_store_and_nobody_else() {
    let Some(address) = outward() else {
        eprintln!("SKIPPED: this machine has loopback only");
        return;
    };
    let store = MemoryStore::new();
    let join = |rank| {
        let mut rendezvous = rendezvous(store.clone(), rank, 2);
        rendezvous.local_address = address;
        thread::spawn(move || {
            let group = ProcessGroup::connect(rendezvous, options()).unwrap();
            group.barrier().wait().unwrap();
            group.destroy().unwrap();
        })
    };
    let first = join(0);
    let mut stream = dial(&store);
    assert_eq!(stream.peer_addr().unwrap().ip(), address);
    stream.write_all(&hello(&[0; 32], 1, 2)).unwrap();
    assert!(is_turned_away(stream));
    let second = join(1);
    first.join().unwrap();
    second.join().unwrap();
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

/// The error of rank 0 when its peer, after a good introduction, sends `bytes`.
fn error_after(bytes: &[u8]) -> CollectiveError {
    let store = MemoryStore::new();
    let rendezvous = rendezvous(store.clone(), 0, 2);
    let options = GroupOptions {
        max_message_bytes: 1 << 20,
        ..options()
    };
    let rank = thread::spawn(move || {
        let group = ProcessGroup::connect(rendezvous, options).unwrap();
        error(group.barrier().wait())
    });
    let key = store.get_within(SESSION_KEY, GENEROUS).unwrap();
    let mut stream = dial(&store);
    stream.write_all(&hello(&key, 1, 2)).unwrap();
    stream.read_exact(&mut [0; 56]).unwrap();
    stream.write_all(bytes).unwrap();
    let error = rank.join().unwrap();
    drop(stream);
    error
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
        let error = error_after(&bytes);
        assert!(error.to_string().contains(expected), "{expected}: {error}");
    }
}

#[test]
fn a_peer_that_closes_inside_a_frame_is_lost() {
    for bytes in [header(1, 6, 1, 1 << 20), header(1, 6, 1, 0)[..10].to_vec()] {
        let store = MemoryStore::new();
        let rendezvous = rendezvous(store.clone(), 0, 2);
        let rank = thread::spawn(move || {
            let group = ProcessGroup::connect(rendezvous, options()).unwrap();
            error(group.recv::<u8>(1, 0).wait())
        });
        let key = store.get_within(SESSION_KEY, GENEROUS).unwrap();
        let mut stream = dial(&store);
        stream.write_all(&hello(&key, 1, 2)).unwrap();
        stream.read_exact(&mut [0; 56]).unwrap();
        stream.write_all(&bytes).unwrap();
        drop(stream);
        let error = rank.join().unwrap();
        assert!(
            matches!(error, CollectiveError::PeerLost { peer: 1, .. }),
            "{error:?}"
        );
    }
}
