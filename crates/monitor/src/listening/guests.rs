//! Connections that have not authenticated yet, and those that were refused.

use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use everburn_record::sync::lock;

/// The most connections in their handshake.
const MOST_PENDING: usize = 32;

/// The most of them from one address.
const MOST_OF_ADDRESS: usize = 8;

/// How long refusals are collected before the next warning.
const WARNING: Duration = Duration::from_secs(1);

/// The connections in their handshake. If there are too many, the oldest is closed for a new one: it has
/// had its time, and a monitor needs only a moment.
#[derive(Debug, Default)]
pub(crate) struct Pending(Mutex<Vec<Arc<TcpStream>>>);

/// A slot among the pending connections, freed on drop.
#[derive(Debug)]
pub(crate) struct PendingSlot {
    pending: Arc<Pending>,
    connection: Arc<TcpStream>,
}

impl Pending {
    /// Adds a connection. Returns the address of the one closed for it, if any.
    pub(crate) fn enter(
        self: &Arc<Self>,
        connection: Arc<TcpStream>,
    ) -> (PendingSlot, Option<SocketAddr>) {
        let mut pending = lock(&self.0);
        let own = network(&connection);
        let of_own = pending.iter().filter(|it| network(it) == own).count();
        let leaves = match (of_own >= MOST_OF_ADDRESS, pending.len() >= MOST_PENDING) {
            (true, _) => pending.iter().position(|it| network(it) == own),
            (false, true) => Some(oldest_of_most(&pending)),
            (false, false) => None,
        };
        let left = leaves.map(|place| pending.remove(place)).and_then(|left| {
            end(&left);
            left.peer_addr().ok()
        });
        pending.push(connection.clone());
        let slot = PendingSlot {
            pending: self.clone(),
            connection,
        };
        (slot, left)
    }

    /// Ends all of them.
    pub(crate) fn close(&self) {
        lock(&self.0).iter().for_each(|connection| end(connection));
    }
}

impl PendingSlot {
    /// Frees the place. `false` if the connection had to make room for another before.
    pub(crate) fn leave(self) -> bool {
        self.free()
    }

    fn free(&self) -> bool {
        let mut pending = lock(&self.pending.0);
        let before = pending.len();
        pending.retain(|it| !Arc::ptr_eq(it, &self.connection));
        pending.len() < before
    }
}

impl Drop for PendingSlot {
    fn drop(&mut self) {
        self.free();
    }
}

fn end(connection: &TcpStream) {
    // It may have ended by itself.
    let _ = connection.shutdown(Shutdown::Both);
}

/// The address whose connections are counted together: all of a /64 of IPv6 may be one machine.
fn network(connection: &TcpStream) -> Option<IpAddr> {
    let address = connection.peer_addr().ok()?.ip().to_canonical();
    Some(match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() & (u128::MAX << 64)).into()),
    })
}

/// The oldest connection of the address that has the most.
fn oldest_of_most(pending: &[Arc<TcpStream>]) -> usize {
    let networks: Vec<_> = pending.iter().map(|it| network(it)).collect();
    let count = |own: &Option<IpAddr>| networks.iter().filter(|it| *it == own).count();
    // `max_by_key` takes the last of several.
    let slots = (0..networks.len()).rev();
    slots
        .max_by_key(|place| count(&networks[*place]))
        .unwrap_or(0)
}

/// Why a connection was refused.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Why {
    /// It left, was too slow, or its proof was wrong.
    Unproved,
    /// It made room for a newer one before it had proved anything.
    Crowded,
    /// There are as many as there may be.
    Full,
}

/// Refusals, told in one warning per second.
#[derive(Debug)]
pub(crate) struct Refusals {
    /// Who was refused, such as `monitors`.
    who: &'static str,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    counts: [u64; 3],
    last: Option<SocketAddr>,
    told: Option<Instant>,
}

impl Refusals {
    pub(crate) fn of(who: &'static str) -> Self {
        Self {
            who,
            counts: Mutex::default(),
        }
    }

    pub(crate) fn count(&self, why: Why, from: SocketAddr) {
        let mut counts = lock(&self.counts);
        counts.counts[why as usize] += 1;
        counts.last = Some(from);
    }

    /// The warning that is due, if one is.
    pub(crate) fn due(&self, now: Instant) -> Option<String> {
        let mut counts = lock(&self.counts);
        let last = counts.last?;
        let recent = |told: Instant| now.saturating_duration_since(told) < WARNING;
        if counts.told.is_some_and(recent) {
            return None;
        }
        counts.last = None;
        counts.told = Some(now);
        let [unproved, crowded, full] = std::mem::take(&mut counts.counts);
        let all = unproved + crowded + full;
        let parts = [
            (unproved, "did not prove that they have the job's token"),
            (crowded, "made room for newer ones before they had"),
            (
                full,
                "came when there were as many connections as there may be",
            ),
        ];
        let parts = parts.iter().filter(|(count, _)| *count > 0);
        let parts: Vec<String> = parts.map(|(count, why)| format!("{count} {why}")).collect();
        Some(format!(
            "{} refused: {all}, the last from {last} ({})",
            self.who,
            parts.join("; ")
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpListener;

    use super::*;

    fn accepted(listener: &TcpListener) -> (Arc<TcpStream>, TcpStream) {
        let far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        far.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        (Arc::new(listener.accept().unwrap().0), far)
    }

    #[test]
    fn the_oldest_of_an_address_makes_room() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let pending = Arc::new(Pending::default());
        let mut slots = Vec::new();
        for _ in 0..MOST_OF_ADDRESS {
            let (near, far) = accepted(&listener);
            let (slot, left) = pending.enter(near);
            assert_eq!(left, None);
            slots.push((slot, far));
        }
        let (near, _far) = accepted(&listener);
        let (newest, left) = pending.enter(near);
        assert_eq!(left, Some(slots[0].1.local_addr().unwrap()));
        assert_eq!(slots[0].1.read(&mut [0]).unwrap(), 0, "it was not closed");
        assert_eq!(lock(&pending.0).len(), MOST_OF_ADDRESS);
        // A dropped slot is free; the connection closed for another frees no slot.
        drop(slots);
        assert_eq!(lock(&pending.0).len(), 1);
        drop(newest);
        assert_eq!(lock(&pending.0).len(), 0);
    }

    #[test]
    fn refusals_are_one_warning_per_second() {
        let refusals = Refusals::of("monitors");
        let now = Instant::now();
        let from = |port| SocketAddr::from(([127, 0, 0, 1], port));
        assert_eq!(refusals.due(now), None);
        refusals.count(Why::Unproved, from(1));
        let first = refusals.due(now).unwrap();
        assert!(
            first.contains("refused: 1") && first.contains("127.0.0.1:1"),
            "{first}"
        );
        for port in 1..=1000 {
            refusals.count(Why::Crowded, from(port));
        }
        refusals.count(Why::Unproved, from(9));
        assert_eq!(refusals.due(now + WARNING / 2), None);
        let second = refusals.due(now + WARNING).unwrap();
        assert!(second.contains("1001") && second.contains("1000 made room"));
        assert_eq!(refusals.due(now + 5 * WARNING), None);
    }
}
