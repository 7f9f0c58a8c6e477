//! PyTorch's TCP store: its protocol on the wire, a server and a client.

mod client;
mod client_batches;
mod connect;
mod connection;
mod contents;
mod event_loop;
#[cfg(any(test, fuzzing))]
pub(super) mod hostile;
mod line;
mod peer;
mod requests;
mod server;
mod wire;

use std::time::Duration;

pub use client::TcpStore;
pub(crate) use connect::{resolve, split};
pub(crate) use connection::{Deadline, random_u64};
#[cfg(any(test, fuzzing))]
pub use contents::hostile::store_requests;
pub use server::TcpStoreServer;
pub use wire::AUTH_OPCODE;

use super::DEFAULT_STORE_TIMEOUT;

/// What a [`TcpStoreServer`] or a [`TcpStore`] is told beside its address.
///
/// ```
/// use std::time::Duration;
/// use everburn_collectives::store::StoreOptions;
///
/// let options = StoreOptions {
///     timeout: Duration::from_secs(30),
///     ..StoreOptions::default()
/// };
/// assert!(options.job_token.is_none());
/// ```
#[derive(Clone)]
pub struct StoreOptions {
    /// The secret of the job, at most 1,024 bytes. A server with a token serves nobody without it,
    /// and a server on an address other than loopback must have one. It keeps strangers out; it
    /// crosses the network as it is, so it is no protection against those who can read the traffic.
    pub job_token: Option<String>,
    /// Client: the deadline for connecting, and of operations that are given none.
    pub timeout: Duration,
    /// Server: how long a new connection may take to show that it is a client.
    pub handshake_timeout: Duration,
    /// Server: how long a client may take to send one request, or to take its reply.
    pub request_timeout: Duration,
    /// Server: the most connections held at a time; more are closed as they come.
    pub max_connections: usize,
    /// Server: the most bytes of keys and values held in all; a request beyond is refused.
    pub max_stored_bytes: usize,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            job_token: None,
            timeout: DEFAULT_STORE_TIMEOUT,
            handshake_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(60),
            max_connections: 16_384,
            max_stored_bytes: 1 << 30,
        }
    }
}

impl std::fmt::Debug for StoreOptions {
    /// Leaves the token out: options end up in logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreOptions")
            .field("job_token", &self.job_token.as_ref().map(|_| "(secret)"))
            .field("timeout", &self.timeout)
            .field("handshake_timeout", &self.handshake_timeout)
            .field("request_timeout", &self.request_timeout)
            .field("max_connections", &self.max_connections)
            .field("max_stored_bytes", &self.max_stored_bytes)
            .finish()
    }
}
