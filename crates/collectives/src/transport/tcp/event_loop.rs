//! The event loop of a mesh: one thread reads and writes all connections of a rank.
//!
//! It never blocks on one peer, so a peer that does not read delays no other, and the number of threads does
//! not grow with the world.

use std::collections::BTreeMap;
use std::io;
use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use mio::{Events, Interest, Poll, Token, Waker};

use super::TURN;
use super::link::Link;
use super::reader::{End, Reader, Turn};
use crate::sync::lock;
use crate::transport::inbox::Inbox;
use crate::transport::threads::CLOSED_WITHOUT_GOODBYE;

/// The interval at which the loop checks for timeouts.
const TICK: Duration = Duration::from_secs(1);

/// No rank has this number.
const WAKER: Token = Token(usize::MAX);

/// The most events of one poll; further ones come with the next.
const EVENTS: usize = 256;

/// How other threads reach the event loop.
#[derive(Debug)]
pub(super) struct Control {
    waker: Waker,
    /// Peers to serve without an event of their socket.
    due: Mutex<Vec<usize>>,
}

impl Control {
    /// Makes the event loop serve `peer`.
    pub(super) fn wake(&self, peer: usize) {
        let mut due = lock(&self.due);
        due.push(peer);
        let is_first = due.len() == 1;
        drop(due);
        if is_first && let Err(error) = self.waker.wake() {
            // All peers are served at the next tick.
            tracing::error!("waking the thread of the connections: {error}");
        }
    }
}

/// The connections of one rank.
pub(super) struct EventLoop {
    poll: Poll,
    control: Arc<Control>,
    inbox: Arc<Inbox>,
    max_message_bytes: u64,
    /// A peer counts as lost when a write makes no progress for this long.
    write_timeout: Duration,
    /// By rank; open connections.
    readers: BTreeMap<usize, Reader>,
    /// Peers with more to read or write at once.
    again: Vec<usize>,
    /// Peers whose reader waits until then.
    paused: BTreeMap<usize, Instant>,
}

impl EventLoop {
    pub(super) fn new(
        inbox: &Arc<Inbox>,
        max_message_bytes: u64,
        write_timeout: Duration,
    ) -> io::Result<Self> {
        let poll = Poll::new()?;
        let control = Arc::new(Control {
            waker: Waker::new(poll.registry(), WAKER)?,
            due: Mutex::default(),
        });
        Ok(Self {
            poll,
            control,
            inbox: inbox.clone(),
            max_message_bytes,
            write_timeout,
            readers: BTreeMap::new(),
            again: Vec::new(),
            paused: BTreeMap::new(),
        })
    }

