//! The connection to one peer, with a writer thread and a reader thread.
//!
//! One thread per direction: if a single thread wrote and read, ranks would deadlock as soon as all of them
//! send more than the socket buffers hold.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use half::{bf16, f16};

use super::outbox::{LONG_PAUSE, Shared, control};
use crate::group::{DType, Element};
use crate::sync::{lock, wait_until};
use crate::transport::frame::{Frame, FrameKind, HEADER_BYTES, WireHeader};
use crate::transport::inbox::Inbox;
use crate::transport::payload::Payload;
use crate::transport::threads::CLOSED_WITHOUT_GOODBYE;

/// The interval at which an idle reader checks whether it should end.
const READ_TICK: Duration = Duration::from_secs(1);

/// The time for which a closed link continues to read, so that the peer can finish sending.
const LINGER: Duration = Duration::from_secs(10);

/// A connection after its handshake.
pub(super) struct Link {
    peer: usize,
    stream: TcpStream,
    shared: Arc<Shared>,
    inbox: Arc<Inbox>,
}

impl Link {
    /// Starts the threads of the connection `stream` to `peer`. The peer counts as lost when a write makes
    /// no progress for `write_timeout`.
    pub(super) fn start(
        peer: usize,
        stream: TcpStream,
        inbox: &Arc<Inbox>,
        max_message_bytes: u64,
        write_timeout: Duration,
    ) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(READ_TICK))?;
        let tick = READ_TICK.min(write_timeout).max(Duration::from_millis(1));
        stream.set_write_timeout(Some(tick))?;
        let shared = Arc::new(Shared::default());
        let requests = shared.clone();
        inbox.add_peer(peer, Box::new(move |pause| requests.request_pause(pause)));
        let reader = Reader {
            peer,
            stream: stream.try_clone()?,
            shared: shared.clone(),
            inbox: inbox.clone(),
            max_message_bytes,
        };
        let writer = Writer {
            peer,
            stream: stream.try_clone()?,
            shared: shared.clone(),
            inbox: inbox.clone(),
            write_timeout,
        };
        let link = Self {
            peer,
            stream,
            shared,
            inbox: inbox.clone(),
        };
        thread::Builder::new()
            .name(format!("everburn-read-{peer}"))
            .spawn(move || reader.run())?;
        // If this fails, dropping `link` closes the socket and with it ends the reader.
        thread::Builder::new()
            .name(format!("everburn-write-{peer}"))
            .spawn(move || writer.run())?;
        Ok(link)
    }

    /// Queues `frame`.
    pub(super) fn send(&self, frame: Frame) {
        self.shared.send(frame, None);
    }

    /// Waits until all frames are written. Returns false if `deadline` passes first.
    pub(super) fn flush(&self, deadline: Instant) -> bool {
        let mut outbox = lock(&self.shared.outbox);
        loop {
            if outbox.broken.is_some() || (outbox.is_empty() && !outbox.writing) {
                return true;
            }
            let (locked, late) = wait_until(&self.shared.changed, outbox, deadline);
            outbox = locked;
            if late {
                return false;
            }
        }
    }

    /// Queues a goodbye; the writer ends after it.
    pub(super) fn close(&self) {
        let end = Instant::now() + LINGER;
        self.shared.send(control(FrameKind::Goodbye), Some(end));
    }

    /// Stops sending; queued frames fail with `cause`.
    pub(super) fn silence(&self, cause: &str) {
        self.shared.break_off(cause);
    }

    /// Closes the socket at once. Calls that wait for the peer fail with `cause`.
    pub(super) fn cut(&self, cause: &str) {
        self.inbox.lost(self.peer, cause);
        self.shared.break_off(cause);
        // An error means that the socket is closed already.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // Only a link that was never closed in order is cut here; the threads of a closed one
        // finish on their own, the reader after `LINGER` at the latest.
        if lock(&self.shared.outbox).closed.is_none() {
            self.cut("this rank has dropped the connection");
        }
    }
}

struct Writer {
    peer: usize,
    stream: TcpStream,
    shared: Arc<Shared>,
    inbox: Arc<Inbox>,
    write_timeout: Duration,
}

