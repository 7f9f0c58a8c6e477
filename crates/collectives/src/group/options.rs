//! How a group behaves.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::algorithm::Algorithm;
use super::signature::Operation;

/// The deadline of operations where neither the options nor a rendezvous gives one.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

/// What carries the data of collectives between two ranks.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::group::TransportKind;
///
/// assert_eq!("shm".parse(), Ok(TransportKind::SharedMemory));
/// assert_eq!(TransportKind::Auto.to_string(), "auto");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum TransportKind {
    /// Shared memory between the ranks of one machine, TCP between machines. Where shared memory
    /// cannot be had, TCP, with a warning that says why.
    #[default]
    Auto,
    /// Shared memory; an error where two ranks cannot share any.
    SharedMemory,
    /// TCP between all ranks.
    Tcp,
}

impl TransportKind {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::Auto, Self::SharedMemory, Self::Tcp];

    /// The name, as [`TransportKind::from_str`] reads it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::SharedMemory => "shm",
            Self::Tcp => "tcp",
        }
    }
}

impl fmt::Display for TransportKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for TransportKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == text);
        found.ok_or_else(|| format!("there is no transport `{text}`; choose auto, shm or tcp"))
    }
}

/// In which order reductions combine the ranks' contributions. All ranks hold the same bits
/// either way.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::group::{GroupOptions, ReductionOrder};
///
/// // The same bits over any transport.
/// let options = GroupOptions { order: ReductionOrder::Rank, ..GroupOptions::default() };
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ReductionOrder {
    /// Whichever the fastest algorithm has.
    #[default]
    Free,
    /// In rank order: only [`Algorithm::Flat`] and [`Algorithm::Direct`] are chosen.
    Rank,
}

/// How a group behaves; the same on all its ranks.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use std::time::Duration;
/// use everburn::collectives::group::{GroupOptions, TransportKind};
///
/// let options = GroupOptions {
///     timeout: Some(Duration::from_secs(60)),
///     transport: TransportKind::Tcp,
///     ..Default::default()
/// };
/// assert_eq!(options.max_message_bytes, 4 << 30);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupOptions {
    /// The timeout of every operation; `None` takes that of the rendezvous, or [`DEFAULT_TIMEOUT`] without
    /// one.
    pub timeout: Option<Duration>,
    /// The longest message between two ranks, in bytes. The sender refuses longer ones; a peer that sends
    /// one is disconnected.
    pub max_message_bytes: u64,
    /// The limit on unreceived bytes of a rank, over all peers. Above it, and for one peer above half of
    /// it, senders are paused. A single message may be longer: a peer without unreceived messages may
    /// always send one.
    pub max_unreceived_bytes: u64,
    /// The transport of the data of collectives.
    pub transport: TransportKind,
    /// The order in which reductions combine ranks.
    pub order: ReductionOrder,
    /// One algorithm for all messages, for measurements and tests; `None` chooses by path, ranks and
    /// bytes.
    pub algorithm: Option<Algorithm>,
}

impl Default for GroupOptions {
    /// No timeout of its own, 4 GiB a message and 1 GiB that wait, and whatever is fastest.
    fn default() -> Self {
        Self {
            timeout: None,
            max_message_bytes: 4 << 30,
            max_unreceived_bytes: 1 << 30,
            transport: TransportKind::Auto,
            order: ReductionOrder::Free,
            algorithm: None,
        }
    }
}

impl GroupOptions {
    /// What stands for `algorithm` in `operation` and under the order that is asked for.
    pub(crate) fn restrict(&self, operation: Operation, algorithm: Algorithm) -> Algorithm {
        let restricted = operation != Operation::AllReduce || self.order == ReductionOrder::Rank;
        if restricted {
            return algorithm.simplified();
        }
        algorithm
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transports_are_read_back() {
        for kind in TransportKind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        let error = "udp".parse::<TransportKind>().unwrap_err();
        assert!(error.contains("choose auto, shm or tcp"), "{error}");
    }
}
