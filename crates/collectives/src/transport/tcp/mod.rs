//! Ranks as processes: one TCP connection for each pair.

mod addresses;
mod event_loop;
mod handshake;
#[cfg(any(test, fuzzing))]
pub(crate) mod hostile;
mod link;
mod mesh_number;
mod outbox;
mod reader;
mod simulated;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use everburn_auth::Key;

use self::event_loop::EventLoop;
use self::handshake::{Connected, Handshake};
use self::link::Link;
pub(crate) use self::mesh_number::forget_meshes;
pub(crate) use self::simulated::exchange_addresses;
use super::frame::Frame;
use super::host_info::HostInfo;
use super::inbox::Inbox;
use super::{CUT_HERE, Transport};
use crate::group::{CollectiveError, DEFAULT_TIMEOUT, GroupOptions};
use crate::rendezvous::Rendezvous;

/// How long dropping a mesh waits for what is still queued.
const FLUSH_ON_DROP: Duration = Duration::from_secs(2);

/// About how many bytes are read from, and written to, one peer before the turn of the next.
const TURN: usize = 1 << 20;

/// How much longer than the group's timeout a peer may read nothing: an operation that waits for it says
/// more, and is to come first.
const AFTER_TIMEOUT: Duration = Duration::from_secs(5);

/// A full mesh of TCP connections, which one thread reads and writes.
///
/// The connection between two ranks is made by the higher one, to an address from the store, and
/// both prove that they have the job's secret before anything else. Elements are sent in this machine's
/// byte order, which is little-endian on all machines that Everburn runs on.
///
/// ```no_run
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use std::sync::Arc;
/// use everburn::collectives::group::{CollectiveError, GroupOptions, ProcessGroup};
/// use everburn::collectives::rendezvous::Rendezvous;
/// use everburn::collectives::transport::TcpMesh;
///
/// fn join(rendezvous: &Rendezvous) -> Result<ProcessGroup, CollectiveError> {
///     let options = GroupOptions::default();
///     let mesh = TcpMesh::connect(rendezvous, &options)?;
///     Ok(ProcessGroup::over(Arc::new(mesh), rendezvous.local_rank, options))
/// }
/// ```
pub struct TcpMesh {
    rank: usize,
    inbox: Arc<Inbox>,
    host_info: HostInfo,
    key: Key,
    /// By rank; `None` for this one.
    links: Vec<Option<Arc<Link>>>,
    /// The thread of the connections, if there are any.
    thread: Option<ThreadId>,
}

impl TcpMesh {
    /// Connects this rank with all others before the rendezvous' timeout.
    ///
    /// Of `options`, a frame of more than [`GroupOptions::max_message_bytes`] ends the connection that it
    /// comes from; [`GroupOptions::max_unreceived_bytes`] may wait here for calls that receive them; and a
    /// peer that reads nothing for a little longer than the timeout is lost.
    ///
    /// A world of one rank opens no socket and does not touch the store.
    ///
    /// # Errors
    /// [`CollectiveError::Incomplete`] names the ranks that have not come;
    /// [`CollectiveError::WorldSize`] the rank that was started for another world;
    /// [`CollectiveError::Store`] and [`CollectiveError::System`] what the store and the system
    /// refused.
    pub fn connect(
        rendezvous: &Rendezvous,
        options: &GroupOptions,
    ) -> Result<Self, CollectiveError> {
        let rank = rendezvous.rank;
        let system = |action: String, reason: String| CollectiveError::System {
            rank,
            action,
            reason,
        };
        let connected = if rendezvous.world_size > 1 {
            Handshake::run(rendezvous)?
        } else {
            let key = Key::random();
            Connected {
                streams: vec![None],
                key: key.map_err(|error| system("make a key".to_owned(), error.to_string()))?,
            }
        };
        let most = options.max_message_bytes;
        let inbox = Inbox::limited(options.max_unreceived_bytes, most);
        let write_timeout = options.timeout.unwrap_or(DEFAULT_TIMEOUT) + AFTER_TIMEOUT;
        let mesh = Self::over(rank, connected, &inbox, most, write_timeout);
        let mut mesh = mesh.map_err(|(action, error)| system(action, error.to_string()))?;
        mesh.host_info.address = rendezvous.local_address;
        Ok(mesh)
    }

    /// The mesh over connections that are made; else what could not be done. A peer that reads nothing for
    /// `write_timeout` while there is something to write is lost.
    fn over(
        rank: usize,
        connected: Connected,
        inbox: &Arc<Inbox>,
        max_message_bytes: u64,
        write_timeout: Duration,
    ) -> Result<Self, (String, io::Error)> {
        let start = || "start the thread of the connections".to_owned();
        let mut mesh = Self {
            rank,
            inbox: inbox.clone(),
            host_info: HostInfo::of_this_process(),
            key: connected.key,
            links: connected.streams.iter().map(|_| None).collect(),
            thread: None,
        };
        if connected.streams.iter().all(Option::is_none) {
            return Ok(mesh);
        }
        let mut event_loop = EventLoop::new(inbox, max_message_bytes, write_timeout)
            .map_err(|error| (start(), error))?;
        for (peer, stream) in connected.streams.into_iter().enumerate() {
            let Some(stream) = stream else { continue };
            let link = event_loop.add(peer, stream);
            let action = || format!("start the connection to rank {peer}");
            mesh.links[peer] = Some(link.map_err(|error| (action(), error))?);
        }
        mesh.thread = Some(event_loop.start(rank).map_err(|error| (start(), error))?);
        Ok(mesh)
    }

    fn links(&self) -> impl Iterator<Item = &Arc<Link>> {
        self.links.iter().flatten()
    }
}

impl fmt::Debug for TcpMesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpMesh")
            .field("rank", &self.rank)
            .field("world_size", &self.links.len())
            .finish_non_exhaustive()
    }
}

/// What a rank that has cut all its connections says of it.
const SEVERED: &str = "this rank has severed its connections";

impl Transport for TcpMesh {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.links.len()
    }

    fn host_info(&self) -> HostInfo {
        self.host_info.clone()
    }

    fn key(&self) -> Key {
        self.key.clone()
    }

    fn inbox(&self) -> &Arc<Inbox> {
        &self.inbox
    }

    fn send(&self, to: usize, mut frame: Frame) {
        match self.links.get(to) {
            Some(Some(link)) => link.send(frame),
            _ => frame.report(Err(format!("there is no connection to rank {to}"))),
        }
    }

    fn flush(&self, deadline: Instant) -> bool {
        let late = self.links().filter(|link| !link.flush(deadline));
        late.count() == 0
    }

    fn sever(&self) {
        // First stops all sending: a killed process sends no abort about the loss of others.
        for link in self.links() {
            link.silence(SEVERED);
        }
        for link in self.links() {
            link.cut(SEVERED);
        }
    }

    fn cut(&self, peer: usize) {
        if let Some(Some(link)) = self.links.get(peer) {
            link.cut(CUT_HERE);
        }
    }
}

impl Drop for TcpMesh {
    fn drop(&mut self) {
        for link in self.links() {
            link.close();
        }
        if self.thread == Some(thread::current().id()) {
            // A message in flight was the last owner of the mesh; this thread writes the rest.
            return;
        }
        let deadline = Instant::now() + FLUSH_ON_DROP;
        for link in self.links() {
            if !link.flush(deadline) {
                link.cut("it did not take what was left to send when this rank ended");
            }
        }
    }
}

#[cfg(test)]
mod tests;
