//! Connection setup of TCP channels.
//!
//! Each rank listens on its own port, whose address all ranks have exchanged over the control plane.
//! The higher rank of a pair dials the lower one; both prove the secret of their transport
//! ([`crate::net`]).

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Instant;

use socket2::Socket;

use super::TICK;
use crate::group::{Collective, CollectiveError};
use crate::net::{Connector, Expected, FailedDial, Listening, Purpose};
use crate::transport::Interruption;

/// The connections per channel: two, so that a lost packet delays only half of the bytes.
pub(super) const STREAMS: usize = 2;

/// The same in a group of which some ranks share cores. These limit it, and not the network, and each connection costs them
/// a handshake in each new group.
pub(super) const STREAMS_ON_SHARED_CORES: usize = 1;

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

/// Listens on a free port of `address`, for `streams` connections with each rank.
pub(super) fn listen(
    collective: &Collective<'_>,
    address: IpAddr,
    streams: usize,
) -> Result<Connector, CollectiveError> {
    let key = collective.core.transport.key().derive("channels");
    let expected = Expected {
        purpose: Purpose::Channel,
        rank: collective.rank(),
        world_size: collective.size(),
        scope: collective.core.id,
        streams,
    };
    // Accepted connections inherit the option.
    let listening = Listening::bind(address, choose_congestion_control);
    listening
        .and_then(|it| Connector::start(it, key, expected, choose_congestion_control))
        .map_err(|error| collective.system(&format!("listen on {address} for channels"), &error))
}

/// Makes the connections to the group ranks `peers`.
pub(super) fn connect(
    mut connector: Connector,
    collective: &Collective<'_>,
    addresses: &[SocketAddr],
    peers: &[usize],
) -> Result<Vec<(usize, Vec<TcpStream>)>, CollectiveError> {
    let address_of = |peer| peers.contains(&peer).then(|| addresses[peer]);
    let mut last: Option<FailedDial> = None;
    loop {
        let dialled = connector.dial(address_of, collective.deadline);
        let is_missing = |peer: &usize| !connector.is_connected(*peer);
        let missing: Vec<usize> = match &dialled {
            Ok(()) => peers.iter().copied().filter(is_missing).collect(),
            Err(failed) => vec![failed.peer],
        };
        if missing.is_empty() {
            break;
        }
        // What the deadline cut short says less than the attempt before it.
        let is_late = Instant::now() >= collective.deadline;
        last = match dialled.err() {
            Some(failed) if is_late && last.as_ref().is_some_and(|it| it.peer == failed.peer) => {
                last
            }
            failed => failed,
        };
        if let Err(error) = check_failures(collective, missing) {
            if let Some(FailedDial {
                peer,
                address,
                error,
            }) = last
            {
                tracing::warn!(peer, %address, ?error, "a channel was not connected");
            }
            return Err(error);
        }
        connector.acceptor.wait(Instant::now() + TICK, |_| {
            peers.iter().all(|peer| connector.is_connected(*peer))
        });
    }
    let mut channels = Vec::with_capacity(peers.len());
    for peer in peers {
        let streams = connector.take(*peer);
        for stream in &streams {
            let ready = stream.set_nonblocking(true).and(stream.set_nodelay(true));
            ready
                .map_err(|error| collective.system("prepare a connection of a channel", &error))?;
        }
        channels.push((*peer, streams));
    }
    Ok(channels)
}

/// Checks whether waiting for the group ranks `missing` must end.
///
/// # Errors
/// A failed group, a lost peer, or the deadline.
fn check_failures(collective: &Collective<'_>, missing: Vec<usize>) -> Result<(), CollectiveError> {
    let core = collective.core;
    let missing: Vec<usize> = missing.into_iter().map(|rank| core.members[rank]).collect();
    core.set_waiting_for(&missing);
    let interruption = if let Some(failure) = core.mailbox.failure() {
        Interruption::Failed(failure)
    } else if let Some((peer, parting)) = missing
        .iter()
        .find_map(|peer| Some((*peer, core.mailbox.parting(*peer)?)))
    {
        let cause = parting.cause;
        Interruption::Gone { peer, cause }
    } else if Instant::now() >= collective.deadline {
        Interruption::Deadline { missing }
    } else {
        return Ok(());
    };
    Err(core.interrupted(&collective.context, interruption))
}
