//! Serves a run to monitors on other machines: they read its folder's content, and cannot change anything.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use everburn_auth::{JobToken, Key};
use everburn_record::plain::word;

use crate::error::MonitorError;
use crate::listening::{Connections, Listening, PendingSlot, Why};
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

/// A server of one run. It ends when it is dropped.
#[derive(Debug)]
pub struct MonitorServer {
    listening: Listening,
}

/// The run, and who may look at it.
#[derive(Debug)]
struct Serving {
    folder: PathBuf,
    key: Key,
    monitors: AtomicUsize,
}

impl MonitorServer {
    /// Serves the run in `folder` on `address`, `HOST:PORT`, to monitors that know `token`, on loopback too:
    /// other users of this machine can connect there.
    ///
    /// # Errors
    /// [`MonitorError::Listen`] if the address cannot be had; as [`RunTail::open`].
    pub fn start(address: &str, folder: &Path, token: &JobToken) -> Result<Self, MonitorError> {
        RunTail::open(folder)?;
        let serving = Serving {
            folder: folder.to_path_buf(),
            key: wire::key(token),
            monitors: AtomicUsize::new(0),
        };
        let listening =
            Listening::start(address, "monitors", move |connections, it, from, slot| {
                serving.attend(connections, it, from, slot);
            })?;
        Ok(Self { listening })
    }

    /// Where it listens; the port is the real one where 0 was asked for.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.listening.address()
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
        let token = word(token.reveal());
        let address = self.address();
        let address = match address.ip().is_unspecified() {
            // The name by which others reach this machine is not known here.
            true => format!("HOST:{}", address.port()),
            false => address.to_string(),
        };
        format!("EVERBURN_JOB_TOKEN={token} everburn monitor {address}")
    }
}

impl Serving {
    /// One connection, from its handshake to its end.
    fn attend(
        &self,
        connections: &Connections,
        connection: &TcpStream,
        from: SocketAddr,
        slot: PendingSlot,
    ) {
        let proved = self.introduce(connection);
        let had_to_leave = !slot.leave();
        if let Err(refusal) = proved {
            tracing::debug!("the monitor from {from} is refused: {refusal:?}");
            if !had_to_leave {
                connections.refuse(Why::Unproved, from);
            }
            return;
        }
        if self.monitors.fetch_add(1, Ordering::Relaxed) >= MOST_MONITORS {
            connections.refuse(Why::Full, from);
        } else if let Err(error) = self.serve(connections, connection) {
            // A monitor that leaves is no error.
            tracing::debug!("the monitor from {from} has left: {error}");
        }
        self.monitors.fetch_sub(1, Ordering::Relaxed);
    }

    fn introduce(&self, connection: &TcpStream) -> Result<(), wire::Refusal> {
        connection.set_nodelay(true)?;
        wire::accept(&mut Paced::new(connection, HANDSHAKE), &self.key)
    }

    fn serve(&self, connections: &Connections, connection: &TcpStream) -> io::Result<()> {
        let mut paced = Paced::new(connection, SLOWEST);
        let mut tail = RunTail::open(&self.folder).map_err(io::Error::other)?;
        let mut frames = Vec::new();
        while !connections.closed() {
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
}
