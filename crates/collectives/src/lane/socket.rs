//! A lane over TCP: several connections, non-blocking, used in turn.

use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};

use super::LaneError;

/// How many bytes travel on one connection before the next takes its turn: so many that small
/// messages stay on one, and few enough that large ones keep all of them busy.
const STRIPE: usize = 256 << 10;

/// How many bytes [`SocketLane::peek`] reads ahead: a few blocks of a reduction, so that system
/// calls are few.
const AHEAD: usize = 512 << 10;

/// The most pieces of one system call.
const PIECES: usize = 8;

/// A lane over one or several TCP connections. The byte at position `p` of the stream travels on
/// connection `p / STRIPE` modulo their number. What is received goes straight to its place; only
/// [`SocketLane::peek`] has a buffer.
#[derive(Debug)]
pub(crate) struct SocketLane {
    streams: Vec<TcpStream>,
    sent: u64,
    received: u64,
    /// What has been read ahead, as words so that elements in it are aligned: the bytes
    /// `start..end`, which come before position `received` of the stream.
    buffer: Vec<u64>,
    start: usize,
    end: usize,
}

impl SocketLane {
    /// The lane over `streams`, which are non-blocking.
    pub(crate) const fn new(streams: Vec<TcpStream>) -> Self {
        Self {
            streams,
            sent: 0,
            received: 0,
            buffer: Vec::new(),
            start: 0,
            end: 0,
        }
    }

    /// The connection on which the byte at `position` travels, and how many follow it there.
    fn turn(&self, position: u64) -> (usize, usize) {
        if self.streams.len() == 1 {
            return (0, usize::MAX);
        }
        let stripe = position / STRIPE as u64;
        let left = STRIPE - (position % STRIPE as u64) as usize;
        ((stripe % self.streams.len() as u64) as usize, left)
    }

    pub(super) fn reads_from(&self) -> &TcpStream {
        &self.streams[self.turn(self.received).0]
    }

    pub(super) fn writes_to(&self) -> &TcpStream {
        &self.streams[self.turn(self.sent).0]
    }

    pub(super) fn try_send(&mut self, pieces: &[&[u8]]) -> Result<usize, LaneError> {
        let mut total = 0;
        loop {
            let (stream, mut room) = self.turn(self.sent);
            let mut slices = [IoSlice::new(&[]); PIECES];
            let mut used = 0;
            let mut skip = total;
            let mut offered = 0;
            for piece in pieces {
                let skipped = skip.min(piece.len());
                skip -= skipped;
                let piece = &piece[skipped..];
                let piece = &piece[..piece.len().min(room)];
                if piece.is_empty() || used == PIECES {
                    continue;
                }
                slices[used] = IoSlice::new(piece);
                used += 1;
                room -= piece.len();
                offered += piece.len();
            }
            if used == 0 {
                return Ok(total);
            }
            match (&self.streams[stream]).write_vectored(&slices[..used]) {
                Ok(bytes) => {
                    total += bytes;
                    self.sent += bytes as u64;
                    if bytes < offered {
                        return Ok(total);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(total),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(broken("writing", &error)),
            }
        }
    }

    pub(super) fn try_recv(&mut self, into: &mut [u8]) -> Result<usize, LaneError> {
        let buffered = into.len().min(self.end - self.start);
        if buffered > 0 {
            let bytes: &[u8] = bytemuck::cast_slice(&self.buffer);
            into[..buffered].copy_from_slice(&bytes[self.start..self.start + buffered]);
            self.start += buffered;
        }
        let mut total = buffered;
        while total < into.len() {
            let (bytes, more) = self.read(&mut into[total..])?;
            total += bytes;
            if !more {
                break;
            }
        }
        Ok(total)
    }

    pub(super) fn peek(&mut self, most: usize) -> Result<&[u8], LaneError> {
        if self.buffer.is_empty() {
            self.buffer = vec![0; AHEAD / size_of::<u64>()];
        }
        if self.start == self.end {
            // The place in the buffer has the alignment of the position in the stream.
            let aligned = (self.received % 64) as usize;
            (self.start, self.end) = (aligned, aligned);
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut result = Ok(());
        while self.end - self.start < most && self.end < AHEAD {
            let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut buffer);
            match self.read(&mut bytes[self.end..]) {
                Ok((bytes, more)) => {
                    self.end += bytes;
                    if !more {
                        break;
                    }
                }
                Err(error) => {
                    // What came before the end of the stream is still good.
                    if self.start == self.end {
                        result = Err(error);
                    }
                    break;
                }
            }
        }
        self.buffer = buffer;
        result?;
        let end = self.end.min(self.start + most);
        Ok(&bytemuck::cast_slice(&self.buffer)[self.start..end])
    }

    pub(super) fn consume(&mut self, bytes: usize) {
        self.start += bytes;
    }

    pub(super) fn buffered(&self) -> usize {
        // Nothing more can be read ahead before what is there has been taken.
        if self.end == AHEAD && self.start < self.end {
            return AHEAD;
        }
        self.end - self.start
    }

    /// Reads once from the connection whose turn it is: how much had come, and whether more may
    /// have. A read that is not filled has emptied the connection; asking again would be a system
    /// call for nothing.
    fn read(&mut self, into: &mut [u8]) -> Result<(usize, bool), LaneError> {
        let (stream, most) = self.turn(self.received);
        let most = most.min(into.len());
        loop {
            match (&self.streams[stream]).read(&mut into[..most]) {
                Ok(0) if most > 0 => {
                    return Err(LaneError::new("its end of a connection was closed"));
                }
                Ok(bytes) => {
                    self.received += bytes as u64;
                    return Ok((bytes, bytes == most));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok((0, false)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(broken("reading", &error)),
            }
        }
    }

    /// Says that nothing more will be sent; what has been sent still arrives.
    pub(super) fn finish(&self) {
        for stream in &self.streams {
            // An error means that the connection is gone already.
            let _ = stream.shutdown(Shutdown::Write);
        }
    }
}

impl Drop for SocketLane {
    fn drop(&mut self) {
        self.finish();
        // A socket that is closed over unread bytes takes back what it has not delivered yet.
        let mut rest = [0; 4096];
        for stream in &self.streams {
            for _ in 0..256 {
                match (&*stream).read(&mut rest) {
                    Ok(1..) => {}
                    Ok(0) | Err(_) => break,
                }
            }
        }
    }
}

fn broken(doing: &str, error: &std::io::Error) -> LaneError {
    LaneError::new(format!("its connection broke ({doing}: {error})"))
}
