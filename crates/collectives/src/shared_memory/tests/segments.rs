//! Real shared memory: between two mappings, between two processes, and what is refused.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::pwrite;

use everburn_tests::{AssertContains, assert_matches, holds_within};

use super::super::layout::LINE;
use super::super::{Address, Layout, Nonce, RingReceiver, RingSender, Segment, SegmentError};

use super::GENEROUS;

const NONCE: Nonce = *b"sixteen bytes ok";

const ADDRESS: &str = "EVERBURN_SHARED_MEMORY_TEST_ADDRESS";

const STREAM: usize = 5_000_000;

fn segment(ranks: usize) -> Segment {
    Segment::create(Layout::new(ranks, 1 << 16).unwrap(), NONCE).unwrap()
}

fn byte(at: usize) -> u8 {
    (at % 251) as u8
}

/// Sends the stream, sleeping on this rank's doorbell while the ring is full.
fn send_stream(segment: &Segment, mut sender: RingSender, from: usize, to: usize) {
    let bytes: Vec<u8> = (0..STREAM).map(byte).collect();
    let (mine, theirs) = (
        segment.doorbell(from).unwrap(),
        segment.doorbell(to).unwrap(),
    );
    let end = Instant::now() + GENEROUS;
    let mut sent = 0;
    while sent < STREAM {
        assert!(Instant::now() < end, "rank {from} has sent {sent} bytes");
        let ticket = mine.ticket();
        match sender
            .try_write(&bytes[sent..STREAM.min(sent + 10_001)])
            .unwrap()
        {
            0 => _ = mine.wait(ticket, GENEROUS),
            count => sent += count,
        }
        theirs.ring();
    }
}

/// Receives the stream, sleeping on this rank's doorbell while the ring is empty.
fn receive_stream(segment: &Segment, mut receiver: RingReceiver, from: usize, to: usize) {
    let (mine, theirs) = (
        segment.doorbell(to).unwrap(),
        segment.doorbell(from).unwrap(),
    );
    let end = Instant::now() + GENEROUS;
    let mut received = 0;
    while received < STREAM {
        assert!(
            Instant::now() < end,
            "rank {to} has received {received} bytes"
        );
        let ticket = mine.ticket();
        let view = receiver.peek(7777).unwrap();
        assert!((received..).zip(view).all(|(at, &found)| found == byte(at)));
        match view.len() {
            0 => _ = mine.wait(ticket, GENEROUS),
            count => {
                receiver.consume(count);
                received += count;
                theirs.ring();
            }
        }
    }
}

#[test]
fn two_mappings_of_one_process_see_each_other() {
    let made = segment(2);
    let opened = Segment::open(made.address().unwrap(), NONCE).unwrap();
    assert_eq!((opened.address(), opened.layout), (None, made.layout));
    let sender = made.sender(0, 1).unwrap();
    let twice = opened.sender(0, 1).unwrap_err();
    assert_matches!(twice, SegmentError::Taken { .. });
    let receiver = opened.receiver(0, 1).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| send_stream(&made, sender, 0, 1));
        receive_stream(&opened, receiver, 0, 1);
    });
}

/// Rings and doorbells keep the memory when the segment itself is gone.
#[test]
fn ends_outlive_their_segment() {
    let made = segment(2);
    let (mut sender, receiver) = (made.sender(1, 0).unwrap(), made.receiver(1, 0).unwrap());
    let doorbell = made.doorbell(0).unwrap();
    drop(made);
    assert_eq!(sender.try_write(b"still there"), Ok(11));
    doorbell.ring();
    assert_eq!(receiver.peek(64).unwrap(), b"still there");
}

/// A process of this test binary that plays rank 1 of the segment at `address`.
struct Peer(Child);

impl Peer {
    fn start(address: Address) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let child = command
            .args([
                "shared_memory::tests::segments::act",
                "--exact",
                "--ignored",
            ])
            .env(ADDRESS, format!("{} {}", address.pid, address.descriptor))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self(child)
    }

    fn finish(mut self) {
        // Nothing to wait on with a deadline: a process that has ended is only found by asking.
        holds_within(GENEROUS, || self.0.try_wait().unwrap().is_some());
        let _ = self.0.kill();
        let output = self.0.wait_with_output().unwrap();
        let told = [output.stdout, output.stderr].concat();
        let told = String::from_utf8_lossy(&told);
        assert!(output.status.success(), "{told}");
        assert!(told.contains("1 passed"), "{told}");
    }
}