impl Writer {
    fn run(mut self) {
        while let Some(mut frame) = self.next() {
            // Reported before the link counts as idle, so that `flush` implies the reports.
            match self.write(&frame) {
                Ok(()) => frame.report(Ok(())),
                Err(cause) => {
                    self.inbox.lost(self.peer, &cause);
                    frame.report(Err(cause.clone()));
                    self.shared.break_off(&cause);
                    return;
                }
            }
            lock(&self.shared.outbox).writing = false;
            self.shared.changed.notify_all();
        }
        // The end of the stream follows the goodbye; the reader goes on. An error means that the
        // peer has closed it already.
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// The next frame; `None` when the link is closed and all is written, or broken.
    ///
    /// Waits without a deadline: this is where an idle writer lives, and closing or breaking the
    /// link ends it.
    fn next(&self) -> Option<Frame> {
        let mut outbox = lock(&self.shared.outbox);
        loop {
            if outbox.broken.is_some() {
                return None;
            }
            if let Some(frame) = outbox.pop() {
                outbox.writing = true;
                return Some(frame);
            }
            if outbox.closed.is_some() && outbox.is_empty() {
                return None;
            }
            if outbox.is_paused_for_long() {
                tracing::warn!(
                    peer = self.peer,
                    "rank {} has paused the data queued for it for {LONG_PAUSE:?}, because it has not received \
                     earlier messages: check that every send has its receive, or raise the option \
                     `max_unreceived_bytes`",
                    self.peer
                );
            }
            outbox = wait_until(&self.shared.changed, outbox, Instant::now() + READ_TICK).0;
        }
    }

    /// Writes header and elements with as few system calls as possible.
    ///
    /// # Errors
    /// The cause for which the peer counts as lost.
    fn write(&mut self, frame: &Frame) -> Result<(), String> {
        let header = WireHeader::of(frame).encode();
        let payload = frame.payload.bytes();
        let all = header.len() + payload.len();
        let mut written = 0;
        let mut moved = Instant::now();
        while written < all {
            let parts = [
                IoSlice::new(header.get(written..).unwrap_or_default()),
                IoSlice::new(&payload[written.saturating_sub(header.len())..]),
            ];
            let error = match self.stream.write_vectored(&parts) {
                Ok(0) => ErrorKind::WriteZero.into(),
                Ok(bytes) => {
                    written += bytes;
                    moved = Instant::now();
                    continue;
                }
                Err(error) => error,
            };
            match error.kind() {
                ErrorKind::Interrupted => {}
                ErrorKind::WouldBlock | ErrorKind::TimedOut
                    if moved.elapsed() < self.write_timeout => {}
                ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                    return Err(format!(
                        "it has read no data from this rank for {:.1} s ({written} of a frame's {all} bytes \
                         are written); check whether its process is stopped (SIGSTOP, a debugger) or \
                         swapped out, and the network to its machine",
                        moved.elapsed().as_secs_f64()
                    ));
                }
                _ => return Err(format!("{CLOSED_WITHOUT_GOODBYE} (writing: {error})")),
            }
        }
        Ok(())
    }
}

struct Reader {
    peer: usize,
    stream: TcpStream,
    shared: Arc<Shared>,
    inbox: Arc<Inbox>,
    max_message_bytes: u64,
}

/// The reason for which a reader ends.
enum End {
    /// The stream ended or this rank has closed the link.
    Closed,
    /// The stream broke.
    Broken(String),
    /// The peer sent an invalid frame.
    Invalid(String),
}

impl Reader {
    fn run(mut self) {
        let end = loop {
            if let Err(end) = self.read_frame() {
                break end;
            }
        };
        // After a goodbye the inbox keeps the goodbye as the cause.
        let cause = match end {
            End::Closed => CLOSED_WITHOUT_GOODBYE.to_owned(),
            End::Broken(error) => format!("{CLOSED_WITHOUT_GOODBYE} (reading: {error})"),
            End::Invalid(reason) => format!("it sent {reason}"),
        };
        tracing::debug!(peer = self.peer, cause, "link closed");
        self.inbox.lost(self.peer, &cause);
        self.shared.break_off(&cause);
        // An error means that the socket is closed already.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    fn read_frame(&mut self) -> Result<(), End> {
        let mut header = [0; HEADER_BYTES];
        self.read_full(&mut header)?;
        let wire = WireHeader::decode(&header, self.max_message_bytes).map_err(End::Invalid)?;
        let mut reservation = None;
        match wire.header.kind {
            kind if kind.is_data() => {
                let reserved = self.inbox.reserve(self.peer, wire.payload_bytes);
                reservation = Some(reserved.map_err(End::Invalid)?);
            }
            FrameKind::Pause => self.shared.set_paused(true),
            // After a goodbye the peer accepts all remaining data.
            FrameKind::Resume | FrameKind::Goodbye => self.shared.set_paused(false),
            _ => {}
        }
        let payload = match wire.dtype {
            DType::F32 => self.read_payload::<f32>(wire.payload_bytes)?,
            DType::F64 => self.read_payload::<f64>(wire.payload_bytes)?,
            DType::F16 => self.read_payload::<f16>(wire.payload_bytes)?,
            DType::Bf16 => self.read_payload::<bf16>(wire.payload_bytes)?,
            DType::I32 => self.read_payload::<i32>(wire.payload_bytes)?,
            DType::I64 => self.read_payload::<i64>(wire.payload_bytes)?,
            DType::U8 => self.read_payload::<u8>(wire.payload_bytes)?,
        };
        let delivered = self.inbox.deliver(self.peer, &wire.header, payload);
        drop(reservation);
        delivered.map_err(End::Invalid)
    }

    /// Reads into the receiver's buffer. Zeroed pages are backed by memory only when they are written, so a
    /// false length costs nothing.
    fn read_payload<T: Element>(&mut self, bytes: u64) -> Result<Payload, End> {
        if bytes == 0 {
            return Ok(Payload::empty());
        }
        let too_large = || {
            End::Invalid(format!(
                "a frame of {bytes} bytes, more than there is memory"
            ))
        };
        let length = usize::try_from(bytes).map_err(|_| too_large())? / size_of::<T>();
        let mut values: Vec<T> =
            bytemuck::allocation::try_zeroed_vec(length).map_err(|()| too_large())?;
        self.read_full(bytemuck::cast_slice_mut(&mut values))?;
        Ok(Payload::from_vec(values))
    }

    fn read_full(&mut self, mut buffer: &mut [u8]) -> Result<(), End> {
        while !buffer.is_empty() {
            match self.stream.read(buffer) {
                Ok(0) => return Err(End::Closed),
                Ok(bytes) => buffer = &mut buffer[bytes..],
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted => {}
                    ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                        if self.shared.reader_is_done() {
                            return Err(End::Closed);
                        }
                    }
                    _ => return Err(End::Broken(error.to_string())),
                },
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
