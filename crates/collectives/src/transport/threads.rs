//! Ranks as threads of one process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use everburn_auth::Key;

use super::frame::{Frame, FrameKind, Header};
use super::inbox::Inbox;
use super::payload::Payload;
use super::{CUT_HERE, Transport};

/// What the others see when a rank closes without a goodbye, here and over TCP.
pub(crate) const CLOSED_WITHOUT_GOODBYE: &str =
    "its connection broke off, as it does when a process is killed or crashes";

/// A transport between threads: a frame is put into the receiver's inbox by the sender's thread,
/// and its elements are shared, not copied.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::transport::{ThreadMesh, Transport};
///
/// let ranks = ThreadMesh::new(3);
/// assert_eq!(ranks[2].rank(), 2);
/// ```
#[derive(Debug)]
pub struct ThreadMesh {
    rank: usize,
    inboxes: Arc<[Arc<Inbox>]>,
    key: Key,
    severed: AtomicBool,
}

impl ThreadMesh {
    /// The transports of all ranks of a job, in rank order.
    ///
    /// # Panics
    /// Where the operating system gives no random bytes for the key of further connections.
    #[must_use]
    pub fn new(world_size: usize) -> Vec<Self> {
        let key = Key::random().expect("the operating system gives random bytes");
        let inboxes: Arc<[_]> = (0..world_size).map(|_| Inbox::new()).collect();
        (0..world_size)
            .map(|rank| Self {
                rank,
                inboxes: inboxes.clone(),
                key: key.clone(),
                severed: AtomicBool::new(false),
            })
            .collect()
    }

    /// The ranks but this one.
    fn peers(&self) -> impl Iterator<Item = usize> {
        let rank = self.rank;
        (0..self.inboxes.len()).filter(move |peer| *peer != rank)
    }
}

impl Transport for ThreadMesh {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.inboxes.len()
    }

    fn key(&self) -> Key {
        self.key.clone()
    }

    fn inbox(&self) -> &Arc<Inbox> {
        &self.inboxes[self.rank]
    }

    fn send(&self, to: usize, mut frame: Frame) {
        if let Some(cause) = self.inbox().gone(to) {
            frame.report(Err(cause));
            return;
        }
        let Some(inbox) = self.inboxes.get(to) else {
            frame.report(Err(format!("there is no rank {to}")));
            return;
        };
        let header = frame.header;
        let payload = std::mem::replace(&mut frame.payload, Payload::empty());
        match inbox.deliver(self.rank, &header, payload) {
            Ok(()) => frame.report(Ok(())),
            Err(reason) => {
                inbox.lost(self.rank, &format!("it sent {reason}"));
                frame.report(Err(reason));
            }
        }
    }

    fn flush(&self, _deadline: Instant) -> bool {
        true
    }

    fn sever(&self) {
        self.severed.store(true, Ordering::Release);
        // A killed process sends no abort about the loss of others.
        for peer in self.peers() {
            self.inboxes[peer].lost(self.rank, CLOSED_WITHOUT_GOODBYE);
        }
        for peer in self.peers() {
            self.inbox()
                .lost(peer, "this rank has severed its connections");
        }
    }

    fn cut(&self, peer: usize) {
        if let Some(inbox) = self.inboxes.get(peer).filter(|_| peer != self.rank) {
            inbox.lost(self.rank, CLOSED_WITHOUT_GOODBYE);
            self.inbox().lost(peer, CUT_HERE);
        }
    }
}

impl Drop for ThreadMesh {
    fn drop(&mut self) {
        if self.severed.load(Ordering::Acquire) {
            return;
        }
        let goodbye = Header {
            group: 0,
            step: 0,
            kind: FrameKind::Goodbye,
        };
        for peer in self.peers() {
            self.send(peer, Frame::new(goodbye, Payload::empty()));
        }
    }
}