/// What a [`Peer`] does: receives one stream, then sends one.
#[test]
#[ignore = "the process that another test starts"]
fn act() {
    let address = std::env::var(ADDRESS).expect("another test starts this one");
    let (pid, descriptor) = address.split_once(' ').unwrap();
    let address = Address {
        pid: pid.parse().unwrap(),
        descriptor: descriptor.parse().unwrap(),
    };
    let segment = Segment::open(address, NONCE).unwrap();
    receive_stream(&segment, segment.receiver(0, 1).unwrap(), 0, 1);
    send_stream(&segment, segment.sender(1, 0).unwrap(), 1, 0);
}

#[test]
fn two_processes_stream_to_each_other_and_sleep_on_doorbells() {
    let segment = segment(2);
    let peer = Peer::start(segment.address().unwrap());
    send_stream(&segment, segment.sender(0, 1).unwrap(), 0, 1);
    receive_stream(&segment, segment.receiver(1, 0).unwrap(), 1, 0);
    peer.finish();
}

#[test]
fn nothing_is_left_of_200_segments() {
    let mut inodes = Vec::new();
    for _ in 0..200 {
        let made = segment(3);
        let address = made.address().unwrap();
        let opened = Segment::open(address, NONCE).unwrap();
        inodes.push(inode(address.descriptor));
        let end = made.sender(0, 2).unwrap();
        assert!(
            mapped(&inodes[inodes.len() - 1..]),
            "mapped while it is used"
        );
        drop((made, opened));
        assert!(
            mapped(&inodes[inodes.len() - 1..]),
            "mapped while an end is"
        );
        drop(end);
    }
    assert!(!mapped(&inodes), "{}", read("/proc/self/maps"));
    for entry in fs::read_dir("/proc/self/fd").unwrap() {
        // Descriptors of other tests come and go meanwhile.
        let Ok(found) = fs::metadata(entry.unwrap().path()) else {
            continue;
        };
        assert!(!inodes.contains(&found.ino()));
    }
}

fn inode(descriptor: i32) -> u64 {
    let path = format!("/proc/self/fd/{descriptor}");
    fs::metadata(path).unwrap().ino()
}

/// Whether this process maps our memfd with one of these inodes.
fn mapped(inodes: &[u64]) -> bool {
    let maps = read("/proc/self/maps");
    let mut ours = maps.lines().filter(|line| line.contains("memfd:everburn"));
    ours.any(|line| {
        let inode = line.split_ascii_whitespace().nth(4).unwrap();
        inodes.contains(&inode.parse().unwrap())
    })
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap()
}

/// An error that says what to do, and not the end of a process: this one's, or any other's.
#[test]
fn more_memory_than_there_is_is_refused() {
    let layout = Layout::new(1023, 1 << 19).unwrap();
    let free = everburn_record::proc::available_memory().unwrap();
    assert!(
        free < layout.bytes as u64,
        "a machine with more than 512 GiB to spare"
    );
    let told = Segment::create(layout, NONCE).unwrap_err().to_string();
    let bytes = layout.bytes;
    let expected = format!("shared memory of {bytes} bytes could not be allocated: ");
    assert!(told.starts_with(&expected), "{told}");
    told.assert_contains(["use fewer ranks, smaller rings, or TCP"]);
}

#[test]
fn a_segment_keeps_its_length() {
    let made = segment(2);
    let path = format!("/proc/self/fd/{}", made.address().unwrap().descriptor);
    let file = fs::File::options().write(true).open(path).unwrap();
    for bytes in [0, 4096, 1 << 30] {
        let error = file.set_len(bytes).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
    }
}

/// What `Segment::open` says of a descriptor of this process.
fn refusal(descriptor: i32, nonce: Nonce) -> String {
    let pid = std::process::id();
    let error = Segment::open(Address { pid, descriptor }, nonce).unwrap_err();
    let told = error.to_string();
    let place = format!("descriptor {descriptor} of process {pid} is not the shared memory that");
    assert_matches!(error, SegmentError::Foreign { .. });
    assert!(told.starts_with(&place), "{told}");
    told.assert_contains(["different PID namespaces (containers)"]);
    told
}

