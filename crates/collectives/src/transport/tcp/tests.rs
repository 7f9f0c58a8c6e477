//! The mesh of rank 0 of two, with a peer that is a bare socket.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc;

use everburn_tests::AssertContains;

use super::hostile::mesh_with_sockets;
use super::outbox::control;
use super::*;
use crate::hostile::GENEROUS;
use crate::transport::frame::{FrameKind, HEADER_BYTES, Header, WireHeader};
use crate::transport::inbox::encode_abort;
use crate::transport::payload::Payload;
use crate::transport::{Failure, Mailbox};

const GROUP: u64 = 1;
const MESSAGE: usize = 64 << 10;

/// More than the sockets hold.
const LARGE: usize = 64 << 20;

/// The mesh, and the peer's end of its connection; as much may wait as `limit` says.
fn mesh(limit: u64, write_timeout: Duration) -> (TcpMesh, TcpStream) {
    let (mesh, mut peers) = mesh_with_sockets(0, 2, limit, write_timeout);
    let peer = peers.remove(0);
    peer.set_read_timeout(Some(GENEROUS)).unwrap();
    peer.set_write_timeout(Some(GENEROUS)).unwrap();
    (mesh, peer)
}

fn frame(kind: FrameKind, payload: Payload) -> Frame {
    let header = Header {
        group: GROUP,
        step: 0,
        kind,
    };
    Frame::new(header, payload)
}

fn message(tag: u64, bytes: usize) -> Frame {
    frame(
        FrameKind::Message { tag },
        Payload::from_vec(vec![0u8; bytes]),
    )
}

fn abort() -> Frame {
    let failure = Failure {
        by: 1,
        reason: "enough".to_owned(),
        ..Failure::default()
    };
    frame(FrameKind::Abort, encode_abort(&failure))
}

fn write(stream: &mut TcpStream, frame: &Frame) -> io::Result<()> {
    stream.write_all(&WireHeader::of(frame).encode())?;
    stream.write_all(frame.payload.bytes())
}

fn read_header(stream: &mut TcpStream) -> WireHeader {
    let mut header = [0; HEADER_BYTES];
    stream.read_exact(&mut header).unwrap();
    WireHeader::decode(&header, u64::MAX).unwrap()
}

fn read_payload(stream: &mut TcpStream, header: &WireHeader) {
    let mut payload = vec![0; usize::try_from(header.payload_bytes).unwrap()];
    stream.read_exact(&mut payload).unwrap();
}

fn read(stream: &mut TcpStream) -> FrameKind {
    let header = read_header(stream);
    read_payload(stream, &header);
    header.header.kind
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + GENEROUS;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        thread::yield_now();
    }
}

fn mailbox(inbox: &Inbox) -> Arc<Mailbox> {
    inbox.mailbox(GROUP).unwrap()
}

/// Receives a message; whether it has come.
fn receive(inbox: &Inbox, from: usize, tag: u64) -> mpsc::Receiver<bool> {
    let (receiver, received) = mpsc::channel();
    let take = move |result: Result<Payload, _>| receiver.send(result.is_ok()).unwrap();
    mailbox(inbox).take_message(from, tag, Box::new(take));
    received
}

#[test]
fn an_abort_goes_before_queued_data_and_the_goodbye_comes_last() {
    let (mesh, mut peer) = mesh(u64::MAX, GENEROUS);
    mesh.send(1, message(1, LARGE));
    // It is being written, and does not end before the peer reads it.
    let first = read_header(&mut peer);
    mesh.send(1, message(2, 8));
    mesh.send(1, frame(FrameKind::Leave, Payload::empty()));
    mesh.send(1, abort());
    mesh.links[1].as_ref().unwrap().close();
    read_payload(&mut peer, &first);
    let kinds: Vec<_> = (0..4).map(|_| read(&mut peer)).collect();
    let expected = [
        FrameKind::Abort,
        FrameKind::Message { tag: 2 },
        FrameKind::Leave,
        FrameKind::Goodbye,
    ];
    assert_eq!(kinds, expected);
    assert_eq!(peer.read(&mut [0]).unwrap(), 0, "nothing follows");
}

#[test]
fn a_peer_that_reads_nothing_is_lost_and_the_error_says_so() {
    let (mesh, peer) = mesh(u64::MAX, Duration::from_millis(50));
    let (said, told) = mpsc::channel();
    let mut frame = message(1, LARGE);
    frame.written = Some(Box::new(move |result| said.send(result).unwrap()));
    mesh.send(1, frame);
    let cause = told.recv_timeout(GENEROUS).unwrap().unwrap_err();
    cause.assert_contains(["has read no data from this rank for "]);
    assert!(cause.contains("SIGSTOP"), "{cause}");
    assert_eq!(mesh.inbox.gone(1), Some(cause));
    drop(peer);
}

#[test]
fn a_peer_is_paused_and_its_aborts_still_pass() {
    let (mesh, mut peer) = mesh(16 * MESSAGE as u64, GENEROUS);
    let sent = 9;
    for _ in 0..sent {
        write(&mut peer, &message(7, MESSAGE)).unwrap();
    }
    assert_eq!(read(&mut peer), FrameKind::Pause);
    write(&mut peer, &abort()).unwrap();
    let mailbox = mailbox(&mesh.inbox);
    until("the abort has not arrived", || mailbox.failure().is_some());
    for _ in 0..sent {
        let received = receive(&mesh.inbox, 1, 7);
        assert!(received.recv_timeout(GENEROUS).unwrap());
    }
    assert_eq!(read(&mut peer), FrameKind::Resume);
}

