//! One end of a link, with a peer that is a bare socket.

use std::io::Read;
use std::sync::mpsc;

use super::*;
use crate::hostile::{GENEROUS, connection};
use crate::transport::frame::Header;
use crate::transport::inbox::encode_abort;
use crate::transport::mailbox::{Failure, Mailbox};

const GROUP: u64 = 1;
const MESSAGE: usize = 64 << 10;

/// More than the sockets hold.
const LARGE: usize = 64 << 20;

/// The link to peer 1 and the peer's end of it; as much may wait as `limit` says.
fn link(limit: u64, patience: Duration) -> (Link, Arc<Inbox>, TcpStream) {
    let (near, far) = connection().unwrap();
    near.set_read_timeout(Some(GENEROUS)).unwrap();
    near.set_write_timeout(Some(GENEROUS)).unwrap();
    let inbox = Inbox::limited(limit, limit);
    let link = Link::start(1, far, &inbox, limit, patience).unwrap();
    (link, inbox, near)
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
        lost: None,
        reason: "enough".to_owned(),
        first: None,
        destroyed: false,
        hang: false,
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

#[test]
fn an_abort_goes_before_queued_data_and_the_goodbye_comes_last() {
    let (link, _inbox, mut peer) = link(u64::MAX, GENEROUS);
    link.send(message(1, LARGE));
    // It is being written, and does not end before the peer reads it.
    let first = read_header(&mut peer);
    link.send(message(2, 8));
    link.send(frame(FrameKind::Leave, Payload::empty()));
    link.send(abort());
    link.close();
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
    let (link, inbox, peer) = link(u64::MAX, Duration::from_millis(50));
    let (said, told) = mpsc::channel();
    let mut frame = message(1, LARGE);
    frame.written = Some(Box::new(move |result| said.send(result).unwrap()));
    link.send(frame);
    let cause = told.recv_timeout(GENEROUS).unwrap().unwrap_err();
    assert!(
        cause.contains("has read no data from this rank for "),
        "{cause}"
    );
    assert!(cause.contains("SIGSTOP"), "{cause}");
    assert_eq!(inbox.gone(1), Some(cause));
    drop(peer);
}

#[test]
fn a_peer_is_paused_and_its_aborts_still_pass() {
    let (_link, inbox, mut peer) = link(16 * MESSAGE as u64, GENEROUS);
    let sent = 9;
    for _ in 0..sent {
        write(&mut peer, &message(7, MESSAGE)).unwrap();
    }
    assert_eq!(read(&mut peer), FrameKind::Pause);
    write(&mut peer, &abort()).unwrap();
    let mailbox = mailbox(&inbox);
    until("the abort has not come through", || {
        mailbox.failure().is_some()
    });
    let (receiver, received) = mpsc::channel();
    for _ in 0..sent {
        let receiver = receiver.clone();
        let take = move |result: Result<Payload, _>| receiver.send(result.is_ok()).unwrap();
        mailbox.take_message(1, 7, Box::new(take));
        assert!(received.recv_timeout(GENEROUS).unwrap());
    }
    assert_eq!(read(&mut peer), FrameKind::Resume);
}

#[test]
fn a_waiting_call_resumes_a_paused_peer() {
    let (_link, inbox, mut peer) = link(16 * MESSAGE as u64, GENEROUS);
    for _ in 0..9 {
        write(&mut peer, &message(7, MESSAGE)).unwrap();
    }
    assert_eq!(read(&mut peer), FrameKind::Pause);
    // It is behind what nobody asks for.
    let (receiver, received) = mpsc::channel();
    let take = move |result: Result<Payload, _>| receiver.send(result.is_ok()).unwrap();
    mailbox(&inbox).take_message(1, 8, Box::new(take));
    assert_eq!(read(&mut peer), FrameKind::Resume);
    write(&mut peer, &message(8, MESSAGE)).unwrap();
    assert!(received.recv_timeout(GENEROUS).unwrap());
    assert_eq!(read(&mut peer), FrameKind::Pause);
}

#[test]
fn a_paused_rank_sends_aborts_and_no_data() {
    let (link, _inbox, mut peer) = link(u64::MAX, GENEROUS);
    let is_paused = || lock(&link.shared.outbox).paused.is_some();
    write(&mut peer, &control(FrameKind::Pause)).unwrap();
    until("it is not paused", is_paused);
    link.send(message(1, 8));
    link.send(abort());
    assert_eq!(read(&mut peer), FrameKind::Abort);
    assert!(!link.flush(Instant::now()));
    write(&mut peer, &control(FrameKind::Resume)).unwrap();
    assert_eq!(read(&mut peer), FrameKind::Message { tag: 1 });

    // A peer that says goodbye takes the rest.
    write(&mut peer, &control(FrameKind::Pause)).unwrap();
    until("it is not paused", is_paused);
    link.send(message(2, 8));
    write(&mut peer, &control(FrameKind::Goodbye)).unwrap();
    assert_eq!(read(&mut peer), FrameKind::Message { tag: 2 });
}

#[test]
fn a_peer_that_ignores_a_pause_is_disconnected_and_named_with_its_bytes() {
    let (_link, inbox, mut peer) = link(MESSAGE as u64, GENEROUS);
    for _ in 0..3 {
        write(&mut peer, &message(7, MESSAGE)).unwrap();
    }
    until("it was not cut off", || inbox.gone(1).is_some());
    let cause = inbox.gone(1).unwrap();
    for part in ["a message of 65536 bytes", "`max_unreceived_bytes`"] {
        assert!(cause.contains(part), "{cause}");
    }
}
