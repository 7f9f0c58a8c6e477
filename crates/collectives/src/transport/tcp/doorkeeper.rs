//! Who may come in at the mesh's listener.

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::{Duration, Instant};

use super::handshake::RETRY;
use super::hello::{Hello, SessionKey, Status, read_hello, write_hello};

/// How long a stranger may take to introduce itself.
const HELLO_DEADLINE: Duration = Duration::from_secs(5);

/// How many strangers may be introducing themselves at once; more are turned away, and a rank
/// that is turned away dials again.
const MAX_STRANGERS: usize = 256;

/// Whoever has introduced itself at the listener.
pub(super) enum Arrival {
    Connected { peer: usize, stream: TcpStream },
    OtherWorldSize { peer: usize, theirs: usize },
}

/// Lets the higher ranks in and turns everybody else away.
#[derive(Clone)]
pub(super) struct Doorkeeper {
    key: SessionKey,
    rank: usize,
    world_size: usize,
    found: Sender<Arrival>,
    /// How many connections are in [`Doorkeeper::introduce`].
    strangers: Arc<AtomicUsize>,
    closed: Arc<AtomicBool>,
}

impl Doorkeeper {
    /// The doorkeeper of `rank`, who reports whom it has let in to `found`.
    pub(super) fn new(
        key: SessionKey,
        rank: usize,
        world_size: usize,
        found: Sender<Arrival>,
    ) -> Self {
        let (strangers, closed) = Default::default();
        Self {
            key,
            rank,
            world_size,
            found,
            strangers,
            closed,
        }
    }

    /// Ends [`Doorkeeper::run`] at the listener on `address` when dropped.
    pub(super) fn close_on_drop(&self, address: SocketAddr) -> CloseOnDrop {
        CloseOnDrop {
            address,
            closed: self.closed.clone(),
        }
    }

    /// Accepts until [`CloseOnDrop`] knocks. A stranger has a thread of its own, so that one that
    /// says nothing keeps nobody waiting.
    pub(super) fn run(self, listener: &TcpListener) {
        loop {
            let connection = listener.accept();
            if self.closed.load(Ordering::Acquire) {
                return;
            }
            match connection {
                Ok((stream, address)) => self.receive(stream, address.ip()),
                Err(error) => {
                    // Too many open files, or a connection that is gone already: others may
                    // still come.
                    tracing::warn!(%error, "the mesh's listener cannot accept");
                    thread::sleep(RETRY);
                }
            }
        }
    }

    fn receive(&self, stream: TcpStream, from: IpAddr) {
        if self.strangers.fetch_add(1, Ordering::AcqRel) >= MAX_STRANGERS {
            self.strangers.fetch_sub(1, Ordering::AcqRel);
            return;
        }
        let doorkeeper = self.clone();
        let thread = thread::Builder::new()
            .name("everburn-hello".to_owned())
            .spawn(move || {
                if let Err(reason) = doorkeeper.introduce(stream) {
                    tracing::warn!(%from, reason, "a connection to the mesh was refused");
                }
                doorkeeper.strangers.fetch_sub(1, Ordering::AcqRel);
            });
        if thread.is_err() {
            self.strangers.fetch_sub(1, Ordering::AcqRel);
        }
    }

    pub(super) fn introduce(&self, mut stream: TcpStream) -> Result<(), String> {
        let deadline = Instant::now() + HELLO_DEADLINE;
        let hello = read_hello(&mut stream, deadline).map_err(|error| error.to_string())?;
        let Hello {
            rank: peer,
            world_size: theirs,
            ..
        } = Hello::decode(&hello, &self.key)?;
        let differs = theirs != self.world_size;
        if !differs && peer <= self.rank {
            return Err(format!(
                "rank {peer} dialled rank {}, which dials it",
                self.rank
            ));
        }
        let status = if differs {
            Status::WorldSizeDiffers
        } else {
            Status::Accepted
        };
        let answer = Hello {
            status,
            rank: self.rank,
            world_size: self.world_size,
        };
        write_hello(&mut stream, &answer.encode(&self.key), deadline)
            .map_err(|error| error.to_string())?;
        let arrival = if differs {
            Arrival::OtherWorldSize { peer, theirs }
        } else {
            Arrival::Connected { peer, stream }
        };
        // Nobody listens any more once the handshake has failed or ended.
        let _ = self.found.send(arrival);
        Ok(())
    }
}

/// Ends the doorkeeper, whichever way the handshake went.
pub(super) struct CloseOnDrop {
    address: SocketAddr,
    closed: Arc<AtomicBool>,
}

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::Release);
        // `accept` has no deadline: a last connection wakes it.
        let _ = TcpStream::connect_timeout(&self.address, HELLO_DEADLINE);
    }
}
