//! The data plane: channels carry the data of collectives between ranks.
//!
//! A [`Channel`] is a bidirectional, non-blocking byte stream between two ranks of one group. Ranks of
//! one machine use shared memory ([`RingChannel`]), others TCP ([`SocketChannel`]). The thread that runs
//! the group's current collective drives the channels; there is no progress thread. [`Channels`] holds
//! the channels of one rank to all others and waits for events on them.
//!
//! Channels are set up by frames of a [`crate::transport::Transport`]. Failures are reported by frames
//! too: a channel reports only that its other end is closed.

mod connect;
mod establish;
#[cfg(any(test, fuzzing))]
pub(crate) mod hostile;
mod memory;
mod readiness;
mod socket;

use std::time::Duration;

pub(crate) use self::establish::establish;
use self::memory::RingChannel;
use self::readiness::{sockets_of_interest, wait_for};
use self::socket::SocketChannel;
use crate::group::Path;
use crate::shared_memory::{Doorbell, Ticket};
use crate::transport::CUT_HERE;

/// The longest single wait for events. After it the caller checks for a failed group, lost peers and
/// the deadline.
const TICK: Duration = Duration::from_millis(10);

/// A broken channel, with the cause.
#[derive(Debug)]
pub(crate) struct ChannelError {
    pub(crate) cause: String,
}

impl ChannelError {
    pub(crate) fn new(cause: impl Into<String>) -> Self {
        Self {
            cause: cause.into(),
        }
    }
}

/// A byte stream to and from one peer.
pub(crate) enum Channel {
    Memory(RingChannel),
    Socket(SocketChannel),
    /// Closed by this rank (fault injection).
    Cut,
}

impl Channel {
    /// Writes the bytes of `pieces`, in order, as far as there is room now. Returns their number.
    pub(crate) fn try_send(&mut self, pieces: &[&[u8]]) -> Result<usize, ChannelError> {
        match self {
            Self::Memory(channel) => channel.try_send(pieces),
            Self::Socket(channel) => channel.try_send(pieces),
            Self::Cut => Err(cut()),
        }
    }

    /// Copies received bytes into `into` and returns their number.
    pub(crate) fn try_recv(&mut self, into: &mut [u8]) -> Result<usize, ChannelError> {
        match self {
            Self::Memory(channel) => channel.try_recv(into),
            Self::Socket(channel) => channel.try_recv(into),
            Self::Cut => Err(cut()),
        }
    }

    /// At most `most` received bytes, which stay in the channel.
    pub(crate) fn peek(&mut self, most: usize) -> Result<&[u8], ChannelError> {
        match self {
            Self::Memory(channel) => channel.peek(most),
            Self::Socket(channel) => channel.peek(most),
            Self::Cut => Err(cut()),
        }
    }

    /// Removes `bytes` of the bytes that [`Channel::peek`] returned.
    pub(crate) fn consume(&mut self, bytes: usize) {
        match self {
            Self::Memory(channel) => channel.consume(bytes),
            Self::Socket(channel) => channel.consume(bytes),
            Self::Cut => {}
        }
    }

    /// The number of bytes that [`Channel::peek`] has read ahead into its own buffer.
    pub(crate) fn buffered(&self) -> usize {
        match self {
            Self::Memory(_) | Self::Cut => 0,
            Self::Socket(channel) => channel.buffered(),
        }
    }
}

fn cut() -> ChannelError {
    ChannelError::new(CUT_HERE)
}

/// The events that a rank waits for on one channel.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Interest {
    pub(crate) read: bool,
    pub(crate) write: bool,
}

/// The channels of one rank to all other ranks of the group.
pub(crate) struct Channels {
    /// By group rank; `None` for this rank.
    pub(crate) by_rank: Vec<Option<Channel>>,
    /// The lowest rank on the same machine, by group rank.
    pub(crate) hosts: Vec<usize>,
    /// Rung by the ranks of this machine.
    bell: Option<Doorbell>,
    /// Whether this machine has more ranks than cores.
    pub(crate) oversubscribed: bool,
}

impl Channels {
    pub(crate) fn channel(&mut self, rank: usize) -> Option<&mut Channel> {
        self.by_rank[rank].as_mut()
    }

    /// Closes the channel to `rank` at once; bytes in flight are lost.
    pub(crate) fn cut(&mut self, rank: usize) {
        self.by_rank[rank] = Some(Channel::Cut);
    }

    /// Whether the channel to `rank` is shared memory, so that no bytes are in flight.
    pub(crate) fn is_memory(&self, rank: usize) -> bool {
        matches!(self.by_rank[rank], Some(Channel::Memory(_)))
    }

    /// The slowest path between two ranks.
    pub(crate) fn path(&self) -> Path {
        let alone = |(rank, host): (usize, &usize)| rank == *host;
        if self.hosts.iter().any(|host| *host != self.hosts[0]) {
            let one_each = self.hosts.iter().enumerate().all(alone);
            return if one_each { Path::Tcp } else { Path::Hosts };
        }
        let memory = self
            .by_rank
            .iter()
            .all(|channel| !matches!(channel, Some(Channel::Socket(_))));
        if memory {
            Path::SharedMemory
        } else {
            Path::Tcp
        }
    }

    /// A ticket for [`Channels::wait`]. Take it before the last attempt to make progress.
    pub(crate) fn ticket(&self) -> Option<Ticket> {
        self.bell.as_ref().map(Doorbell::ticket)
    }

    /// Sleeps until one of `interests` has become ready since the ticket was taken, for [`TICK`] at most. No single call
    /// waits for both kinds of channels: a rank that has both sleeps on its doorbell, for at most `between_polls`, and
    /// the caller comes back to poll the sockets.
    pub(crate) fn wait(
        &self,
        ticket: Option<Ticket>,
        interests: &[Interest],
        between_polls: Duration,
    ) {
        let sockets = sockets_of_interest(&self.by_rank, interests);
        match self.bell.as_ref().zip(ticket) {
            None => {
                wait_for(sockets, TICK);
            }
            Some((bell, ticket)) if sockets.is_empty() => {
                bell.wait(ticket, TICK);
            }
            Some((bell, ticket)) => {
                if !wait_for(sockets, Duration::ZERO) {
                    bell.wait(ticket, between_polls.min(TICK));
                }
            }
        }
    }
}
