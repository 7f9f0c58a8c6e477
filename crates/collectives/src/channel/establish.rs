//! Channel setup, in the first collective of a group.
//!
//! The ranks all-gather, over frames: host information; the shared-memory segment of each machine;
//! whether each rank could open it; the address of each rank's listener. All ranks see all answers, so
//! all choose the same channels.

use std::net::SocketAddr;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::connect::{STREAMS, STREAMS_ON_SHARED_CORES, connect, listen};
use super::memory::{LocalRanks, Offer};
use super::{Channel, Channels, SocketChannel};
use crate::group::{Collective, CollectiveError, TransportKind};
use crate::shared_memory::Doorbell;
use crate::transport::{HostInfo, Payload};

/// The exchanges that follow the first one, by phase number on the wire.
const OFFERS: u8 = 1;
const VERDICTS: u8 = 2;
const ADDRESSES: u8 = 3;

/// The payload of the first exchange.
#[derive(Debug, Serialize, Deserialize)]
struct Endpoint {
    transport: String,
    #[serde(rename = "surroundings")]
    host_info: HostInfo,
    /// On how many cores the rank may run.
    cores: usize,
}

/// Whether a rank could open the shared memory.
#[derive(Debug, Serialize, Deserialize)]
struct Verdict {
    /// The error, if it could not.
    reason: Option<String>,
}

/// Sets up the channels of this rank, in the first collective of its group.
pub(crate) fn establish(collective: &Collective<'_>) -> Result<Channels, CollectiveError> {
    let establishment = Establishment::begin(collective)?;
    establishment.channels()
}

/// Channel setup in progress.
struct Establishment<'a> {
    collective: &'a Collective<'a>,
    kind: TransportKind,
    /// By group rank.
    host_infos: Vec<HostInfo>,
    /// The lowest rank on the same machine, by group rank.
    hosts: Vec<usize>,
    /// Whether the machine of each rank has more ranks than cores, by group rank.
    oversubscribed: Vec<bool>,
    /// The machines (their lowest ranks) whose ranks share memory.
    shared: Vec<usize>,
}

