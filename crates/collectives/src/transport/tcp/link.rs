//! The connection to one peer, shared by the event loop and the threads that send.
//!
//! No call blocks on the socket. A sender that finds the queue empty writes a frame of at most [`TURN`] bytes
//! itself, which saves a thread switch; the event loop writes everything else.

use std::io::ErrorKind;
use std::net::Shutdown;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use mio::net::TcpStream;

use super::TURN;
use super::event_loop::Control;
use super::outbox::{LONG_PAUSE, Outbox, Written, control};
use crate::sync::{lock, wait_while};
use crate::transport::frame::{Frame, FrameKind};
use crate::transport::inbox::Inbox;
use crate::transport::threads::CLOSED_WITHOUT_GOODBYE;

/// The time for which a closed link continues to read, so that the peer can finish sending.
const LINGER: Duration = Duration::from_secs(10);

/// A connection after its handshake.
pub(super) struct Link {
    pub(super) peer: usize,
    pub(super) stream: TcpStream,
    inbox: Arc<Inbox>,
    control: Arc<Control>,
    outbox: Mutex<Outbox>,
    /// All frames are written and reported, or the link is broken.
    flushed: Condvar,
}

impl Link {
    pub(super) fn new(
        peer: usize,
        stream: TcpStream,
        inbox: Arc<Inbox>,
        control: Arc<Control>,
    ) -> Self {
        Self {
            peer,
            stream,
            inbox,
            control,
            outbox: Mutex::default(),
            flushed: Condvar::new(),
        }
    }

    /// Queues `frame`, and writes it if it is small and first in the queue.
    pub(super) fn send(&self, frame: Frame) {
        self.queue(frame, None);
    }

    /// Queues a goodbye; the stream ends after it.
    pub(super) fn close(&self) {
        self.queue(control(FrameKind::Goodbye), Some(Instant::now() + LINGER));
    }

    /// Queues `frame`; with `last` as the final one, where `last` is the time until which this rank continues
    /// to read.
    fn queue(&self, mut frame: Frame, last: Option<Instant>) {
        let is_small = frame.payload.bytes().len() <= TURN;
        let mut outbox = lock(&self.outbox);
        if let Some(cause) = outbox.refusal() {
            drop(outbox);
            return frame.report(Err(cause));
        }
        outbox.closed = last;
        let is_next = outbox.is_empty();
        // Otherwise the event loop is writing already.
        let is_idle = !outbox.is_writing();
        outbox.push(frame);
        drop(outbox);
        // The event loop handles errors: it first reads what the peer sent before.
        let all_written = is_next && is_small && matches!(self.write(TURN), Ok(false));
        if is_idle && !all_written {
            self.control.wake(self.peer);
        }
    }

    /// Asks the peer to pause or to resume. The last request wins.
    pub(super) fn request_pause(&self, pause: bool) {
        let mut outbox = lock(&self.outbox);
        if outbox.refusal().is_none() {
            outbox.flow = Some(pause);
            drop(outbox);
            self.control.wake(self.peer);
        }
    }

    /// Pauses or resumes data to the peer, at its request.
    pub(super) fn set_paused(&self, pause: bool) {
        lock(&self.outbox).paused = pause.then(|| (Instant::now(), false));
    }

    /// Writes until the socket is full or about `most` bytes are written. Returns whether more can be written
    /// at once; if not, the event loop is notified when the socket has space.
    pub(super) fn write(&self, most: usize) -> Result<bool, String> {
        let mut total = 0;
        loop {
            let mut outbox = lock(&self.outbox);
            if outbox.broken.is_some() {
                return Ok(false);
            }
            match outbox.write(&mut &self.stream) {
                Ok(Written::Nothing) => {
                    self.end(&mut outbox);
                    return Ok(false);
                }
                Ok(Written::Part(bytes)) => total += bytes,
                Ok(Written::Frame(bytes, frame)) => {
                    total += bytes;
                    outbox.reporting += 1;
                    drop(outbox);
                    self.report(frame);
                }
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted => {}
                    ErrorKind::WouldBlock => return Ok(false),
                    _ => return Err(format!("{CLOSED_WITHOUT_GOODBYE} (writing: {error})")),
                },
            }
            if total >= most {
                return Ok(true);
            }
        }
    }

    /// Reports `frame` to its sender, before the link counts as flushed: `flush` implies the reports.
    fn report(&self, mut frame: Frame) {
        frame.report(Ok(()));
        let mut outbox = lock(&self.outbox);
        outbox.reporting -= 1;
        self.end(&mut outbox);
    }

    /// Ends the stream once the goodbye is written, and wakes the callers of `flush`.
    fn end(&self, outbox: &mut Outbox) {
        if !outbox.is_empty() || outbox.reporting > 0 {
            return;
        }
        if outbox.closed.is_some() && !outbox.ended {
            outbox.ended = true;
            // The event loop continues to read. An error means that the peer has closed it already.
            let _ = self.stream.shutdown(Shutdown::Write);
        }
        self.flushed.notify_all();
    }

    /// Waits until all frames are written. Returns false if `deadline` passes first.
    pub(super) fn flush(&self, deadline: Instant) -> bool {
        let waits = |outbox: &mut Outbox| {
            outbox.broken.is_none() && !(outbox.is_empty() && outbox.reporting == 0)
        };
        !wait_while(&self.flushed, lock(&self.outbox), deadline, waits).1
    }

    /// Stops sending.
    pub(super) fn silence(&self, cause: &str) {
        let mut outbox = lock(&self.outbox);
        outbox.broken.get_or_insert_with(|| cause.to_owned());
        drop(outbox);
        self.flushed.notify_all();
    }

    /// Closes the socket at once. Queued frames and calls that wait for the peer fail with `cause`.
    pub(super) fn cut(&self, cause: &str) {
        self.inbox.lost(self.peer, cause);
        self.silence(cause);
        let unwritten = lock(&self.outbox).clear();
        for mut frame in unwritten {
            frame.report(Err(cause.to_owned()));
        }
        // An error means that the socket is closed already.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// The cause for which the peer counts as lost, if it has read nothing for `write_timeout`. Logs a warning
    /// if the peer has paused this rank for long.
    pub(super) fn stall(&self, write_timeout: Duration) -> Option<String> {
        let mut outbox = lock(&self.outbox);
        if outbox.is_paused_for_long() {
            tracing::warn!(
                peer = self.peer,
                "rank {} has paused the data queued for it for {LONG_PAUSE:?}, because it has not received \
                 earlier messages: check that every send has its receive, or raise the option \
                 `max_unreceived_bytes`",
                self.peer
            );
        }
        outbox.stall(write_timeout)
    }

    pub(super) fn is_broken(&self) -> bool {
        lock(&self.outbox).broken.is_some()
    }

    /// Whether this rank has closed the link and its time to read is over.
    pub(super) fn is_over(&self) -> bool {
        let closed = lock(&self.outbox).closed;
        closed.is_some_and(|end| Instant::now() >= end)
    }

    #[cfg(test)]
    pub(super) fn is_paused(&self) -> bool {
        lock(&self.outbox).paused.is_some()
    }
}
