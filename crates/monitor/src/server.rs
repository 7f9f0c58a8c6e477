//! Serves a run to monitors on other machines: they read its folder's content, and cannot change anything.

mod guests;

use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use everburn_auth::{JobToken, Key};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use self::guests::{Pending, PendingSlot, Refusals, Why};
use crate::error::MonitorError;
use crate::tail::RunTail;
use crate::wire::{self, Paced};

/// How often a run is looked at for each monitor.
const LOOK: Duration = Duration::from_millis(250);

/// How long the whole handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// How long a monitor may take for a piece of what it is sent.
const SLOWEST: Duration = Duration::from_secs(10);

/// How many monitors there may be at a time.
const MOST_MONITORS: usize = 32;

/// How often the server looks whether it is to end; also its pause after an error that may last.
const PATIENCE: Duration = Duration::from_millis(200);

/// A server of one run. It ends when it is dropped.
///
/// ```
/// use everburn_auth::JobToken;
/// use everburn_monitor::{MonitorServer, Target};
///
/// let folder = tempfile::tempdir().unwrap();
/// std::fs::write(folder.path().join("config.toml"), "model = 'mnist'").unwrap();
/// let token = JobToken::random().unwrap();
/// let server = MonitorServer::start("127.0.0.1:0", folder.path(), &token)?;
/// let target: Target = server.address().to_string().parse().unwrap();
/// let mut source = target.open(Some(&token))?;
/// # Ok::<(), everburn_monitor::MonitorError>(())
/// ```
#[derive(Debug)]
pub struct MonitorServer {
    address: SocketAddr,
    serving: Arc<Serving>,
    thread: Option<JoinHandle<()>>,
}

/// What all connections have in common.
#[derive(Debug)]
struct Serving {
    folder: PathBuf,
    key: Key,
    closed: AtomicBool,
    pending: Arc<Pending>,
    monitors: AtomicUsize,
    refusals: Refusals,
}

impl MonitorServer {
    /// Serves the run in `folder` on `address`, `HOST:PORT`, to monitors that know `token`, on loopback too:
    /// other users of this machine can connect there.
    ///
    /// # Errors
    /// [`MonitorError::Listen`] if the address cannot be had; as [`RunTail::open`].
    pub fn start(address: &str, folder: &Path, token: &JobToken) -> Result<Self, MonitorError> {
        RunTail::open(folder)?;
        let failed = |error: io::Error| MonitorError::Listen {
            address: address.to_string(),
            reason: error.to_string(),
        };
        let addresses: Vec<SocketAddr> = address.to_socket_addrs().map_err(failed)?.collect();
        let listener = TcpListener::bind(&addresses[..]).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        let serving = Arc::new(Serving {
            folder: folder.to_path_buf(),
            key: wire::key(token),
            closed: AtomicBool::new(false),
            pending: Arc::default(),
            monitors: AtomicUsize::new(0),
            refusals: Refusals::default(),
        });
        let own = serving.clone();
        let thread = std::thread::Builder::new()
            .name("everburn-monitors".to_string())
            .spawn(move || accept_all(&listener, &own))
            .map_err(failed)?;
        Ok(Self {
            address: bound,
            serving,
            thread: Some(thread),
        })
    }

