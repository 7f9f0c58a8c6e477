//! The send queue of a link.
//!
//! # What may overtake
//! An abort is written before all that is queued: it gives its group up on all ranks, so whatever of that
//! group comes later is not needed any more, and frames of other groups are independent of it. So are
//! [`FrameKind::Pause`] and [`FrameKind::Resume`], which say something of the link alone. All other
//! frames keep their order: data, since receivers count on it; [`FrameKind::Leave`], since it says that
//! no frame of its group follows; and the goodbye, which stays last. A frame that is being written is
//! finished first.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Write};
use std::time::{Duration, Instant};

use crate::transport::frame::{Frame, FrameKind, HEADER_BYTES, Header, WireHeader};
use crate::transport::payload::Payload;

/// The time after which a paused rank logs a warning.
pub(super) const LONG_PAUSE: Duration = Duration::from_secs(10);

/// What is queued for the peer.
#[derive(Default)]
pub(super) struct Outbox {
    queue: VecDeque<Frame>,
    /// Written before the queue.
    aborts: VecDeque<Frame>,
    /// The next flow-control frame: pause (`true`) or resume.
    pub(super) flow: Option<bool>,
    /// Since when the peer has paused this rank, and whether that was logged.
    pub(super) paused: Option<(Instant, bool)>,
    current: Option<Current>,
    /// The number of written frames that are not reported to their senders yet.
    pub(super) reporting: usize,
    /// Closed for new frames; the time until which this rank continues to read.
    pub(super) closed: Option<Instant>,
    /// The stream to the peer has ended, after the goodbye.
    pub(super) ended: bool,
    /// The cause, once the connection is broken.
    pub(super) broken: Option<String>,
}

/// The frame that is being written.
struct Current {
    frame: Frame,
    header: [u8; HEADER_BYTES],
    written: usize,
    /// When the last byte was written.
    moved: Instant,
}

impl Current {
    fn new(frame: Frame) -> Self {
        Self {
            header: WireHeader::of(&frame).encode(),
            frame,
            written: 0,
            moved: Instant::now(),
        }
    }

    fn bytes(&self) -> usize {
        HEADER_BYTES + self.frame.payload.bytes().len()
    }
}

/// The result of one write.
pub(super) enum Written {
    /// No frame may be written now.
    Nothing,
    /// The bytes of a part of a frame.
    Part(usize),
    /// The last bytes of a frame.
    Frame(usize, Frame),
}

impl Outbox {
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.aborts.is_empty() && self.flow.is_none() && !self.is_writing()
    }

    /// Whether a frame is being written.
    pub(super) const fn is_writing(&self) -> bool {
        self.current.is_some()
    }

    /// Why no frame can be queued.
    pub(super) fn refusal(&self) -> Option<String> {
        let closed = || "this rank has closed the connection".to_owned();
        let broken = self.broken.clone();
        broken.or_else(|| self.closed.map(|_| closed()))
    }

    pub(super) fn push(&mut self, frame: Frame) {
        match frame.header.kind {
            FrameKind::Abort => self.aborts.push_back(frame),
            _ => self.queue.push_back(frame),
        }
    }

    /// All frames that will not be written.
    pub(super) fn clear(&mut self) -> impl Iterator<Item = Frame> + use<> {
        self.flow = None;
        let current = self.current.take().map(|current| current.frame);
        let aborts = std::mem::take(&mut self.aborts);
        let queue = std::mem::take(&mut self.queue);
        current.into_iter().chain(aborts).chain(queue)
    }

    /// The next frame to write, if any may be written now.
    fn pop(&mut self) -> Option<Frame> {
        if let Some(abort) = self.aborts.pop_front() {
            return Some(abort);
        }
        if let Some(pause) = self.flow.take() {
            return Some(control(match pause {
                true => FrameKind::Pause,
                false => FrameKind::Resume,
            }));
        }
        let is_data = self.queue.front()?.header.kind.is_data();
        if self.paused.is_some() && is_data {
            return None;
        }
        self.queue.pop_front()
    }

    /// Writes header and elements with one system call, as much as `stream` accepts now.
    pub(super) fn write(&mut self, stream: &mut impl Write) -> io::Result<Written> {
        let mut current = match self.current.take() {
            Some(current) => current,
            None => match self.pop() {
                Some(frame) => Current::new(frame),
                None => return Ok(Written::Nothing),
            },
        };
        let header = current.header.get(current.written..).unwrap_or_default();
        let payload = current.frame.payload.bytes();
        let payload = &payload[current.written.saturating_sub(HEADER_BYTES)..];
        let result = stream.write_vectored(&[IoSlice::new(header), IoSlice::new(payload)]);
        if let Ok(bytes @ 1..) = result {
            current.written += bytes;
            if current.written == current.bytes() {
                return Ok(Written::Frame(bytes, current.frame));
            }
            current.moved = Instant::now();
        }
        self.current = Some(current);
        match result? {
            0 => Err(io::ErrorKind::WriteZero.into()),
            bytes => Ok(Written::Part(bytes)),
        }
    }

    /// The cause for which the peer counts as lost, if no byte was written for `write_timeout`.
    pub(super) fn stall(&self, write_timeout: Duration) -> Option<String> {
        let current = self.current.as_ref()?;
        let waited = current.moved.elapsed();
        (waited >= write_timeout).then(|| {
            format!(
                "it has read no data from this rank for {:.1} s ({} of a frame's {} bytes are written); check \
                 whether its process is stopped (SIGSTOP, a debugger) or swapped out, and the network to its \
                 machine",
                waited.as_secs_f64(),
                current.written,
                current.bytes()
            )
        })
    }

    /// Whether the peer has paused this rank for long; true once per pause.
    pub(super) fn is_paused_for_long(&mut self) -> bool {
        match &mut self.paused {
            Some((since, logged)) if !*logged && since.elapsed() >= LONG_PAUSE => {
                *logged = true;
                !self.queue.is_empty()
            }
            _ => false,
        }
    }
}

/// A frame between the two ends of a link.
pub(super) const fn control(kind: FrameKind) -> Frame {
    let header = Header {
        group: 0,
        step: 0,
        kind,
    };
    Frame::new(header, Payload::empty())
}