    pub(super) fn add(&mut self, peer: usize, stream: TcpStream) -> io::Result<Arc<Link>> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let mut stream = mio::net::TcpStream::from_std(stream);
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.poll
            .registry()
            .register(&mut stream, Token(peer), interest)?;
        let link = Link::new(peer, stream, self.inbox.clone(), self.control.clone());
        let link = Arc::new(link);
        let requests = Arc::downgrade(&link);
        let flow_control = move |pause| {
            if let Some(link) = requests.upgrade() {
                link.request_pause(pause);
            }
        };
        self.inbox.add_peer(peer, Box::new(flow_control));
        let reader = Reader::new(link.clone(), self.inbox.clone(), self.max_message_bytes);
        self.readers.insert(peer, reader);
        Ok(link)
    }

    /// Starts the thread of `rank`, which ends with the last connection.
    pub(super) fn start(self, rank: usize) -> io::Result<ThreadId> {
        let thread = thread::Builder::new()
            .name(format!("everburn-io-{rank}"))
            .spawn(move || self.run())?;
        Ok(thread.thread().id())
    }

    fn run(mut self) {
        let mut events = Events::with_capacity(EVENTS);
        let tick = TICK.min(self.write_timeout).max(Duration::from_millis(1));
        let mut next_tick = Instant::now() + tick;
        while !self.readers.is_empty() {
            match self.poll.poll(&mut events, Some(self.sleep(next_tick))) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    tracing::error!("the thread of the connections stops: {error}");
                    return;
                }
            }
            let again = std::mem::take(&mut self.again);
            for event in &events {
                match event.token() {
                    WAKER => {}
                    Token(peer) => {
                        let is_ended = event.is_read_closed() || event.is_error();
                        if let Some(reader) = self.readers.get_mut(&peer) {
                            reader.is_ended |= is_ended;
                        }
                        self.serve(peer, event.is_readable() || is_ended);
                    }
                }
            }
            let due = std::mem::take(&mut *lock(&self.control.due));
            for peer in due {
                // A resumed peer need not wait to the end of its pause.
                self.serve(peer, self.paused.contains_key(&peer));
            }
            for peer in again.into_iter().chain(self.unpaused()) {
                self.serve(peer, true);
            }
            if Instant::now() >= next_tick {
                next_tick = Instant::now() + tick;
                self.check_timeouts();
            }
        }
    }

    /// The timeout of the next poll.
    fn sleep(&self, next_tick: Instant) -> Duration {
        if !self.again.is_empty() {
            return Duration::ZERO;
        }
        let next = self.paused.values().copied().chain([next_tick]).min();
        next.unwrap_or(next_tick)
            .saturating_duration_since(Instant::now())
    }

    /// Peers whose pause is over.
    fn unpaused(&self) -> Vec<usize> {
        let now = Instant::now();
        let over = self.paused.iter().filter(|(_, until)| **until <= now);
        over.map(|(peer, _)| *peer).collect()
    }

    /// Reads from `peer` if `reads`, then writes to it. In this order, because a goodbye or an abort explains
    /// more than a failed write.
    fn serve(&mut self, peer: usize, reads: bool) {
        let Some(reader) = self.readers.get_mut(&peer) else {
            return;
        };
        let mut more = false;
        if reads {
            self.paused.remove(&peer);
            match reader.read() {
                Err(end) => return self.finish(peer, &end),
                Ok(Turn::Empty) if reader.link.is_broken() => {
                    return self.finish(peer, &End::Closed);
                }
                Ok(Turn::Empty) => {}
                Ok(Turn::More) => more = true,
                Ok(Turn::Paused(until)) => {
                    self.paused.insert(peer, until);
                }
            }
        }
        match reader.link.write(TURN) {
            Ok(more_to_write) => more |= more_to_write,
            Err(cause) => {
                // The remaining data are read nevertheless.
                reader.link.cut(&cause);
                more = true;
            }
        }
        if more {
            self.again.push(peer);
        }
    }

    /// Ends connections whose time is over, and serves all others.
    fn check_timeouts(&mut self) {
        let peers: Vec<usize> = self.readers.keys().copied().collect();
        for peer in peers {
            let Some(reader) = self.readers.get_mut(&peer) else {
                continue;
            };
            let is_silent = !std::mem::take(&mut reader.moved);
            if reader.link.is_broken() || (is_silent && reader.link.is_over()) {
                self.finish(peer, &End::Closed);
            } else if let Some(cause) = reader.link.stall(self.write_timeout) {
                reader.link.cut(&cause);
            } else {
                self.serve(peer, true);
            }
        }
    }

    fn finish(&mut self, peer: usize, end: &End) {
        let Some(reader) = self.readers.remove(&peer) else {
            return;
        };
        // After a goodbye the inbox keeps the goodbye as the cause.
        let cause = match end {
            End::Closed => CLOSED_WITHOUT_GOODBYE.to_owned(),
            End::Broken(error) => format!("{CLOSED_WITHOUT_GOODBYE} (reading: {error})"),
            End::Invalid(reason) => format!("it sent {reason}"),
        };
        tracing::debug!(peer, cause, "link closed");
        reader.link.cut(&cause);
    }
}

impl Drop for EventLoop {
    /// Fails the calls that wait for a peer whose connection is no longer served.
    fn drop(&mut self) {
        for reader in self.readers.values() {
            reader
                .link
                .cut("the thread of this rank's connections has ended");
        }
    }
}
