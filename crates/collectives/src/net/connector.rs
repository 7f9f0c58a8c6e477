//! The connections of a rank with others: it dials the lower ranks, and the higher ones dial it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use everburn_auth::Key;
use socket2::Socket;

use super::{Acceptor, DialError, Expected, Hello, Listening, dial};

/// Connections that are being made.
pub(crate) struct Connector {
    pub(crate) acceptor: Acceptor,
    key: Key,
    expected: Expected,
    /// Sets options of a socket that dials.
    prepare: fn(&Socket),
    /// By rank and connection index.
    dialled: HashMap<(usize, usize), TcpStream>,
}

#[derive(Debug)]
pub(crate) struct FailedDial {
    pub(crate) peer: usize,
    pub(crate) address: SocketAddr,
    pub(crate) error: DialError,
}

impl Connector {
    /// Accepts the connections that are `expected`, and dials as the same rank.
    pub(crate) fn start(
        listening: Listening,
        key: Key,
        expected: Expected,
        prepare: fn(&Socket),
    ) -> io::Result<Self> {
        Ok(Self {
            acceptor: listening.start(key.clone(), expected)?,
            key,
            expected,
            prepare,
            dialled: HashMap::new(),
        })
    }

    /// Makes the missing connections to the lower ranks whose addresses are known, up to the first failed attempt.
    pub(crate) fn dial(
        &mut self,
        address_of: impl Fn(usize) -> Option<SocketAddr>,
        deadline: Instant,
    ) -> Result<(), FailedDial> {
        let Expected {
            purpose,
            rank,
            world_size,
            scope,
            streams,
        } = self.expected;
        let known = (0..rank).filter_map(|peer| Some((peer, address_of(peer)?)));
        for (peer, address) in known {
            for index in 0..streams {
                let Entry::Vacant(place) = self.dialled.entry((peer, index)) else {
                    continue;
                };
                let hello = Hello {
                    purpose,
                    rank,
                    world_size,
                    scope,
                    index,
                };
                let stream = dial(address, self.prepare, &self.key, &hello, peer, deadline);
                place.insert(stream.map_err(|error| FailedDial {
                    peer,
                    address,
                    error,
                })?);
            }
        }
        Ok(())
    }

    pub(crate) fn is_connected(&self, peer: usize) -> bool {
        (0..self.expected.streams).all(|index| {
            self.dialled.contains_key(&(peer, index)) || self.acceptor.has(peer, index)
        })
    }

    /// Takes the connections to `peer`; dialled ones are blocking.
    pub(crate) fn take(&mut self, peer: usize) -> Vec<TcpStream> {
        let take = |index| {
            let dialled = self.dialled.remove(&(peer, index));
            dialled.or_else(|| self.acceptor.take(peer, index))
        };
        (0..self.expected.streams).filter_map(take).collect()
    }
}
