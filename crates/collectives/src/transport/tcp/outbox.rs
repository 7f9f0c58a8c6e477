//! What one end of a link has still to write, and in which order.
//!
//! # What may overtake
//! An abort is written before all that is queued: it gives its group up on all ranks, so whatever of that
//! group comes later is not needed any more, and frames of other groups are independent of it. So are
//! [`FrameKind::Hold`] and [`FrameKind::Resume`], which say something of the link alone. All other
//! frames keep their order: data, since receivers count on it; [`FrameKind::Leave`], since it says that
//! nothing of its group follows; and the goodbye, which stays last. A frame that is being written is
//! finished first.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::sync::lock;
use crate::transport::frame::{Frame, FrameKind, Header};
use crate::transport::payload::Payload;

/// After how long a writer says that its peer holds it back.
pub(super) const LONG_HOLD: Duration = Duration::from_secs(10);

/// What is queued for the peer.
#[derive(Default)]
pub(super) struct Outbox {
    queue: VecDeque<Frame>,
    /// What goes before the queue.
    aborts: VecDeque<Frame>,
    /// What the peer is to be told of this rank's backlog: to hold back, or to go on.
    news: Option<bool>,
    /// Since when the peer has asked for no more data, and whether that was logged.
    pub(super) held: Option<(Instant, bool)>,
    /// A frame has been taken from the queue and is not written yet.
    pub(super) writing: bool,
    /// No more frames will be queued; set with the time until which the reader goes on.
    pub(super) closed: Option<Instant>,
    /// The connection is gone, and why.
    pub(super) broken: Option<String>,
}

impl Outbox {
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.aborts.is_empty() && self.news.is_none()
    }

    /// What is to be written next, if it may be.
    pub(super) fn pop(&mut self) -> Option<Frame> {
        if let Some(abort) = self.aborts.pop_front() {
            return Some(abort);
        }
        if let Some(hold) = self.news.take() {
            return Some(control(match hold {
                true => FrameKind::Hold,
                false => FrameKind::Resume,
            }));
        }
        let is_data = self.queue.front()?.header.kind.is_data();
        if self.held.is_some() && is_data {
            return None;
        }
        self.queue.pop_front()
    }

    /// Whether the peer has held data back for long. Once for each time.
    pub(super) fn is_held_for_long(&mut self) -> bool {
        match &mut self.held {
            Some((since, told)) if !*told && since.elapsed() >= LONG_HOLD => {
                *told = true;
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

/// What the threads of a link share.
#[derive(Default)]
pub(super) struct Shared {
    pub(super) outbox: Mutex<Outbox>,
    pub(super) changed: Condvar,
}

impl Shared {
    /// Queues `frame`; with `last`, the time until which the reader goes on, as the last one.
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

    /// Notes that the connection is gone and tells those whose frames will not be written.
    pub(super) fn break_off(&self, cause: &str) {
        let mut outbox = lock(&self.outbox);
        if outbox.broken.is_none() {
            outbox.broken = Some(cause.to_owned());
        }
        let queue = std::mem::take(&mut outbox.queue);
        let aborts = std::mem::take(&mut outbox.aborts);
        outbox.news = None;
        drop(outbox);
        self.changed.notify_all();
        for mut frame in aborts.into_iter().chain(queue) {
            frame.report(Err(cause.to_owned()));
        }
    }

    /// Tells the peer, as soon as can be, to hold its data back or to go on. The last word counts.
    pub(super) fn tell(&self, hold: bool) {
        let mut outbox = lock(&self.outbox);
        if outbox.broken.is_none() && outbox.closed.is_none() {
            outbox.news = Some(hold);
            drop(outbox);
            self.changed.notify_all();
        }
    }

    /// The peer asks this rank to hold back, or to go on.
    pub(super) fn hold(&self, hold: bool) {
        lock(&self.outbox).held = hold.then(|| (Instant::now(), false));
        self.changed.notify_all();
    }

    /// Whether the reader should end.
    pub(super) fn reader_is_done(&self) -> bool {
        let outbox = lock(&self.outbox);
        outbox.broken.is_some() || outbox.closed.is_some_and(|end| Instant::now() >= end)
    }
}
