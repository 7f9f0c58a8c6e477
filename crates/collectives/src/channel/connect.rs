//! Connection setup of TCP channels.
//!
//! Each rank listens on its own port, whose address all ranks have exchanged over the control plane.
//! The higher rank of a pair dials the lower one; both prove the secret of their transport
//! ([`crate::net`]).

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Instant;

use everburn_auth::Key;
use socket2::Socket;

use super::TICK;
use crate::group::{Collective, CollectiveError};
use crate::net::{Acceptor, Expected, Hello, Purpose, dial};
use crate::transport::Interruption;

/// The connections per channel: two, so that a lost packet delays only half of the bytes.
pub(super) const STREAMS: usize = 2;

/// The connections to one peer.
type Streams = Vec<TcpStream>;

/// The listener of one rank; also dials the lower ranks.
pub(super) struct ChannelListener {
    acceptor: Acceptor,
    key: Key,
}

/// Selects loss-based congestion control (CUBIC; Ha, Rhee and Xu 2008) before the connection is made.
/// The system's default may be BBR, whose pacing by timers costs a third of the throughput between
/// ranks on one machine and cannot be removed from an open connection.
fn choose_congestion_control(socket: &Socket) {
    #[cfg(any(target_os = "linux", target_os = "freebsd"))]
    if let Err(error) = rustix::net::sockopt::set_tcp_congestion(socket, "cubic") {
        tracing::debug!(%error, "channels keep the system's congestion control");
    }
    #[cfg(not(any(target_os = "linux", target_os = "freebsd")))]
    let _ = socket;
}

impl ChannelListener {
    /// Listens on a free port of `address`.
    pub(super) fn bind(
        collective: &Collective<'_>,
        address: IpAddr,
    ) -> Result<Self, CollectiveError> {
        let key = collective.core.transport.key().derive("lanes");
        let expected = Expected {
            purpose: Purpose::Channel,
            rank: collective.rank(),
            world_size: collective.size(),
            scope: collective.core.id,
            streams: STREAMS,
        };
        // Accepted connections inherit the option.
        let acceptor = Acceptor::start(address, key.clone(), expected, choose_congestion_control);
        let acceptor = acceptor.map_err(|error| {
            collective.system(&format!("listen on {address} for channels"), &error)
        })?;
        Ok(Self { acceptor, key })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.acceptor.address()
    }

    /// Dials the lower of the group ranks `peers` and accepts the connections of the higher ones.
    pub(super) fn connect(
        self,
        collective: &Collective<'_>,
        addresses: &[SocketAddr],
        peers: &[usize],
    ) -> Result<Vec<(usize, Streams)>, CollectiveError> {
        let mut channels: Vec<(usize, Streams)> = Vec::with_capacity(peers.len());
        let (lower, higher): (Vec<usize>, Vec<usize>) =
            peers.iter().partition(|peer| **peer < collective.rank());
        for peer in lower {
            let dial = |index| self.dial(collective, peer, addresses[peer], index);
            let streams = (0..STREAMS).map(dial).collect::<Result<_, _>>()?;
            channels.push((peer, streams));
        }
        self.wait_for(collective, &higher)?;
        for peer in higher {
            let streams = (0..STREAMS).filter_map(|index| self.acceptor.take(peer, index));
            channels.push((peer, streams.collect()));
        }
        for stream in channels.iter().flat_map(|(_, streams)| streams) {
            let ready = stream.set_nonblocking(true).and(stream.set_nodelay(true));
            ready
                .map_err(|error| collective.system("prepare a connection of a channel", &error))?;
        }
        Ok(channels)
    }

    /// Waits for the connections of the group ranks `peers`.
    fn wait_for(
        &self,
        collective: &Collective<'_>,
        peers: &[usize],
    ) -> Result<(), CollectiveError> {
        let has =
            |acceptor: &Acceptor, peer: usize| (0..STREAMS).all(|index| acceptor.has(peer, index));
        loop {
            let missing = peers.iter().copied();
            let missing: Vec<usize> = missing.filter(|peer| !has(&self.acceptor, *peer)).collect();
            if missing.is_empty() {
                return Ok(());
            }
            check_failures(collective, missing.iter().copied())?;
            self.acceptor.wait(Instant::now() + TICK, |acceptor| {
                peers.iter().all(|peer| has(acceptor, *peer))
            });
        }
    }

    /// Opens connection `index` of the channel to `peer`; retries until it is accepted or the collective
    /// fails.
    fn dial(
        &self,
        collective: &Collective<'_>,
        peer: usize,
        address: SocketAddr,
        index: usize,
    ) -> Result<TcpStream, CollectiveError> {
        let hello = Hello {
            purpose: Purpose::Channel,
            rank: collective.rank(),
            world_size: collective.size(),
            scope: collective.core.id,
            index,
        };
        let mut last_attempt = None;
        loop {
            let (prepare, until) = (choose_congestion_control, collective.deadline());
            match dial(address, prepare, &self.key, &hello, peer, until) {
                Ok(stream) => return Ok(stream),
                // What the deadline cut short says less than the attempt before it.
                Err(_) if last_attempt.is_some() && Instant::now() >= until => {}
                Err(error) => last_attempt = Some(error),
            }
            if let Err(error) = check_failures(collective, std::iter::once(peer)) {
                tracing::warn!(peer, %address, ?last_attempt, "a channel was not connected");
                return Err(error);
            }
            std::thread::sleep(TICK);
        }
    }
}

/// Checks whether waiting for the group ranks `missing` must end.
///
/// # Errors
/// A failed group, a lost peer, or the deadline.
fn check_failures(
    collective: &Collective<'_>,
    missing: impl Iterator<Item = usize>,
) -> Result<(), CollectiveError> {
    let core = collective.core;
    let missing: Vec<usize> = missing.map(|rank| core.members[rank]).collect();
    core.set_waiting_for(&missing);
    let interruption = if let Some(failure) = core.mailbox.failure() {
        Interruption::Failed(failure)
    } else if let Some((peer, parting)) = missing
        .iter()
        .find_map(|peer| Some((*peer, core.mailbox.parting(*peer)?)))
    {
        let cause = parting.cause;
        Interruption::Gone { peer, cause }
    } else if Instant::now() >= collective.deadline() {
        Interruption::Deadline { missing }
    } else {
        return Ok(());
    };
    Err(core.interrupted(&collective.context, interruption))
}
