//! How the data of collectives get from rank to rank.
//!
//! A [`Lane`] is a stream of bytes in both directions between two ranks of one group, driven by
//! whichever thread runs the group's current collective: through shared memory ([`RingLane`])
//! between ranks of one machine, over TCP ([`SocketLane`]) else. It never waits. [`Lanes`] are
//! those of one rank to all others, and the place where it sleeps until one of them has news.
//!
//! The frames of a [`crate::transport::Transport`] establish the lanes and bring the news of
//! failures; a lane knows only that its other end is gone.

mod connect;
mod establish;
#[cfg(any(test, fuzzing))]
pub(crate) mod hostile;
mod memory;
mod socket;
mod wake;

use std::time::Duration;

pub(crate) use self::establish::establish;
use self::memory::RingLane;
use self::socket::SocketLane;
use self::wake::Wake;
use crate::group::Path;
use crate::shared_memory::Ticket;
use crate::transport::CUT_HERE;

/// The longest sleep on lanes: after it the group's failure, lost peers and the deadline are
/// looked for.
const TICK: Duration = Duration::from_millis(10);

/// Why a lane has ended.
#[derive(Debug)]
pub(crate) struct LaneError {
    pub(crate) cause: String,
}

impl LaneError {
    pub(crate) fn new(cause: impl Into<String>) -> Self {
        Self {
            cause: cause.into(),
        }
    }
}

/// A stream of bytes to and from one peer.
pub(crate) enum Lane {
    Memory(RingLane),
    Socket(SocketLane),
    /// Cut on purpose by this rank.
    Cut,
}

impl Lane {
    /// Takes as many bytes of `pieces`, one after the other, as there is room for now.
    pub(crate) fn try_send(&mut self, pieces: &[&[u8]]) -> Result<usize, LaneError> {
        match self {
            Self::Memory(lane) => lane.try_send(pieces),
            Self::Socket(lane) => lane.try_send(pieces),
            Self::Cut => Err(cut()),
        }
    }

    /// Copies what has arrived, at most `into.len()`.
    pub(crate) fn try_recv(&mut self, into: &mut [u8]) -> Result<usize, LaneError> {
        match self {
            Self::Memory(lane) => lane.try_recv(into),
            Self::Socket(lane) => lane.try_recv(into),
            Self::Cut => Err(cut()),
        }
    }

    /// A view of what has arrived, of at most `most` bytes, without taking it.
    pub(crate) fn peek(&mut self, most: usize) -> Result<&[u8], LaneError> {
        match self {
            Self::Memory(lane) => lane.peek(most),
            Self::Socket(lane) => lane.peek(most),
            Self::Cut => Err(cut()),
        }
    }

    /// Takes `bytes` of what [`Lane::peek`] has shown.
    pub(crate) fn consume(&mut self, bytes: usize) {
        match self {
            Self::Memory(lane) => lane.consume(bytes),
            Self::Socket(lane) => lane.consume(bytes),
            Self::Cut => {}
        }
    }

    /// How many bytes [`Lane::peek`] has read ahead into memory of its own.
    pub(crate) fn buffered(&self) -> usize {
        match self {
            Self::Memory(_) | Self::Cut => 0,
            Self::Socket(lane) => lane.buffered(),
        }
    }
}

fn cut() -> LaneError {
    LaneError::new(CUT_HERE)
}

/// What a rank waits for on one lane.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Interest {
    pub(crate) read: bool,
    pub(crate) write: bool,
}

/// The lanes of one rank.
pub(crate) struct Lanes {
    /// By group rank; `None` for this one.
    by_rank: Vec<Option<Lane>>,
    /// The host of each rank, by group rank: the lowest rank on it.
    hosts: Vec<usize>,
    wake: Wake,
    crowded: bool,
}

impl Lanes {
    pub(crate) fn lane(&mut self, rank: usize) -> Option<&mut Lane> {
        self.by_rank[rank].as_mut()
    }

    /// Cuts the lane to `rank` at once, and what is under way in it.
    pub(crate) fn cut(&mut self, rank: usize) {
        self.by_rank[rank] = Some(Lane::Cut);
    }

    pub(crate) fn all(&mut self) -> &mut [Option<Lane>] {
        &mut self.by_rank
    }

    /// Whether the lane to `rank` is shared memory, in which nothing is under way.
    pub(crate) fn is_memory(&self, rank: usize) -> bool {
        matches!(self.by_rank[rank], Some(Lane::Memory(_)))
    }

    /// The lowest rank on the machine of each rank.
    pub(crate) fn hosts(&self) -> &[usize] {
        &self.hosts
    }

    /// What the slowest way between two ranks is.
    pub(crate) fn path(&self) -> Path {
        let alone = |(rank, host): (usize, &usize)| rank == *host;
        if self.hosts.iter().any(|host| *host != self.hosts[0]) {
            let one_each = self.hosts.iter().enumerate().all(alone);
            return if one_each { Path::Tcp } else { Path::Hosts };
        }
        let memory = self
            .by_rank
            .iter()
            .all(|lane| !matches!(lane, Some(Lane::Socket(_))));
        if memory {
            Path::SharedMemory
        } else {
            Path::Tcp
        }
    }

    /// Whether more ranks than cores may be running on this machine.
    pub(crate) const fn are_crowded(&self) -> bool {
        self.crowded
    }

    /// To be had before looking at the lanes for the last time, for [`Lanes::wait`].
    pub(crate) fn ticket(&self) -> Option<Ticket> {
        self.wake.ticket()
    }

    /// Sleeps until a lane has something of interest that it did not have when the ticket was
    /// given out, for [`TICK`] at most.
    pub(crate) fn wait(&self, ticket: Option<Ticket>, interests: &[Interest]) {
        self.wake.wait(ticket, &self.by_rank, interests, TICK);
    }
}
