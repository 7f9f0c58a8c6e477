//! Channels over TCP: several non-blocking connections, used round-robin.

use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};

use super::ChannelError;

/// The bytes sent on one connection before the next one is used. Small messages stay on one
/// connection, large ones keep all busy.
const STRIPE: usize = 256 << 10;

/// The bytes that [`SocketChannel::peek`] reads ahead: a few blocks of a reduction, to save system calls.
const AHEAD: usize = 512 << 10;

/// The most slices per system call.
const PIECES: usize = 8;

/// A channel over one or several TCP connections. The byte at position `p` of the stream is sent on
/// connection `p / STRIPE` modulo their number. Only [`SocketChannel::peek`] uses a buffer; other reads
/// copy straight to their destination.
#[derive(Debug)]
pub(crate) struct SocketChannel {
    streams: Vec<TcpStream>,
    sent: u64,
    received: u64,
    /// The read-ahead buffer, as words so that elements in it are aligned. Its bytes `start..end` are
    /// unread and end at position `received` of the stream.
    buffer: Vec<u64>,
    start: usize,
    end: usize,
}

impl SocketChannel {
    /// A channel over non-blocking `streams`.
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

    /// The connection of the byte at `position`, and the bytes from there to the end of the stripe.
    fn stripe_at(&self, position: u64) -> (usize, usize) {
        if self.streams.len() == 1 {
            return (0, usize::MAX);
        }
        let stripe = position / STRIPE as u64;
        let left = STRIPE - (position % STRIPE as u64) as usize;
        ((stripe % self.streams.len() as u64) as usize, left)
    }

    pub(super) fn reads_from(&self) -> &TcpStream {
        &self.streams[self.stripe_at(self.received).0]
    }

    pub(super) fn writes_to(&self) -> &TcpStream {
        &self.streams[self.stripe_at(self.sent).0]
    }

    pub(super) fn try_send(&mut self, pieces: &[&[u8]]) -> Result<usize, ChannelError> {
        let mut total = 0;
        loop {
            let (stream, mut room) = self.stripe_at(self.sent);
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

    pub(super) fn try_recv(&mut self, into: &mut [u8]) -> Result<usize, ChannelError> {
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

    pub(super) fn peek(&mut self, most: usize) -> Result<&[u8], ChannelError> {
        if self.buffer.is_empty() {
            self.buffer = vec![0; AHEAD / size_of::<u64>()];
        }
        if self.start == self.end {
            // Keeps the alignment of the position in the stream.
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
                    // Bytes received before the error are still valid.
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
        // A full buffer must be consumed before more is read ahead.
        if self.end == AHEAD && self.start < self.end {
            return AHEAD;
        }
        self.end - self.start
    }

    /// Reads once from the current connection. Returns the number of bytes and whether more may be
    /// available: a short read has emptied the connection.
    fn read(&mut self, into: &mut [u8]) -> Result<(usize, bool), ChannelError> {
        let (stream, most) = self.stripe_at(self.received);
        let most = most.min(into.len());
        loop {
            match (&self.streams[stream]).read(&mut into[..most]) {
                Ok(0) if most > 0 => {
                    return Err(ChannelError::new("its end of a connection was closed"));
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

    /// Shuts down the sending direction; bytes already sent still arrive.
    pub(super) fn finish(&self) {
        for stream in &self.streams {
            // An error means that the connection is closed already.
            let _ = stream.shutdown(Shutdown::Write);
        }
    }
}

impl Drop for SocketChannel {
    fn drop(&mut self) {
        self.finish();
        // Closing a socket with unread bytes resets the connection and drops undelivered data.
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

fn broken(doing: &str, error: &std::io::Error) -> ChannelError {
    ChannelError::new(format!("its connection broke ({doing}: {error})"))
}
