//! How the ranks of a job find and trust each other: one connection for each pair.
//!
//! Every rank binds a listener on a free port and publishes its address in the store; rank 0
//! publishes a random session key. A rank dials all lower ranks and is dialled by all higher
//! ones; both sides present the key before anything else.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rand::TryRng;
use rand::rngs::SysRng;

use super::doorkeeper::{Arrival, Doorkeeper};
use super::hello::{Hello, KEY_BYTES, SessionKey, Status, read_hello, write_hello};
use crate::group::CollectiveError;
use crate::rendezvous::Rendezvous;
use crate::store::{PrefixStore, SharedStore, Store, StoreError};

/// How long to wait before dialling again, and how often to look for bad news in the store.
pub(super) const RETRY: Duration = Duration::from_millis(50);
const NEWS: Duration = Duration::from_millis(250);

/// How many meshes of one rank are looked for at most when their keys are deleted: a generation makes one
/// or two, and a counter that somebody has spoilt must not keep us busy.
const MOST_MESHES: i64 = 1024;

/// A rank on its way into the mesh.
pub(super) struct Handshake<'a> {
    rendezvous: &'a Rendezvous,
    started: Instant,
    deadline: Instant,
    /// The keys of this mesh begin with this. It counts the meshes that this rank has made
    /// through this store, so a group can be destroyed and made again.
    prefix: String,
    streams: Vec<Option<TcpStream>>,
    last_attempt: String,
}

impl<'a> Handshake<'a> {
    /// Connects this rank with all others; the streams by rank, `None` for this one.
    pub(super) fn run(
        rendezvous: &'a Rendezvous,
    ) -> Result<Vec<Option<TcpStream>>, CollectiveError> {
        let rank = rendezvous.rank;
        let generation = rendezvous
            .store
            .add(&format!("everburn/mesh/joined/{rank}"), 1)?;
        let started = Instant::now();
        let mut handshake = Self {
            rendezvous,
            started,
            deadline: started + rendezvous.timeout,
            prefix: format!("everburn/mesh/{generation}"),
            streams: (0..rendezvous.world_size).map(|_| None).collect(),
            last_attempt: "they have not published an address in the store".to_owned(),
        };
        let result = handshake.connect();
        if let Err(CollectiveError::WorldSize {
            rank,
            peer,
            ours,
            theirs,
        }) = &result
        {
            // So that the ranks which meet neither of the two do not wait for them.
            let news = format!("{rank} {peer} {ours} {theirs}");
            let _ = rendezvous
                .store
                .set(&handshake.key("failed"), news.as_bytes());
        }
        result.map(|()| handshake.streams)
    }

    fn connect(&mut self) -> Result<(), CollectiveError> {
        let Rendezvous {
            store,
            rank,
            world_size,
            local_address,
            ..
        } = self.rendezvous;
        let listener = TcpListener::bind((*local_address, 0))
            .map_err(|error| self.system(&format!("listen on {local_address}"), &error))?;
        let address = listener
            .local_addr()
            .map_err(|error| self.system("learn its own address", &error))?;
        let key = self.session_key()?;
        store.set(
            &self.key(&format!("address/{rank}")),
            address.to_string().as_bytes(),
        )?;
        let (found, arrivals) = mpsc::channel();
        let doorkeeper = Doorkeeper::new(key, *rank, *world_size, found);
        let guard = doorkeeper.close_on_drop(address);
        if rank + 1 < *world_size {
            thread::Builder::new()
                .name("everburn-accept".to_owned())
                .spawn(move || doorkeeper.run(&listener))
                .map_err(|error| self.system("start a thread", &error))?;
        }
        for peer in 0..*rank {
            let stream = self.dial(peer, &key)?;
            self.streams[peer] = Some(stream);
        }
        while self.streams.iter().skip(rank + 1).any(Option::is_none) {
            let wait = NEWS.min(self.deadline.saturating_duration_since(Instant::now()));
            match arrivals.recv_timeout(wait) {
                Ok(Arrival::Connected { peer, stream }) => self.streams[peer] = Some(stream),
                Ok(Arrival::OtherWorldSize { peer, theirs }) => {
                    return Err(self.world_size_differs(peer, theirs));
                }
                Err(_) => self.check_news()?,
            }
        }
        drop(guard);
        Ok(())
    }

    fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.prefix)
    }

    /// Makes the session key (rank 0) or waits for it (the others).
    fn session_key(&mut self) -> Result<SessionKey, CollectiveError> {
        let name = self.key("session_key");
        if self.rendezvous.rank == 0 {
            let mut key = [0; KEY_BYTES];
            SysRng
                .try_fill_bytes(&mut key)
                .map_err(|error| self.system("make a session key", &error))?;
            self.rendezvous.store.set(&name, &key)?;
            return Ok(key);
        }
        let value = self.wait_for(&name)?;
        SessionKey::try_from(value.as_slice()).map_err(|_| {
            let reason = format!("the session key in the store has {} bytes", value.len());
            self.protocol(0, reason)
        })
    }

    /// The value of `key`, waited for with an eye on the news.
    fn wait_for(&mut self, key: &str) -> Result<Vec<u8>, CollectiveError> {
        loop {
            let wait = NEWS.min(self.deadline.saturating_duration_since(Instant::now()));
            match self.rendezvous.store.get_within(key, wait) {
                Ok(value) => return Ok(value),
                Err(StoreError::Timeout { .. }) => self.check_news()?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Connects to the listener of `peer`, again and again until it answers.
    fn dial(&mut self, peer: usize, key: &SessionKey) -> Result<TcpStream, CollectiveError> {
        let address = self.wait_for(&self.key(&format!("address/{peer}")))?;
        let address = String::from_utf8_lossy(&address).into_owned();
        let address: SocketAddr = address
            .parse()
            .map_err(|_| self.protocol(peer, format!("`{address}` in the store is no address")))?;
        loop {
            match self.dial_once(address, peer, key) {
                Ok((
                    stream,
                    Hello {
                        status: Status::Accepted,
                        ..
                    },
                )) => return Ok(stream),
                Ok((_, answer)) => return Err(self.world_size_differs(peer, answer.world_size)),
                Err(reason) => {
                    self.last_attempt = format!("dialling rank {peer} at {address}: {reason}");
                    self.check_news()?;
                    thread::sleep(RETRY);
                }
            }
        }
    }

    fn dial_once(
        &self,
        address: SocketAddr,
        peer: usize,
        key: &SessionKey,
    ) -> Result<(TcpStream, Hello), String> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err("no time left".to_owned());
        }
        let Rendezvous {
            rank, world_size, ..
        } = *self.rendezvous;
        let mut stream =
            TcpStream::connect_timeout(&address, left).map_err(|error| error.to_string())?;
        let hello = Hello {
            status: Status::Accepted,
            rank,
            world_size,
        };
        write_hello(&mut stream, &hello.encode(key), self.deadline)
            .and_then(|()| read_hello(&mut stream, self.deadline))
            .map_err(|error| format!("the connection closed during the handshake: {error}"))
            .and_then(|answer| Hello::decode(&answer, key))
            .and_then(|answer| match answer.rank {
                rank if rank == peer => Ok((stream, answer)),
                other => Err(format!("rank {other} answered")),
            })
    }

    /// Fails when the deadline has passed or another rank has reported a failure.
    fn check_news(&mut self) -> Result<(), CollectiveError> {
        let Rendezvous {
            store,
            rank,
            world_size,
            local_address,
            ..
        } = self.rendezvous;
        let key = self.key("failed");
        if store.check(&[&key])? {
            let news = store.get_within(&key, NEWS)?;
            let news = String::from_utf8_lossy(&news).into_owned();
            let numbers: Vec<usize> = news.split(' ').filter_map(|n| n.parse().ok()).collect();
            if let [rank, peer, ours, theirs] = numbers[..] {
                return Err(CollectiveError::WorldSize {
                    rank,
                    peer,
                    ours,
                    theirs,
                });
            }
        }
        if Instant::now() < self.deadline {
            return Ok(());
        }
        let unconnected = (0..*world_size).filter(|peer| peer != rank);
        let unconnected: Vec<usize> = unconnected
            .filter(|peer| self.streams[*peer].is_none())
            .collect();
        // Ranks that have not even published an address are the ones to look for; a rank may be
        // unconnected merely because this one is still waiting for an earlier one.
        let mut absent = Vec::new();
        for peer in &unconnected {
            if !store.check(&[&self.key(&format!("address/{peer}"))])? {
                absent.push(*peer);
            }
        }
        let missing = if absent.is_empty() {
            unconnected
        } else {
            absent
        };
        Err(CollectiveError::Incomplete {
            rank: *rank,
            world_size: *world_size,
            missing,
            local_address: local_address.to_string(),
            waited: self.started.elapsed(),
            reason: self.last_attempt.clone(),
        })
    }

    fn world_size_differs(&self, peer: usize, theirs: usize) -> CollectiveError {
        let Rendezvous {
            rank, world_size, ..
        } = *self.rendezvous;
        CollectiveError::WorldSize {
            rank,
            peer,
            ours: world_size,
            theirs,
        }
    }

    fn protocol(&self, peer: usize, reason: String) -> CollectiveError {
        let operation = "connect".to_owned();
        CollectiveError::Protocol {
            rank: self.rendezvous.rank,
            peer,
            operation,
            step: 0,
            waited: self.started.elapsed(),
            reason,
        }
    }

    fn system(&self, action: &str, error: &impl ToString) -> CollectiveError {
        CollectiveError::System {
            rank: self.rendezvous.rank,
            action: action.to_owned(),
            reason: error.to_string(),
        }
    }
}

/// Deletes what meshes of up to `ranks` ranks have left below `prefix` of `store`.
pub(crate) fn forget_meshes(
    store: &SharedStore,
    prefix: &str,
    ranks: usize,
) -> Result<(), StoreError> {
    let store = PrefixStore::new(prefix, Arc::clone(store));
    for rank in 0..ranks {
        let counter = format!("everburn/mesh/joined/{rank}");
        let meshes = store.add(&counter, 0)?;
        store.delete(&counter)?;
        for mesh in 1..=meshes.min(MOST_MESHES) {
            store.delete(&format!("everburn/mesh/{mesh}/address/{rank}"))?;
            // Of the whole mesh, but the rank that made them may not be the one that counted most.
            store.delete(&format!("everburn/mesh/{mesh}/session_key"))?;
            store.delete(&format!("everburn/mesh/{mesh}/failed"))?;
        }
    }
    Ok(())
}
