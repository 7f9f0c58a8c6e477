//! PyTorch's TCP store: its protocol on the wire, a server and a client.

mod client;
mod client_requests;
mod client_waits;
mod connect;
mod connection;
mod contents;
mod event_loop;
mod fault;
mod greeting;
#[cfg(any(test, fuzzing))]
pub(super) mod hostile;
mod peer;
mod requests;
mod server;
mod shared_connection;
mod wire;

use std::time::Duration;

use everburn_auth::{JobToken, Key};

pub use client::TcpStore;
pub use connect::nobody_listens;
pub(crate) use connect::resolve;
pub(crate) use connection::{Deadline, random_u64};
#[cfg(any(test, fuzzing))]
pub use contents::hostile::store_requests;
pub use server::TcpStoreServer;
pub use wire::AUTH_OPCODE;

use super::DEFAULT_STORE_TIMEOUT;
use crate::rendezvous::WaitListener;

/// The key at which a server keeps the addresses that did not prove the job's secret, and why: ranks that wait say so.
pub(crate) const REFUSED_KEY: &str = "everburn/store/refused";

/// Who may use a store.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn_auth::JobToken;
/// use everburn::collectives::store::{Store, StoreAccess, StoreOptions, TcpStore, TcpStoreServer};
///
/// let ours = StoreOptions::new(StoreAccess::Token(JobToken::random()?));
/// let server = TcpStoreServer::bind("127.0.0.1:0".parse()?, ours.clone())?;
/// let address = server.local_addr().to_string();
/// assert_eq!(TcpStore::connect(&address, ours)?.add("n", 1)?, 1);
/// let no_token = StoreOptions::new(StoreAccess::Open);
/// assert!(TcpStore::connect(&address, no_token).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreAccess {
    /// The processes that have the secret of the job. Server and client prove to each other that
    /// they have it before anything else is said, and the secret itself is not sent. What follows
    /// is not encrypted.
    Token(JobToken),
    /// Everybody who can reach the address, which on loopback is every user of the machine: they
    /// can read, change and delete every key. PyTorch's `TCPStore` is such a store, and its clients
    /// can use no other.
    Open,
}

impl StoreAccess {
    /// The key of both sides of a connection; `None` where the store is open.
    fn key(&self) -> Option<Key> {
        match self {
            Self::Token(token) => Some(Self::key_of(token)),
            Self::Open => None,
        }
    }

    fn key_of(token: &JobToken) -> Key {
        token.key("store")
    }
}

/// The settings of a [`TcpStoreServer`] or a [`TcpStore`].
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use std::time::Duration;
/// use everburn::collectives::store::{StoreAccess, StoreOptions};
///
/// let options = StoreOptions {
///     timeout: Duration::from_secs(30),
///     ..StoreOptions::new(StoreAccess::Open)
/// };
/// assert_eq!(options.request_timeout, Duration::from_secs(60));
/// ```
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// Server: who may use the store. Client: which kind of store it takes for its own.
    pub access: StoreAccess,
    /// Client: the deadline for connecting, and of operations that are given none.
    pub timeout: Duration,
    /// Client: who learns that the store is not reached, after ten seconds and then once per minute; the log, if `None`.
    pub on_wait: Option<WaitListener>,
    /// Server: how long a new connection may take to show that it is a client.
    pub handshake_timeout: Duration,
    /// Server: how long a client may take to send one request, or to take its reply.
    pub request_timeout: Duration,
    /// Server: the most connections held at a time; more are closed as they come.
    pub max_connections: usize,
    /// Server: the most connections that have not shown yet that they are clients. When one more
    /// comes, the oldest of them is closed.
    pub max_pending: usize,
    /// Server: the same of one remote address. The ranks of a machine, which start at the same
    /// moment, come from one.
    pub max_pending_per_address: usize,
    /// Server: the most bytes held for clients in all: keys and values, waits, requests that have
    /// not come to their end, and replies that have not been read. A request beyond is refused and
    /// its connection closed. Outside of it are 4 KiB of each of a connection's two buffers, which
    /// `max_connections` bounds.
    pub max_stored_bytes: usize,
}

impl StoreOptions {
    /// The usual limits. There is no default for `access`, and an open store holds less: 24 MiB
    /// instead of 1 GiB, and 2048 connections instead of 16,384, since everybody can fill it. Together
    /// that is 40 MiB at the most.
    #[must_use]
    pub const fn new(access: StoreAccess) -> Self {
        let (max_stored_bytes, max_connections) = match access {
            StoreAccess::Token(_) => (1 << 30, 16_384),
            StoreAccess::Open => (24 << 20, 2048),
        };
        Self {
            access,
            timeout: DEFAULT_STORE_TIMEOUT,
            on_wait: None,
            handshake_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(60),
            max_connections,
            max_pending: 4096,
            max_pending_per_address: 2048,
            max_stored_bytes,
        }
    }
}