impl<'a> Establishment<'a> {
    /// The first exchange: all ranks compare signatures and exchange host information.
    fn begin(collective: &'a Collective<'a>) -> Result<Self, CollectiveError> {
        let core = collective.core;
        let kind = core.options.transport;
        let own = Endpoint {
            transport: kind.to_string(),
            host_info: core.transport.host_info(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
        };
        let own_bytes = Arc::new(encode(&own));
        let payloads = collective.bootstrap(&own_bytes)?;
        let endpoints: Vec<Endpoint> = decode_all(collective, &own_bytes, payloads)?;
        if let Some(peer) = endpoints
            .iter()
            .position(|other| other.transport != own.transport)
        {
            let theirs = &endpoints[peer].transport;
            return Err(collective.no_path(format!(
                "rank {} was given the transport {theirs}, this rank {kind}; give all ranks the \
                 same",
                core.members[peer]
            )));
        }
        let cores: Vec<usize> = endpoints.iter().map(|endpoint| endpoint.cores).collect();
        let host_infos: Vec<HostInfo> = endpoints
            .into_iter()
            .map(|endpoint| endpoint.host_info)
            .collect();
        let host_of = |rank: &HostInfo| {
            let first = host_infos.iter().position(|other| other.host == rank.host);
            first.unwrap_or_default()
        };
        let hosts: Vec<usize> = host_infos.iter().map(host_of).collect();
        Ok(Self {
            collective,
            kind,
            host_infos,
            oversubscribed: oversubscribed(&hosts, &cores),
            hosts,
            shared: Vec::new(),
        })
    }

    fn channels(mut self) -> Result<Channels, CollectiveError> {
        let size = self.collective.size();
        let mut by_rank: Vec<Option<Channel>> = (0..size).map(|_| None).collect();
        let bell = self.share(&mut by_rank)?;
        let one_host = self.hosts.iter().all(|host| *host == self.hosts[0]);
        if !one_host || self.shared.is_empty() {
            self.connect(&mut by_rank)?;
        }
        Ok(Channels {
            by_rank,
            oversubscribed: self.oversubscribed[self.collective.rank()],
            hosts: self.hosts,
            bell,
        })
    }

    /// Makes the shared-memory channels to the ranks of this machine. Returns the doorbell of this rank.
    fn share(
        &mut self,
        by_rank: &mut [Option<Channel>],
    ) -> Result<Option<Doorbell>, CollectiveError> {
        let collective = self.collective;
        let rank = collective.rank();
        let is_lonely =
            |host: &usize| self.hosts.iter().filter(|other| *other == host).count() == 1;
        if self.kind == TransportKind::SharedMemory
            && let Some(other) = self.hosts.iter().position(|host| *host != self.hosts[0])
        {
            let (first, other) = (collective.core.members[0], collective.core.members[other]);
            return Err(collective.no_path(format!(
                "ranks {first} and {other} are on different machines (or in different network \
                 namespaces) and share no memory; use `GroupOptions::transport = auto` or tcp"
            )));
        }
        if self.kind == TransportKind::Tcp || self.hosts.iter().all(is_lonely) {
            return Ok(None);
        }
        let own_host = self.hosts[rank];
        let local: Vec<usize> = (0..by_rank.len())
            .filter(|other| self.hosts[*other] == own_host)
            .collect();
        let mut local = LocalRanks::new(local, rank);
        let offer = local.offer(self.host_infos[rank].process);
        let offers: Vec<Offer> = all_gather(collective, OFFERS, &offer)?;
        let result = local.join(&offers[own_host]);
        let verdict = Verdict {
            reason: result.as_ref().err().cloned(),
        };
        let verdicts: Vec<Verdict> = all_gather(collective, VERDICTS, &verdict)?;
        local.close();
        let refused = |host: usize| {
            let of_host = (0..verdicts.len()).filter(|rank| self.hosts[*rank] == host);
            let mut reasons =
                of_host.filter_map(|rank| Some((rank, verdicts[rank].reason.as_ref()?)));
            reasons.next()
        };
        if self.kind == TransportKind::SharedMemory
            && let Some((rank, reason)) = self.hosts.iter().find_map(|host| refused(*host))
        {
            let rank = collective.core.members[rank];
            return Err(collective.no_path(format!(
                "rank {rank} cannot share memory: {reason}; use `GroupOptions::transport = auto` or tcp"
            )));
        }
        self.shared = self
            .hosts
            .iter()
            .copied()
            .filter(|host| refused(*host).is_none())
            .collect();
        if let Some((refusing, reason)) = refused(own_host) {
            let refusing = collective.core.members[refusing];
            tracing::warn!(
                rank = collective.core.job_rank(),
                refusing,
                reason,
                "the ranks of this machine share no memory and use TCP instead"
            );
            return Ok(None);
        }
        let Ok(local) = result else {
            return Ok(None);
        };
        for (peer, channel) in local.channels {
            by_rank[peer] = Some(Channel::Memory(channel));
        }
        Ok(local.bell)
    }

    /// Makes the TCP channels between ranks that share no memory.
    fn connect(&self, by_rank: &mut [Option<Channel>]) -> Result<(), CollectiveError> {
        let rank = self.collective.rank();
        let address = self.host_infos[rank].address;
        let streams = match self.oversubscribed.contains(&true) {
            true => STREAMS_ON_SHARED_CORES,
            false => STREAMS,
        };
        let connector = listen(self.collective, address, streams)?;
        let address = connector.acceptor.address();
        let addresses: Vec<SocketAddr> = all_gather(self.collective, ADDRESSES, &address)?;
        let peers: Vec<usize> = (0..by_rank.len())
            .filter(|peer| *peer != rank && by_rank[*peer].is_none())
            .collect();
        for (peer, streams) in connect(connector, self.collective, &addresses, &peers)? {
            by_rank[peer] = Some(Channel::Socket(SocketChannel::new(streams)));
        }
        Ok(())
    }
}

/// Whether the machine of each rank has more ranks than the `cores` of that rank; `hosts` are the lowest ranks on the same
/// machines.
fn oversubscribed(hosts: &[usize], cores: &[usize]) -> Vec<bool> {
    let ranks = |host: &usize| hosts.iter().filter(|other| *other == host).count();
    let pairs = hosts.iter().zip(cores);
    pairs.map(|(host, cores)| ranks(host) > *cores).collect()
}

/// Sends `own` to all other ranks and returns the values of all ranks, by group rank.
fn all_gather<T: Serialize + DeserializeOwned>(
    collective: &Collective<'_>,
    round: u8,
    own: &T,
) -> Result<Vec<T>, CollectiveError> {
    let bytes = Arc::new(encode(own));
    let payloads = collective.all_gather_setup(round, &bytes)?;
    decode_all(collective, &bytes, payloads)
}

fn decode_all<T: DeserializeOwned>(
    collective: &Collective<'_>,
    own_bytes: &[u8],
    payloads: Vec<Payload>,
) -> Result<Vec<T>, CollectiveError> {
    let decode = |(peer, payload): (usize, Payload)| {
        let bytes = if peer == collective.rank() {
            Some(own_bytes)
        } else {
            payload.as_slice::<u8>()
        };
        serde_json::from_slice(bytes.unwrap_or_default()).map_err(|error| {
            collective.protocol(
                peer,
                format!("its message for the setup of channels is unreadable: {error}"),
            )
        })
    };
    payloads.into_iter().enumerate().map(decode).collect()
}

fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect("plain numbers and strings")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_share_cores_where_their_machine_has_fewer_of_them() {
        // Three ranks on one machine, and one on another.
        let hosts = [0, 1, 0, 0];
        assert_eq!(oversubscribed(&hosts, &[3, 1, 3, 3]), [false; 4]);
        let crowded = oversubscribed(&hosts, &[2, 1, 2, 2]);
        assert_eq!(crowded, [true, false, true, true]);
        // A rank that is bound to one core.
        let bound = oversubscribed(&hosts, &[8, 8, 1, 8]);
        assert_eq!(bound, [false, false, true, false]);
    }
}
