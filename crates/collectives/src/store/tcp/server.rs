//! The server: a listener and the one thread that serves it.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::event_loop::{Control, EventLoop};
use super::{StoreAccess, StoreOptions};
use crate::store::{StoreError, raise_descriptor_limit};
use crate::sync::lock;

/// Connections that may wait to be accepted: a thousand ranks start at the same moment.
const BACKLOG: i32 = 4096;

/// Serves a store to [`TcpStore`](super::TcpStore) clients and to those of PyTorch.
///
/// One thread serves all clients by readiness: a rank costs a socket and a small buffer, and a
/// thousand of them no thousand stacks. The server stops and its port is free when it is dropped.
///
/// # Trust
/// [`StoreOptions::access`] says who is served, on loopback as elsewhere. PyTorch's clients cannot prove a
/// job token, so they need [`StoreAccess::Open`], and so does everybody else then.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn_auth::JobToken;
/// use everburn::collectives::store::{Store, StoreAccess, StoreOptions, TcpStore, TcpStoreServer};
///
/// let options = StoreOptions::new(StoreAccess::Token(JobToken::random()?));
/// let server = TcpStoreServer::bind("127.0.0.1:0".parse()?, options.clone())?;
/// let address = server.local_addr().to_string();
/// let store = TcpStore::connect(&address, options)?;
/// store.set("key", b"value")?;
/// assert_eq!(store.get("key")?, b"value");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct TcpStoreServer {
    local_addr: SocketAddr,
    control: Arc<Control>,
    thread: Option<JoinHandle<()>>,
}

impl TcpStoreServer {
    /// Listens on `address` (port 0 for any free one) and serves an empty store.
    ///
    /// # Errors
    /// [`StoreError::AddressInUse`] when another process listens there,
    /// [`StoreError::Unreachable`] when the machine cannot listen there for another reason.
    pub fn bind(address: SocketAddr, options: StoreOptions) -> Result<Self, StoreError> {
        let listener = listen(address).map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => StoreError::AddressInUse {
                address: address.to_string(),
            },
            _ => cannot_listen(address, &error),
        })?;
        Self::from_listener(listener, options)
    }

    /// Serves an empty store on a listener that is bound already, as a launcher hands it on.
    ///
    /// # Errors
    /// [`StoreError::Unreachable`] when the listener cannot be used.
    pub fn from_listener(listener: TcpListener, options: StoreOptions) -> Result<Self, StoreError> {
        let unbound = SocketAddr::from(([0, 0, 0, 0], 0));
        let local_addr = listener
            .local_addr()
            .map_err(|error| cannot_listen(unbound, &error))?;
        if options.access == StoreAccess::Open && !local_addr.ip().to_canonical().is_loopback() {
            tracing::warn!(
                "the store at {local_addr} is open: everybody who can reach this address can read \
                 and change every key of the job"
            );
        }
        let failed = |error: io::Error| cannot_listen(local_addr, &error);
        if let Err(error) = raise_descriptor_limit() {
            tracing::debug!("the limit of open descriptors stays as it is: {error}");
        }
        // The standard library asks for 128 only; listening again changes that.
        SockRef::from(&listener).listen(BACKLOG).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let (events, control) = EventLoop::new(listener, options).map_err(failed)?;
        let thread = std::thread::Builder::new()
            .name("everburn-store".into())
            .spawn(move || events.run())
            .map_err(failed)?;
        Ok(Self {
            local_addr,
            control,
            thread: Some(thread),
        })
    }

    /// Where the server listens, with the port that port 0 has become.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// How many connections are open now.
    #[must_use]
    pub fn connections(&self) -> usize {
        *lock(&self.control.connections)
    }

    /// How many bytes the store holds for its clients now, as counted by
    /// [`StoreOptions::max_stored_bytes`].
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.control.held_bytes.load(Ordering::Relaxed)
    }

    /// How many requests the store has carried out since its start.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.control.requests.load(Ordering::Relaxed)
    }

    /// Who was refused last and why, as in `10.0.0.2: its job token does not match`, as far as it was logged.
    #[must_use]
    pub fn refused(&self) -> Option<String> {
        lock(&self.control.refused).clone()
    }

    /// Waits until no connection is open; returns false when `deadline` passes first.
    ///
    /// Who hosts the store for others calls this before dropping it, so that they can finish.
    #[must_use]
    pub fn wait_until_unused(&self, deadline: Duration) -> bool {
        self.control.wait_until_unused(deadline)
    }
}

impl Drop for TcpStoreServer {
    fn drop(&mut self) {
        self.control.stop();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the store's server thread has panicked");
        }
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    // Lets a restarted job have the port while connections of the last one fade away.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

fn cannot_listen(address: SocketAddr, error: &io::Error) -> StoreError {
    let hint = match error.kind() {
        io::ErrorKind::AddrNotAvailable => "; it is not an address of this machine",
        io::ErrorKind::PermissionDenied => "; ports below 1024 need privileges",
        _ => "",
    };
    StoreError::Unreachable {
        address: address.to_string(),
        operation: "listen",
        reason: format!("{error}{hint}"),
    }
}