    /// Where it listens; the port is the real one where 0 was asked for.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The command by which a monitor connects with `token`, for the user's own terminal: it shows the token.
    ///
    /// ```
    /// use everburn_auth::JobToken;
    /// use everburn_monitor::MonitorServer;
    ///
    /// let folder = tempfile::tempdir().unwrap();
    /// std::fs::write(folder.path().join("config.toml"), "model = 'mnist'").unwrap();
    /// let token: JobToken = "correct horse battery staple".parse().unwrap();
    /// let server = MonitorServer::start("127.0.0.1:0", folder.path(), &token)?;
    /// let command = server.invitation(&token);
    /// let end = format!(" everburn monitor {}", server.address());
    /// assert!(command.starts_with("EVERBURN_JOB_TOKEN='correct") && command.ends_with(&end));
    /// # Ok::<(), everburn_monitor::MonitorError>(())
    /// ```
    #[must_use]
    pub fn invitation(&self, token: &JobToken) -> String {
        let quoted = token.reveal().replace('\'', r"'\''");
        let address = match self.address.ip().is_unspecified() {
            // The name by which others reach this machine is not known here.
            true => format!("HOST:{}", self.address.port()),
            false => self.address.to_string(),
        };
        format!("EVERBURN_JOB_TOKEN='{quoted}' everburn monitor {address}")
    }
}

impl Drop for MonitorServer {
    fn drop(&mut self) {
        self.serving.closed.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // An error would be a panic, which has told of itself.
            let _ = thread.join();
        }
        self.serving.pending.close();
    }
}

fn accept_all(listener: &TcpListener, serving: &Arc<Serving>) {
    while !serving.closed.load(Ordering::Relaxed) {
        if let Some(warning) = serving.refusals.due(Instant::now()) {
            tracing::warn!("{warning}");
        }
        let mut waited = [PollFd::new(listener, PollFlags::IN)];
        let patience = Timespec::try_from(PATIENCE).ok();
        let accepted = poll(&mut waited, patience.as_ref())
            .map_err(io::Error::from)
            .and_then(|_| listener.accept());
        let received = accepted.and_then(|(connection, from)| receive(serving, connection, from));
        if let Err(error) = received
            && let Some(pause) = pause_after(&error)
        {
            tracing::debug!("no monitor can be received: {error}");
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

fn receive(serving: &Arc<Serving>, connection: TcpStream, from: SocketAddr) -> io::Result<()> {
    let connection = Arc::new(connection);
    let (slot, left) = serving.pending.enter(connection.clone());
    if let Some(left) = left {
        serving.refusals.count(Why::Crowded, left);
    }
    let own = serving.clone();
    let thread = std::thread::Builder::new().name("everburn-monitor".to_string());
    let work = move || attend(&own, &connection, from, slot);
    thread.spawn(work).map(drop)
}

/// One connection, from its handshake to its end.
fn attend(serving: &Serving, connection: &TcpStream, from: SocketAddr, slot: PendingSlot) {
    let proved = introduce(serving, connection);
    let had_to_leave = !slot.leave();
    if let Err(refusal) = proved {
        tracing::debug!("the monitor from {from} is refused: {refusal:?}");
        if !had_to_leave {
            serving.refusals.count(Why::Unproved, from);
        }
        return;
    }
    if serving.monitors.fetch_add(1, Ordering::Relaxed) >= MOST_MONITORS {
        serving.refusals.count(Why::Full, from);
    } else if let Err(error) = serve(serving, connection) {
        // A monitor that leaves is no error.
        tracing::debug!("the monitor from {from} has left: {error}");
    }
    serving.monitors.fetch_sub(1, Ordering::Relaxed);
}

fn introduce(serving: &Serving, connection: &TcpStream) -> Result<(), wire::Refusal> {
    connection.set_nonblocking(false)?;
    connection.set_nodelay(true)?;
    wire::accept(&mut Paced::new(connection, HANDSHAKE), &serving.key)
}

fn serve(serving: &Serving, connection: &TcpStream) -> io::Result<()> {
    let mut paced = Paced::new(connection, SLOWEST);
    let mut tail = RunTail::open(&serving.folder).map_err(io::Error::other)?;
    let mut frames = Vec::new();
    while !serving.closed.load(Ordering::Relaxed) {
        for update in tail.poll() {
            wire::put(&update, &mut frames);
        }
        paced.begin();
        paced.write_all(&frames)?;
        frames.clear();
        if !tail.has_more() {
            std::thread::sleep(LOOK);
        }
    }
    Ok(())
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
