//! How the ranks of a group come to their lanes, at its first collective.
//!
//! Over frames, in rounds in which each rank tells all others: where it runs; the memory that it
//! offers to those of its machine; whether it could open that memory; at which address it takes
//! connections. All ranks know all answers, so all come to the same lanes.

use std::net::SocketAddr;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::connect::Door;
use super::memory::{Offer, Table};
use super::wake::Wake;
use super::{Lane, Lanes, SocketLane};
use crate::group::{Collective, CollectiveError, TransportKind};
use crate::shared_memory::Doorbell;
use crate::transport::{Payload, Surroundings};

/// The rounds after the opening.
const OFFERS: u8 = 1;
const VERDICTS: u8 = 2;
const DOORS: u8 = 3;

/// What a rank says in the opening.
#[derive(Debug, Serialize, Deserialize)]
struct Endpoint {
    transport: String,
    surroundings: Surroundings,
}

/// Whether a rank could make its end of the shared memory.
#[derive(Debug, Serialize, Deserialize)]
struct Verdict {
    /// Why not.
    reason: Option<String>,
}

/// Makes the lanes of this rank, in the first collective of its group.
pub(crate) fn establish(collective: &Collective<'_>) -> Result<Lanes, CollectiveError> {
    let establishment = Establishment::open(collective)?;
    establishment.lanes()
}

/// A group on the way to its lanes.
struct Establishment<'a> {
    collective: &'a Collective<'a>,
    kind: TransportKind,
    /// By group rank.
    surroundings: Vec<Surroundings>,
    /// The lowest rank on the machine of each rank.
    hosts: Vec<usize>,
    /// The hosts whose ranks share memory.
    shared: Vec<usize>,
}

impl<'a> Establishment<'a> {
    /// The first round: all ranks compare what they called, and learn where they run.
    fn open(collective: &'a Collective<'a>) -> Result<Self, CollectiveError> {
        let core = collective.core;
        let kind = core.options.transport;
        let own = Endpoint {
            transport: kind.to_string(),
            surroundings: core.transport.surroundings(),
        };
        let own_bytes = encode(&own);
        let payloads = collective.open(|_| Payload::from_vec(own_bytes.clone()))?;
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
        let surroundings: Vec<Surroundings> = endpoints
            .into_iter()
            .map(|endpoint| endpoint.surroundings)
            .collect();
        let host_of = |rank: &Surroundings| {
            let first = surroundings
                .iter()
                .position(|other| other.host == rank.host);
            first.unwrap_or_default()
        };
        let hosts = surroundings.iter().map(host_of).collect();
        Ok(Self {
            collective,
            kind,
            surroundings,
            hosts,
            shared: Vec::new(),
        })
    }

    fn lanes(mut self) -> Result<Lanes, CollectiveError> {
        let size = self.collective.size();
        let mut by_rank: Vec<Option<Lane>> = (0..size).map(|_| None).collect();
        let bell = self.share(&mut by_rank)?;
        let one_host = self.hosts.iter().all(|host| *host == self.hosts[0]);
        if !one_host || self.shared.is_empty() {
            self.connect(&mut by_rank)?;
        }
        let own = self.hosts[self.collective.rank()];
        let neighbours = self.hosts.iter().filter(|host| **host == own).count();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Lanes {
            by_rank,
            crowded: neighbours > cores,
            hosts: self.hosts,
            wake: Wake::new(bell),
        })
    }

    /// Makes lanes through shared memory to the ranks of this machine; the place where this rank
    /// sleeps on them.
    fn share(&mut self, by_rank: &mut [Option<Lane>]) -> Result<Option<Doorbell>, CollectiveError> {
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
                 namespaces) and share no memory; use --transport auto or tcp"
            )));
        }
        if self.kind == TransportKind::Tcp || self.hosts.iter().all(is_lonely) {
            return Ok(None);
        }
        let own_host = self.hosts[rank];
        let mates: Vec<usize> = (0..by_rank.len())
            .filter(|other| self.hosts[*other] == own_host)
            .collect();
        let mut table = Table::new(mates, rank);
        let offer = table.offer(self.surroundings[rank].process);
        let offers: Vec<Offer> = all_gather(collective, OFFERS, &offer)?;
        let result = table.join(&offers[own_host]);
        let verdict = Verdict {
            reason: result.as_ref().err().cloned(),
        };
        let verdicts: Vec<Verdict> = all_gather(collective, VERDICTS, &verdict)?;
        table.close();
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
                "rank {rank} cannot share memory: {reason}; use --transport auto or tcp"
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
        let Ok(found) = result else {
            return Ok(None);
        };
        for (peer, lane) in found.lanes {
            by_rank[peer] = Some(Lane::Memory(lane));
        }
        Ok(found.bell)
    }

    /// Connects the pairs of ranks that share no memory.
    fn connect(&self, by_rank: &mut [Option<Lane>]) -> Result<(), CollectiveError> {
        let rank = self.collective.rank();
        let door = Door::open(self.collective, self.surroundings[rank].address)?;
        let addresses: Vec<SocketAddr> = all_gather(self.collective, DOORS, &door.address())?;
        let peers: Vec<usize> = (0..by_rank.len())
            .filter(|peer| *peer != rank && by_rank[*peer].is_none())
            .collect();
        for (peer, streams) in door.connect(self.collective, &addresses, &peers)? {
            by_rank[peer] = Some(Lane::Socket(SocketLane::new(streams)));
        }
        Ok(())
    }
}

/// Tells all other ranks `own` and learns what each of them says, by group rank.
fn all_gather<T: Serialize + DeserializeOwned>(
    collective: &Collective<'_>,
    round: u8,
    own: &T,
) -> Result<Vec<T>, CollectiveError> {
    let bytes = Arc::new(encode(own));
    for peer in collective.others() {
        collective.send(peer, round, Payload::part_of(&bytes, 0..bytes.len()));
    }
    let mut payloads = vec![Payload::empty(); collective.size()];
    collective.receive(round, collective.others(), |peer, payload| {
        payloads[peer] = payload;
        Ok(())
    })?;
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
                format!("what it said of its lanes is unreadable: {error}"),
            )
        })
    };
    payloads.into_iter().enumerate().map(decode).collect()
}

fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect("plain numbers and strings")
}
