//! A peer that sends any frames.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use everburn_auth::Key;

use super::TcpMesh;
use super::handshake::Connected;
use crate::hostile::{GENEROUS, Script, connection};
use crate::transport::frame::{Frame, HEADER_BYTES, WireHeader};
use crate::transport::inbox::Inbox;

/// The longest message that a rank of a target takes.
pub(crate) const MAX_MESSAGE_BYTES: u64 = 1 << 20;

/// A peer that is in the mesh sends any frames.
///
/// # Panics
/// Where a header is read as what it is not, or the reader continues after the end of the stream.
pub fn mesh_frames(bytes: &[u8]) {
    for start in 0..bytes.len().min(4) {
        if let Some(header) = bytes[start..].first_chunk::<HEADER_BYTES>()
            && let Ok(read) = WireHeader::decode(header, MAX_MESSAGE_BYTES)
        {
            assert!(read.payload_bytes <= MAX_MESSAGE_BYTES);
            let again = WireHeader::decode(&read.encode(), MAX_MESSAGE_BYTES);
            assert_eq!(again, Ok(read));
        }
    }
    let (mesh, mut near) = mesh_of_two(0);
    // It may be cut off before it has said all.
    let _ = near.write_all(&frames(&mut Script::new(bytes)));
    let _ = near.shutdown(Shutdown::Write);
    let deadline = Instant::now() + GENEROUS;
    while mesh.inbox.gone(1).is_none() {
        assert!(Instant::now() < deadline, "the reader has not ended");
        std::thread::yield_now();
    }
}

/// Frames as the script has them: most with a good beginning, some with the payload they announce.
pub(crate) fn frames(script: &mut Script<'_>) -> Vec<u8> {
    let mut frames = Vec::new();
    while !script.is_over() && frames.len() < 2 * MAX_MESSAGE_BYTES as usize {
        let choice = script.below(16);
        if choice == 0 {
            frames.extend(script.bytes());
            continue;
        }
        let payload = script.bytes();
        let announced = if choice == 1 {
            script.number()
        } else {
            payload.len() as u64
        };
        let dtype = if choice < 4 { script.byte() } else { 6 };
        frames.extend(b"EVF1");
        frames.extend([script.byte() % 8, dtype, script.byte() % 8, 0]);
        // The group of all ranks, mostly; its first collectives.
        let group = if choice == 2 { script.number() } else { 1 };
        for number in [group, u64::from(script.byte() % 4), 0, announced] {
            frames.extend(number.to_le_bytes());
        }
        let mut signature = [0; 24];
        signature[0] = script.byte() % 16;
        for code in &mut signature[1..4] {
            *code = [u8::MAX, 0, 1, 6, 7][script.below(5)];
        }
        signature[4..8].copy_from_slice(&[u8::MAX; 4]);
        signature[8..16].copy_from_slice(&script.number().to_le_bytes());
        frames.extend(signature);
        frames.extend(payload);
    }
    frames
}

/// The secret of the mesh of two.
pub(crate) fn mesh_key() -> Key {
    Key::from_secret(&[7; 32], "hostile")
}

/// The mesh of rank `rank` of two, and the other's end of its only connection.
pub(crate) fn mesh_of_two(rank: usize) -> (TcpMesh, TcpStream) {
    let (mesh, mut peers) = mesh_with_sockets(rank, 2, MAX_MESSAGE_BYTES, GENEROUS);
    (mesh, peers.remove(0))
}

/// The mesh of rank `rank` of `world_size`, and the other ranks' ends of its connections. `limit` is for one
/// message and for what waits here; a peer may read nothing for `write_timeout`.
pub(crate) fn mesh_with_sockets(
    rank: usize,
    world_size: usize,
    limit: u64,
    write_timeout: Duration,
) -> (TcpMesh, Vec<TcpStream>) {
    let mut peers = Vec::new();
    let mut connect = |peer| {
        (peer != rank).then(|| {
            let (near, far) = connection().expect("loopback");
            peers.push(near);
            far
        })
    };
    let streams = (0..world_size).map(&mut connect).collect();
    let key = mesh_key();
    let inbox = Inbox::limited(limit, limit);
    let mesh = TcpMesh::over(
        rank,
        Connected { streams, key },
        &inbox,
        limit,
        write_timeout,
    );
    (mesh.expect("one thread"), peers)
}

pub(crate) fn header_of(frame: &Frame) -> [u8; HEADER_BYTES] {
    WireHeader::of(frame).encode()
}

/// The next frame's kind byte, phase and payload, as far as the other side sends one in time.
pub(crate) fn read_frame(stream: &mut TcpStream) -> Option<(u8, u8, Vec<u8>)> {
    let timeout = Some(Duration::from_millis(50));
    stream.set_read_timeout(timeout).ok()?;
    let mut header = [0; HEADER_BYTES];
    stream.read_exact(&mut header).ok()?;
    let read = WireHeader::decode(&header, u64::MAX).expect("our side sends good frames");
    let length = usize::try_from(read.payload_bytes).expect("a length from us");
    let mut payload = vec![0; length];
    stream.read_exact(&mut payload).ok()?;
    Some((header[4], header[6], payload))
}
