//! The limit on pending (unauthenticated) connections, and which one is closed when it is exceeded.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

/// The id of a connection: unique and increasing.
pub(crate) type ConnectionId = usize;

/// The pending connections of a listener. Ids grow, so the oldest has the smallest.
#[derive(Debug)]
pub(crate) struct PendingQuota {
    addresses: HashMap<ConnectionId, IpAddr>,
    all: BTreeSet<ConnectionId>,
    of_address: HashMap<IpAddr, BTreeSet<ConnectionId>>,
    limit: usize,
    limit_per_address: usize,
}

impl PendingQuota {
    pub(crate) fn new(limit: usize, limit_per_address: usize) -> Self {
        Self {
            addresses: HashMap::new(),
            all: BTreeSet::new(),
            of_address: HashMap::new(),
            limit,
            limit_per_address,
        }
    }

    /// Adds a connection and returns the one to close, if a limit is exceeded: the oldest of the same
    /// address, else the oldest of all. An honest client finishes its handshake within two round trips,
    /// so a flood evicts its own connections.
    pub(crate) fn add(&mut self, id: ConnectionId, address: IpAddr) -> Option<ConnectionId> {
        let address = address.to_canonical();
        self.addresses.insert(id, address);
        self.all.insert(id);
        let siblings = self.of_address.entry(address).or_default();
        siblings.insert(id);
        if siblings.len() > self.limit_per_address {
            return siblings.first().copied();
        }
        self.all
            .first()
            .copied()
            .filter(|_| self.all.len() > self.limit)
    }

    pub(crate) fn remove(&mut self, id: ConnectionId) {
        let Some(address) = self.addresses.remove(&id) else {
            return;
        };
        self.all.remove(&id);
        if let Some(siblings) = self.of_address.get_mut(&address) {
            siblings.remove(&id);
            if siblings.is_empty() {
                self.of_address.remove(&address);
            }
        }
    }

    pub(crate) fn oldest(&self) -> Option<ConnectionId> {
        self.all.first().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const OTHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    #[test]
    fn the_oldest_is_closed_first_and_an_address_evicts_its_own_connections() {
        let mut pending = PendingQuota::new(5, 3);
        assert_eq!(pending.add(1, OTHER), None);
        for id in 2..=4 {
            assert_eq!(pending.add(id, ONE), None);
        }
        // The same address in the other family's form.
        let mapped = "::ffff:10.0.0.1".parse().unwrap();
        assert_eq!(pending.add(5, mapped), Some(2), "not 1, which is older");
        pending.remove(2);
        assert_eq!(pending.add(6, OTHER), None);
        assert_eq!(pending.add(7, OTHER), Some(1), "too many in all");
        pending.remove(1);
        assert_eq!(pending.oldest(), Some(3));
    }

    #[test]
    fn authenticated_connections_do_not_count() {
        let mut pending = PendingQuota::new(2, 2);
        for id in 1..100 {
            assert_eq!(pending.add(id, ONE), None);
            pending.remove(id);
        }
        assert_eq!(pending.oldest(), None);
        assert!(pending.of_address.is_empty() && pending.addresses.is_empty());
    }
}
