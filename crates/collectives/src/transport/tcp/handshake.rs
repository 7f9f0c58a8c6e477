//! How the ranks of a job find each other: one connection for each pair.
//!
//! Every rank listens on a free port and publishes its address in the store. A rank dials all lower
//! ranks and is dialled by all higher ones; both sides prove that they have the job's secret
//! ([`crate::net`]). All keys are below `everburn/mesh`:
//!
//! | key | value |
//! |---|---|
//! | `last` | the number of the last mesh that was made, or that failed for all ranks |
//! | `<n>/address/<rank>` | where the rank listens; replaced when it tries again |
//! | `<n>/published` | how often a rank of many has published an address |
//! | `<n>/session` | the identity of this mesh; in a job without a token its whole secret |
//! | `<n>/all` | all addresses and the session, written by the last rank that comes ([`Addresses`]) |
//! | `<n>/made/<rank>` | the rank has all its connections |
//! | `<n>/failed` | two ranks that were started for different worlds |
//!
//! A mesh that was not completed leaves `last` as it was, so ranks that try again agree on the
//! number, however often each of them has tried.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use everburn_auth::{JobToken, Key};

use super::addresses::Addresses;
use super::mesh_number::{last_mesh, mark_last};
use crate::group::CollectiveError;
use crate::net::{Connector, DialError, Expected, FailedDial, Listening, Purpose};
use crate::rendezvous::Rendezvous;

/// How long to wait before dialling again, and how often to look for bad news in the store at first and at last.
const RETRY: Duration = Duration::from_millis(50);
const NEWS: Duration = Duration::from_millis(250);
const LATER_NEWS: Duration = Duration::from_secs(1);

/// What the handshake leads to.
pub(super) struct Connected {
    /// By rank, `None` for this one. Those that were dialled block.
    pub(super) streams: Vec<Option<TcpStream>>,
    /// The secret of this mesh.
    pub(super) key: Key,
}

/// A rank on its way into the mesh.
pub(super) struct Handshake<'a> {
    rendezvous: &'a Rendezvous,
    started: Instant,
    deadline: Instant,
    number: u64,
    addresses: Addresses<'a>,
    /// The next look for bad news, and the pause after it.
    news: (Instant, Duration),
    /// The pause before a rank that does not accept is dialled again.
    retry: Duration,
    last_attempt: String,
    /// A rank has made this mesh with an earlier attempt of this rank.
    superseded: bool,
}

impl<'a> Handshake<'a> {
    /// Connects this rank with all others.
    pub(super) fn run(rendezvous: &'a Rendezvous) -> Result<Connected, CollectiveError> {
        let started = Instant::now();
        loop {
            let mut handshake = Self::begin(rendezvous, started)?;
            let result = handshake.connect();
            if handshake.superseded && Instant::now() < handshake.deadline {
                continue;
            }
            handshake.publish(&result);
            return result;
        }
    }

    fn begin(rendezvous: &'a Rendezvous, started: Instant) -> Result<Self, CollectiveError> {
        let number = last_mesh(&*rendezvous.store)?.saturating_add(1);
        Ok(Self {
            rendezvous,
            started,
            deadline: started + rendezvous.timeout,
            number,
            addresses: Addresses::new(rendezvous, format!("everburn/mesh/{number}")),
            news: (Instant::now() + NEWS, NEWS),
            retry: RETRY,
            last_attempt: "they have not published an address in the store".to_owned(),
            superseded: false,
        })
    }

    /// Publishes the result of this rank's attempt, if it concerns the other ranks. An error of the store does
    /// not change the result.
    fn publish(&self, result: &Result<Connected, CollectiveError>) {
        let store = &*self.rendezvous.store;
        let (name, value) = match result {
            Ok(_) => (format!("made/{}", self.rendezvous.rank), "1".to_owned()),
            // So that other ranks do not wait for these two.
            Err(CollectiveError::WorldSize {
                rank,
                peer,
                ours,
                theirs,
            }) => (
                "failed".to_owned(),
                format!("{rank} {peer} {ours} {theirs}"),
            ),
            Err(_) => return,
        };
        let published = store
            .set(&self.addresses.key(&name), value.as_bytes())
            .and_then(|()| mark_last(store, self.number));
        if let Err(error) = published {
            tracing::debug!(%error, "the result of the mesh setup was not published");
        }
    }