#[test]
fn a_waiting_call_resumes_a_paused_peer() {
    let (mesh, mut peer) = mesh(16 * MESSAGE as u64, GENEROUS);
    for _ in 0..9 {
        write(&mut peer, &message(7, MESSAGE)).unwrap();
    }
    assert_eq!(read(&mut peer), FrameKind::Pause);
    // It comes after messages without a receive call.
    let received = receive(&mesh.inbox, 1, 8);
    assert_eq!(read(&mut peer), FrameKind::Resume);
    write(&mut peer, &message(8, MESSAGE)).unwrap();
    assert!(received.recv_timeout(GENEROUS).unwrap());
    assert_eq!(read(&mut peer), FrameKind::Pause);
}

#[test]
fn a_paused_rank_sends_aborts_and_no_data() {
    let (mesh, mut peer) = mesh(u64::MAX, GENEROUS);
    let is_paused = || mesh.links[1].as_ref().unwrap().is_paused();
    write(&mut peer, &control(FrameKind::Pause)).unwrap();
    until("it is not paused", is_paused);
    mesh.send(1, message(1, 8));
    mesh.send(1, abort());
    assert_eq!(read(&mut peer), FrameKind::Abort);
    assert!(!mesh.flush(Instant::now()));
    write(&mut peer, &control(FrameKind::Resume)).unwrap();
    assert_eq!(read(&mut peer), FrameKind::Message { tag: 1 });

    // After a goodbye the peer accepts the rest.
    write(&mut peer, &control(FrameKind::Pause)).unwrap();
    until("it is not paused", is_paused);
    mesh.send(1, message(2, 8));
    write(&mut peer, &control(FrameKind::Goodbye)).unwrap();
    assert_eq!(read(&mut peer), FrameKind::Message { tag: 2 });
}

#[test]
fn a_peer_that_ignores_a_pause_is_disconnected_and_named_with_its_bytes() {
    let (mesh, mut peer) = mesh(MESSAGE as u64, GENEROUS);
    for _ in 0..3 {
        write(&mut peer, &message(7, MESSAGE)).unwrap();
    }
    until("it was not disconnected", || mesh.inbox.gone(1).is_some());
    let cause = mesh.inbox.gone(1).unwrap();
    cause.assert_contains(["a message of 65536 bytes", "`max_unreceived_bytes`"]);
}

#[test]
fn a_peer_that_never_reads_delays_no_other() {
    let (mesh, mut peers) = mesh_with_sockets(0, 3, u64::MAX, GENEROUS);
    let (mut peer, silent) = (peers.remove(1), peers.remove(0));
    peer.set_read_timeout(Some(GENEROUS)).unwrap();
    mesh.send(1, message(1, LARGE));
    mesh.send(1, message(2, 8));
    for tag in 0..50 {
        // Of both kinds: written by the sender, and by the event loop.
        mesh.send(
            2,
            message(tag, if tag % 2 == 0 { MESSAGE } else { 2 * TURN }),
        );
        assert_eq!(read(&mut peer), FrameKind::Message { tag });
    }
    let received = receive(&mesh.inbox, 2, 7);
    write(&mut peer, &message(7, MESSAGE)).unwrap();
    assert!(received.recv_timeout(GENEROUS).unwrap());
    assert!(!mesh.flush(Instant::now()), "rank 1 has read all");
    mesh.sever();
    drop(silent);
}

#[test]
fn a_peer_that_sends_without_end_keeps_no_other_from_its_messages() {
    let (mesh, mut peers) = mesh_with_sockets(0, 3, u64::MAX, GENEROUS);
    let (mut peer, mut flood) = (peers.remove(1), peers.remove(0));
    thread::scope(|scope| {
        // To a group that is destroyed: none of it waits here. Ends when the connection does.
        mesh.inbox.close(2);
        scope.spawn(move || {
            let mut message = message(1, MESSAGE);
            message.header.group = 2;
            while write(&mut flood, &message).is_ok() {}
        });
        for tag in 0..20 {
            let received = receive(&mesh.inbox, 2, tag);
            write(&mut peer, &message(tag, 8)).unwrap();
            assert!(received.recv_timeout(GENEROUS).unwrap());
        }
        mesh.sever();
    });
}

#[test]
fn a_mesh_whose_last_holder_is_a_message_says_goodbye() {
    let (mesh, mut peer) = mesh(u64::MAX, GENEROUS);
    let mesh = Arc::new(mesh);
    let mut last = message(1, LARGE);
    let owner = mesh.clone();
    last.written = Some(Box::new(move |_| drop(owner)));
    mesh.send(1, last);
    drop(mesh);
    assert_eq!(read(&mut peer), FrameKind::Message { tag: 1 });
    assert_eq!(read(&mut peer), FrameKind::Goodbye);
    assert_eq!(peer.read(&mut [0]).unwrap(), 0, "nothing follows");
}

#[test]
fn a_rank_that_severs_its_connections_tells_nobody_why() {
    let (mesh, mut peers) = mesh_with_sockets(0, 3, u64::MAX, GENEROUS);
    let mesh = Arc::new(mesh);
    let mut large = message(1, LARGE);
    let teller = Arc::downgrade(&mesh);
    // As a group does, which gives itself up.
    large.written = Some(Box::new(move |result| {
        assert!(result.is_err());
        teller.upgrade().unwrap().send(2, abort());
    }));
    mesh.send(1, large);
    mesh.sever();
    let mut rest = Vec::new();
    // An error is an end, too.
    let _ = peers[1].read_to_end(&mut rest);
    assert!(rest.is_empty());
}
