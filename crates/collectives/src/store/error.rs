//! What can go wrong with a store operation.

use std::time::Duration;

use everburn_record::plain;

/// The longest part of a store's answer in an error, in characters.
const LONGEST_REASON: usize = 2000;

/// What can go wrong with a store operation.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use std::time::Duration;
/// use everburn::collectives::store::{HashStore, Store, StoreError};
///
/// let error = HashStore::new().get_within("address", Duration::from_millis(1)).unwrap_err();
/// assert!(matches!(error, StoreError::Timeout { keys, .. } if keys == ["address"]));
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The deadline passed before every key was there.
    #[error(
        "the store did not answer `{operation}` for {keys:?} within {waited:?}; \
         check that every rank has started and that none has ended with an error"
    )]
    Timeout {
        /// The operation that waited.
        operation: &'static str,
        /// The keys that were waited for.
        keys: Vec<String>,
        /// How long it waited.
        waited: Duration,
    },
    /// The store cannot be reached, or the connection broke.
    #[error(
        "the store at {address} cannot be reached{}: {}",
        match *operation {
            "connect" => String::new(),
            other => format!(" for `{other}`"),
        },
        plain::line(reason, LONGEST_REASON)
    )]
    Unreachable {
        /// Where the store is, as the user gave it.
        address: String,
        /// The operation that failed.
        operation: &'static str,
        /// The cause in words, with what to check.
        reason: String,
    },
    /// The server does not speak the store protocol, or the stored data are malformed.
    #[error(
        "protocol error of the store at {address}: {}",
        plain::line(reason, LONGEST_REASON)
    )]
    Protocol {
        /// The address of the store, or the path of its file.
        address: String,
        /// The violation, with what to check.
        reason: String,
    },
    /// The job tokens of the store and of this client do not match, or only one of them has a token.
    #[error(
        "authentication with the store at {address} failed: {}",
        plain::line(reason, LONGEST_REASON)
    )]
    Unauthenticated {
        /// The address of the store, as the user gave it.
        address: String,
        /// The mismatch, with what to check.
        reason: String,
    },
    /// The server has not taken a write and closed the connection on it. Writes have no reply of their
    /// own, so a later operation may be the one that finds out; that one was not carried out.
    #[error(
        "the store at {address} did not take `{operation}` of `{}`{others}: it closed the \
         connection, as it does where it is full or the value would be too long; look for its \
         warnings in the output of the process that hosts it (rank 0 or the launcher)",
        plain::line(key, LONGEST_REASON)
    )]
    WriteRefused {
        /// Where the store is, as the user gave it.
        address: String,
        /// The write, or the last of several that are in question.
        operation: &'static str,
        /// The key that it wrote; of a batch, the first.
        key: String,
        /// Which other writes are in question, in words; mostly empty.
        others: String,
    },
    /// The arguments can never succeed (a key or value too long, a counter that is not a number).
    #[error(
        "invalid store operation `{operation}`: {}",
        plain::line(reason, LONGEST_REASON)
    )]
    Invalid {
        /// The operation that was refused.
        operation: &'static str,
        /// What was wrong.
        reason: String,
    },
    /// Waiting is in vain, because a member of an elastic generation is gone.
    #[error(
        "generation {generation} is broken: {}; join the next round",
        plain::line(reason, LONGEST_REASON)
    )]
    RoundBroken {
        /// The generation.
        generation: u64,
        /// Who is gone, and how that is known.
        reason: String,
    },
    /// A server cannot listen there because another process does.
    #[error(
        "the store cannot listen on {address}: the address is in use by another process; \
         choose another port (MASTER_PORT, or `LaunchConfig::rendezvous`), unless a second process was started as rank 0 or \
         machine 0 (`ss -ltnp` shows who listens)"
    )]
    AddressInUse {
        /// The address that was asked for.
        address: String,
    },
}

impl StoreError {
    /// Whether the connection to a store broke that had been reached, as it does when its process or machine is lost.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Unreachable { operation, .. } if !matches!(*operation, "connect" | "listen"))
    }
}