    fn connect(&mut self) -> Result<Connected, CollectiveError> {
        let Rendezvous {
            rank,
            world_size,
            local_address,
            ..
        } = *self.rendezvous;
        if rank == 0 {
            self.addresses.session = Some(self.draw_session()?);
        }
        let action = format!("listen on {local_address}");
        let listening = Listening::bind(local_address, |_| ());
        let mut listening = Some(listening.map_err(|error| self.system(&action, &error))?);
        if let Some(listening) = &listening {
            self.addresses.publish(listening.address())?;
        }
        let mut connecting: Option<(Connector, Key)> = None;
        loop {
            if let Some(session) = &self.addresses.session
                && let Some(listening) = listening.take()
            {
                let key = self.mesh_key(session)?;
                let expected = Expected {
                    purpose: Purpose::Mesh,
                    rank,
                    world_size,
                    scope: self.number,
                    streams: 1,
                };
                let connector = Connector::start(listening, key.clone(), expected, |_| ());
                let connector = connector.map_err(|error| self.system(&action, &error))?;
                connecting = Some((connector, key));
            }
            if !self.addresses.complete {
                let left = self.deadline.saturating_duration_since(Instant::now());
                self.addresses.wait_for_all(self.news.1.min(left))?;
            }
            if let Some((connector, key)) = &mut connecting {
                self.dial_lower(connector)?;
                let lower = (0..rank).all(|peer| connector.is_connected(peer));
                let complete = |connector: &Connector| {
                    (0..world_size).all(|peer| peer == rank || connector.is_connected(peer))
                };
                if self.addresses.complete {
                    let until = match lower {
                        true => self.news.0,
                        false => Instant::now() + self.retry,
                    };
                    let until = self.deadline.min(until);
                    connector.acceptor.wait(until, |acceptor| {
                        complete(connector) || acceptor.other_world().is_some()
                    });
                }
                if let Some((peer, theirs)) = connector.acceptor.other_world() {
                    return Err(self.world_size_differs(peer, theirs));
                }
                if complete(connector) {
                    let streams = (0..world_size).map(|peer| connector.take(peer).pop());
                    return Ok(Connected {
                        streams: streams.collect(),
                        key: key.clone(),
                    });
                }
            }
            self.check_news(connecting.as_ref().map(|(connector, _)| connector))?;
        }
    }

    /// Rank 0 draws the number of this mesh.
    fn draw_session(&self) -> Result<String, CollectiveError> {
        let drawn = JobToken::random().map_err(|error| self.system("make a key", &error))?;
        let key = self.addresses.key("session");
        // An earlier attempt's stays: others may have read it.
        let store = &self.rendezvous.store;
        let session = store.compare_set(&key, b"", drawn.reveal().as_bytes())?;
        Ok(String::from_utf8_lossy(&session).into_owned())
    }

    /// The secret of this mesh: of the job's secret and of what rank 0 has drawn for this mesh alone, so that
    /// no rank of another mesh can take part in it. Without a job's secret, of the latter.
    fn mesh_key(&self, session: &str) -> Result<Key, CollectiveError> {
        let session: JobToken = session.parse().map_err(|error| {
            self.addresses
                .invalid(0, format!("the session in the store: {error}"))
        })?;
        Ok(match &self.rendezvous.key {
            Some(key) => key.derive("mesh").derive(session.reveal()),
            None => session.key("mesh"),
        })
    }

    /// Dials each lower rank that is not connected and whose address is known, once. One that does not accept is
    /// dialled again when its address has been read again: a rank that tries again listens elsewhere.
    fn dial_lower(&mut self, connector: &mut Connector) -> Result<(), CollectiveError> {
        let mut refused = false;
        while let Err(failed) = connector.dial(|peer| self.addresses.of(peer), self.deadline) {
            let FailedDial { peer, address, .. } = failed;
            match failed.error {
                DialError::WorldSize { theirs } => {
                    return Err(self.world_size_differs(peer, theirs));
                }
                DialError::Failed(reason) => {
                    // What the deadline cut short says less than the attempt before it.
                    if Instant::now() < self.deadline {
                        self.last_attempt = format!("dialling rank {peer} at {address}: {reason}");
                    }
                    self.addresses.forget(peer, self.retry);
                    refused = true;
                }
            }
        }
        if refused {
            self.retry = (2 * self.retry).min(LATER_NEWS);
        }
        Ok(())
    }

    /// Fails when the deadline has passed, another rank has reported a failure, or a rank has made this mesh
    /// with an earlier attempt of this one. `connector` has the connections.
    fn check_news(&mut self, connector: Option<&Connector>) -> Result<(), CollectiveError> {
        let now = Instant::now();
        let is_late = now >= self.deadline;
        let is_survey = is_late || self.addresses.is_survey_due();
        if !is_survey && now < self.news.0 {
            return Ok(());
        }
        let pause = (2 * self.news.1).min(LATER_NEWS);
        self.news = (now + pause, pause);
        let Rendezvous {
            store,
            rank,
            world_size,
            local_address,
            ..
        } = self.rendezvous;
        let arrived = |peer: usize| connector.is_some_and(|it| it.is_connected(peer));
        let others = (0..*world_size).filter(|peer| peer != rank);
        let unconnected: Vec<usize> = others.filter(|peer| !arrived(*peer)).collect();
        let failed = if is_survey {
            let survey = self.addresses.survey(&unconnected)?;
            self.superseded |= survey.superseded;
            survey.failed
        } else {
            store.try_get(&self.addresses.key("failed"))?
        };
        if let Some(news) = failed {
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
        if !self.superseded && !is_late {
            return Ok(());
        }
        // Ranks that have not even published an address are the ones to look for; a rank may be
        // unconnected merely because this one is still waiting for an earlier one.
        let absent = self.addresses.unpublished(&unconnected);
        let missing = if absent.is_empty() {
            unconnected
        } else {
            absent
        };
        Err(CollectiveError::Incomplete {
            rank: *rank,
            world_size: *world_size,
            missing,
            ranks_per_machine: self.rendezvous.ranks_per_machine,
            local_address: local_address.to_string().into(),
            waited: self.started.elapsed(),
            reason: self.last_attempt.as_str().into(),
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

    fn system(&self, action: &str, error: &impl ToString) -> CollectiveError {
        CollectiveError::System {
            rank: self.rendezvous.rank,
            action: action.to_owned(),
            reason: error.to_string(),
        }
    }
}
