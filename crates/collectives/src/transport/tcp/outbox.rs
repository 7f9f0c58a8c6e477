//! The send queue of a link.
//!
//! # Order
//! Aborts overtake all queued frames: an abort fails its group on all ranks, so later frames of that group
//! are not needed, and frames of other groups are independent of it. [`FrameKind::Pause`] and
//! [`FrameKind::Resume`] overtake too, since they concern the link only. All other frames keep their order:
//! data, [`FrameKind::Leave`] (no frame of its group follows) and the final goodbye. A frame that is being
//! written is finished first.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::sync::lock;
use crate::transport::frame::{Frame, FrameKind, Header};
use crate::transport::payload::Payload;

/// The time after which a paused writer logs a warning.
pub(super) const LONG_PAUSE: Duration = Duration::from_secs(10);

/// What is queued for the peer.
#[derive(Default)]
pub(super) struct Outbox {
    queue: VecDeque<Frame>,
    /// Written before the queue.
    aborts: VecDeque<Frame>,
    /// The next flow-control frame: pause (`true`) or resume.
    flow: Option<bool>,
    /// Since when the peer has paused this rank, and whether that was logged.
    pub(super) paused: Option<(Instant, bool)>,
    /// A frame is being written.
    pub(super) writing: bool,
    /// Closed for new frames; the time until which the reader continues.
    pub(super) closed: Option<Instant>,
    /// The cause, once the connection is broken.
    pub(super) broken: Option<String>,
}

impl Outbox {
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.aborts.is_empty() && self.flow.is_none()
    }

    /// The next frame to write, if any may be written now.
    pub(super) fn pop(&mut self) -> Option<Frame> {
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

/// State shared by the threads of a link.
#[derive(Default)]
pub(super) struct Shared {
    pub(super) outbox: Mutex<Outbox>,
    pub(super) changed: Condvar,
}

impl Shared {
    /// Queues `frame`; with `last` as the final one, where `last` is the time until which the reader
    /// continues.
    pub(super) fn send(&self, mut frame: Frame, last: Option<Instant>) {
        let mut outbox = lock(&self.outbox);
        let refused = match (&outbox.broken, outbox.closed) {
            (Some(cause), _) => Some(cause.clone()),
            (None, Some(_)) => Some("this rank has closed the connection".to_owned()),
            (None, None) => None,
        };
        outbox.closed = outbox.closed.or(last);
        if let Some(cause) = refused {
            drop(outbox);
            frame.report(Err(cause));
        } else {
            match frame.header.kind {
                FrameKind::Abort => outbox.aborts.push_back(frame),
                _ => outbox.queue.push_back(frame),
            }
            drop(outbox);
        }
        self.changed.notify_all();
    }

    /// Marks the connection as broken; queued frames fail with `cause`.
    pub(super) fn break_off(&self, cause: &str) {
        let mut outbox = lock(&self.outbox);
        if outbox.broken.is_none() {
            outbox.broken = Some(cause.to_owned());
        }
        let queue = std::mem::take(&mut outbox.queue);
        let aborts = std::mem::take(&mut outbox.aborts);
        outbox.flow = None;
        drop(outbox);
        self.changed.notify_all();
        for mut frame in aborts.into_iter().chain(queue) {
            frame.report(Err(cause.to_owned()));
        }
    }

    /// Asks the peer to pause or to resume. The last request wins.
    pub(super) fn request_pause(&self, pause: bool) {
        let mut outbox = lock(&self.outbox);
        if outbox.broken.is_none() && outbox.closed.is_none() {
            outbox.flow = Some(pause);
            drop(outbox);
            self.changed.notify_all();
        }
    }

    /// Pauses or resumes data to the peer, at its request.
    pub(super) fn set_paused(&self, pause: bool) {
        lock(&self.outbox).paused = pause.then(|| (Instant::now(), false));
        self.changed.notify_all();
    }

    /// Whether the reader should end.
    pub(super) fn reader_is_done(&self) -> bool {
        let outbox = lock(&self.outbox);
        outbox.broken.is_some() || outbox.closed.is_some_and(|end| Instant::now() >= end)
    }
}