fn memfd(start: &[u8], bytes: u64, seals: SealFlags) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create("foreign", flags).unwrap();
    assert_eq!(pwrite(&file, start, 0), Ok(start.len()));
    ftruncate(&file, bytes).unwrap();
    fcntl_add_seals(&file, seals).unwrap();
    file
}

#[test]
fn what_is_not_the_announced_segment_is_refused() {
    let said = |file: &dyn AsRawFd, what: &str| {
        let told = refusal(file.as_raw_fd(), NONCE);
        assert!(told.contains(what), "{told}");
    };
    let (pipe, _writer) = std::io::pipe().unwrap();
    said(&pipe, "it is no memory");
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(b"everburn").unwrap();
    said(&file, "it is no");

    let layout = Layout::new(2, 4096).unwrap();
    let bytes = layout.bytes as u64;
    let good = layout.header(&NONCE);
    let sealed = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    for seals in [SealFlags::empty(), SealFlags::SHRINK, SealFlags::GROW] {
        said(&memfd(&good, bytes, seals), "it is not sealed");
    }
    said(&memfd(&good[..40], 40, sealed), "it is too short");
    said(&memfd(b"", bytes, sealed), "it does not begin as one");
    let short = format!("it has {} bytes and needs {bytes}", bytes - 4096);
    said(&memfd(&good, bytes - 4096, sealed), &short);
    let with = |place: usize, value: &[u8]| {
        let mut header = good;
        header[place..place + value.len()].copy_from_slice(value);
        memfd(&header, bytes, sealed)
    };
    said(&with(8, &[3]), "it has version 3 and not 2");
    said(&with(32, &[0]), "its nonce differs");
    said(&with(12, &[0; 4]), "the ranks must be 1 to 1024");
    said(&with(12, &[0xff; 4]), "the ranks must be 1 to 1024");
    said(&with(16, &[0xff; 8]), "power of two");
    said(&with(16, &[0; 8]), "power of two");
    said(&with(12, &[3]), "its header says");
    let told = refusal(segment(2).address().unwrap().descriptor, [0; 16]);
    told.assert_contains(["it belongs to another job or group"]);
}

#[test]
fn a_segment_that_is_not_there_is_told_with_the_likely_reason() {
    // Above the largest process number that Linux gives.
    let no_process = Address {
        pid: 4_194_305,
        descriptor: 3,
    };
    let no_descriptor = Address {
        pid: std::process::id(),
        descriptor: i32::MAX,
    };
    let cases = [
        (no_process, "there is no such process here"),
        (no_descriptor, "the process has no such descriptor"),
    ];
    for (address, meaning) in cases {
        let error = Segment::open(address, NONCE).unwrap_err();
        let told = error.to_string();
        assert_matches!(error, SegmentError::Unreachable { .. });
        assert!(told.contains(meaning), "{told}");
        assert!(told.contains("different PID namespaces"), "{told}");
    }
}

#[test]
fn what_a_rank_reads_of_its_rings_is_in_one_piece_and_nobody_elses() {
    let (ranks, capacity) = (5, 4096);
    let layout = Layout::new(ranks, capacity).unwrap();
    let mut all = BTreeSet::new();
    let mut piece = |places: Vec<usize>, step: usize| {
        let begin = places[0];
        assert!(begin.is_multiple_of(step.min(LINE)));
        let expected: Vec<usize> = (0..places.len()).map(|at| begin + at * step).collect();
        assert_eq!(places, expected);
        all.extend(places);
    };
    for rank in 0..ranks {
        let others = || (0..ranks).filter(move |other| *other != rank);
        let received = || others().filter_map(move |from| layout.ring(from, rank));
        let sent = others().filter_map(|to| layout.ring(rank, to));
        piece(received().map(|ring| ring.written).collect(), LINE);
        piece(sent.map(|ring| ring.consumed).collect(), LINE);
        piece(received().map(|ring| ring.data).collect(), capacity);
    }
    assert_eq!(all.len(), 3 * ranks * (ranks - 1));
    let ends = all.last().map(|last| last + capacity);
    assert_eq!(ends, Some(layout.bytes));
}
