//! Serves a run to monitors on other machines: they are told what stands in its folder, and cannot change anything.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::error::MonitorError;
use crate::tail::RunTail;
use crate::wire::{self, GREETING};

/// How often a run is looked at for each monitor.
const LOOK: Duration = Duration::from_millis(250);

/// How long a monitor may take to say who it is.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// How long a monitor may take nothing of what it is told.
const SLOWEST: Duration = Duration::from_secs(10);

/// How many monitors there may be at a time, those that have not said who they are included.
const MOST_MONITORS: usize = 32;

/// How often the server looks whether it is to end.
const PATIENCE: Duration = Duration::from_millis(200);

/// A server of one run. It ends when it is dropped.
///
/// ```
/// use everburn_monitor::{MonitorServer, Target};
///
/// let folder = tempfile::tempdir().unwrap();
/// std::fs::write(folder.path().join("config.toml"), "model = 'mnist'").unwrap();
/// let server = MonitorServer::start("127.0.0.1:0", folder.path(), None)?;
/// let target: Target = server.address().to_string().parse().unwrap();
/// let mut source = target.open(None)?;
/// # Ok::<(), everburn_monitor::MonitorError>(())
/// ```
#[derive(Debug)]
pub struct MonitorServer {
    address: SocketAddr,
    closed: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// What all connections have in common.
#[derive(Clone)]
struct Serving {
    folder: PathBuf,
    token: Option<String>,
    closed: Arc<AtomicBool>,
    monitors: Arc<AtomicUsize>,
}

impl MonitorServer {
    /// Serves the run in `folder` on `address`, `HOST:PORT`. Whoever connects has to know `token`.
    ///
    /// # Errors
    /// [`MonitorError::TokenNeeded`] if others than this machine could connect and there is no token;
    /// [`MonitorError::Listen`] if the address cannot be had; as [`RunTail::open`].
    pub fn start(
        address: &str,
        folder: &Path,
        token: Option<String>,
    ) -> Result<Self, MonitorError> {
        RunTail::open(folder)?;
        let failed = |error: std::io::Error| MonitorError::Listen {
            address: address.to_string(),
            reason: error.to_string(),
        };
        let token = token.filter(|token| !token.is_empty());
        let addresses: Vec<SocketAddr> = address.to_socket_addrs().map_err(failed)?.collect();
        if token.is_none() && !addresses.iter().all(|address| address.ip().is_loopback()) {
            let address = address.to_string();
            return Err(MonitorError::TokenNeeded { address });
        }
        let listener = TcpListener::bind(&addresses[..]).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        let serving = Serving {
            folder: folder.to_path_buf(),
            token,
            closed: Arc::default(),
            monitors: Arc::default(),
        };
        let closed = serving.closed.clone();
        let thread = std::thread::Builder::new()
            .name("everburn-monitors".to_string())
            .spawn(move || accept(&listener, &serving))
            .map_err(failed)?;
        Ok(Self {
            address: bound,
            closed,
            thread: Some(thread),
        })
    }

    /// Where it listens; the port is the real one where 0 was asked for.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for MonitorServer {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // An error would be a panic, which has told of itself.
            let _ = thread.join();
        }
    }
}

fn accept(listener: &TcpListener, serving: &Serving) {
    while !serving.closed.load(Ordering::Relaxed) {
        let mut waited = [PollFd::new(listener, PollFlags::IN)];
        let patience = Timespec::try_from(PATIENCE).ok();
        if poll(&mut waited, patience.as_ref()).is_err() {
            continue;
        }
        let Ok((connection, from)) = listener.accept() else {
            continue;
        };
        let present = serving.monitors.fetch_add(1, Ordering::Relaxed);
        if present >= MOST_MONITORS {
            serving.monitors.fetch_sub(1, Ordering::Relaxed);
            tracing::warn!("a monitor from {from} is refused: there are {present} already");
            continue;
        }
        let own = serving.clone();
        let started = std::thread::Builder::new()
            .name("everburn-monitor".to_string())
            .spawn(move || {
                // Whoever goes is not an error.
                if let Err(error) = serve(connection, &own) {
                    tracing::debug!("the monitor from {from} has left: {error}");
                }
                own.monitors.fetch_sub(1, Ordering::Relaxed);
            });
        if started.is_err() {
            serving.monitors.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

fn serve(mut connection: TcpStream, serving: &Serving) -> std::io::Result<()> {
    connection.set_nonblocking(false)?;
    connection.set_nodelay(true)?;
    connection.set_read_timeout(Some(HANDSHAKE))?;
    connection.set_write_timeout(Some(SLOWEST))?;
    let drawn = wire::draw()?;
    connection.write_all(&[&GREETING[..], &drawn].concat())?;
    let mut proof = [0; 32];
    connection.read_exact(&mut proof)?;
    let known = wire::same(&proof, &wire::proof(serving.token.as_deref(), &drawn));
    wire::answer(&mut connection, known)?;
    if !known {
        return Err(std::io::Error::other("it does not know the job token"));
    }
    let mut tail = RunTail::open(&serving.folder).map_err(std::io::Error::other)?;
    let mut frames = Vec::new();
    while !serving.closed.load(Ordering::Relaxed) {
        for update in tail.poll() {
            wire::put(&update, &mut frames);
        }
        connection.write_all(&frames)?;
        frames.clear();
        if !tail.has_more() {
            std::thread::sleep(LOOK);
        }
    }
    Ok(())
}
