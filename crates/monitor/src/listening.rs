//! Accepts connections for the servers of this crate, within limits that strangers cannot exceed.

mod guests;

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use self::guests::{Pending, Refusals};
pub(crate) use self::guests::{PendingSlot, Why};
use crate::error::MonitorError;

/// How often the server looks whether it is to end; also its pause after an error that may last.
const PATIENCE: Duration = Duration::from_millis(200);

/// A listener and its thread. It ends when it is dropped, and with it all connections that are pending.
#[derive(Debug)]
pub(crate) struct Listening {
    address: SocketAddr,
    connections: Arc<Connections>,
    thread: Option<JoinHandle<()>>,
}

/// What all connections of a server have in common.
#[derive(Debug)]
pub(crate) struct Connections {
    closed: AtomicBool,
    pending: Arc<Pending>,
    refusals: Refusals,
}

impl Connections {
    /// Whether the server has ended.
    pub(crate) fn closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Counts a connection that was refused; a warning is logged once per second.
    pub(crate) fn refuse(&self, why: Why, from: SocketAddr) {
        self.refusals.count(why, from);
    }
}

impl Listening {
    /// Listens on `address`, `HOST:PORT`. `attend` gets each connection on a thread of its own; the connection counts
    /// as pending, and may have to make room for others, until its slot is dropped. `who` connects, for warnings.
    pub(crate) fn start<F>(
        address: &str,
        who: &'static str,
        attend: F,
    ) -> Result<Self, MonitorError>
    where
        F: Fn(&Connections, &TcpStream, SocketAddr, PendingSlot) + Send + Sync + 'static,
    {
        let failed = |error: io::Error| MonitorError::Listen {
            who,
            address: address.to_string(),
            reason: error.to_string(),
        };
        let addresses: Vec<SocketAddr> = address.to_socket_addrs().map_err(failed)?.collect();
        let listener = TcpListener::bind(&addresses[..]).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        let connections = Arc::new(Connections {
            closed: AtomicBool::new(false),
            pending: Arc::default(),
            refusals: Refusals::of(who),
        });
        let own = connections.clone();
        let attend = Arc::new(attend);
        let thread = std::thread::Builder::new()
            .name(format!("everburn-{who}"))
            .spawn(move || accept_all(&listener, &own, &attend))
            .map_err(failed)?;
        Ok(Self {
            address: bound,
            connections,
            thread: Some(thread),
        })
    }

    /// Where it listens; the port is the real one where 0 was asked for.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.connections.closed.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // An error would be a panic, which has told of itself.
            let _ = thread.join();
        }
        self.connections.pending.close();
    }
}

fn accept_all<F>(listener: &TcpListener, connections: &Arc<Connections>, attend: &Arc<F>)
where
    F: Fn(&Connections, &TcpStream, SocketAddr, PendingSlot) + Send + Sync + 'static,
{
    while !connections.closed() {
        if let Some(warning) = connections.refusals.due(Instant::now()) {
            tracing::warn!("{warning}");
        }
        let mut waited = [PollFd::new(listener, PollFlags::IN)];
        let patience = Timespec::try_from(PATIENCE).ok();
        let accepted = poll(&mut waited, patience.as_ref())
            .map_err(io::Error::from)
            .and_then(|_| listener.accept());
        let received =
            accepted.and_then(|(connection, from)| receive(connections, attend, connection, from));
        if let Err(error) = received
            && let Some(pause) = pause_after(&error)
        {
            tracing::debug!("no connection can be received: {error}");
            std::thread::sleep(pause);
        }
    }
}

/// How long to wait after an error before the next connection. Where descriptors or memory are exhausted, the
/// connection stays in the queue, and the next attempt would fail at once, again and again.
fn pause_after(error: &io::Error) -> Option<Duration> {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted, WouldBlock};
    match error.kind() {
        WouldBlock | Interrupted | ConnectionAborted | ConnectionReset => None,
        _ => Some(PATIENCE),
    }
}

fn receive<F>(
    connections: &Arc<Connections>,
    attend: &Arc<F>,
    connection: TcpStream,
    from: SocketAddr,
) -> io::Result<()>
where
    F: Fn(&Connections, &TcpStream, SocketAddr, PendingSlot) + Send + Sync + 'static,
{
    connection.set_nonblocking(false)?;
    let connection = Arc::new(connection);
    let (slot, left) = connections.pending.enter(connection.clone());
    if let Some(left) = left {
        connections.refuse(Why::Crowded, left);
    }
    let (own, attend) = (connections.clone(), attend.clone());
    let thread = std::thread::Builder::new().name("everburn-attend".to_string());
    let work = move || attend(&own, &connection, from, slot);
    thread.spawn(work).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_that_lasts_is_followed_by_a_pause() {
        use rustix::io::Errno;
        for lasting in [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM] {
            assert!(pause_after(&lasting.into()).is_some(), "{lasting}");
        }
        for passing in [Errno::AGAIN, Errno::INTR, Errno::CONNABORTED] {
            assert_eq!(pause_after(&passing.into()), None, "{passing}");
        }
    }
}
