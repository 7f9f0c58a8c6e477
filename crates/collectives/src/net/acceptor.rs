//! The acceptor: a listener and its thread, which accepts connections that prove the job's secret.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use everburn_auth::Key;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, Protocol, Socket, Type};

use super::hello::{Hello, Purpose, Responder, Verdict};
use super::pending::{Pending, Progress};
use super::pending_quota::PendingQuota;
use super::refusals::Refusals;
use crate::sync::{lock, wait_until};

/// The listen backlog: many ranks connect at the same time.
const BACKLOG: i32 = 4096;

/// The timeout of a connection's handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// The most pending connections, in total and per address; more where more are expected, because all ranks of a
/// machine may connect at the same moment.
const MAX_PENDING: usize = 512;
const MAX_PENDING_PER_ADDRESS: usize = 256;

/// The most connections accepted before pending ones are advanced.
const ACCEPTS_IN_A_ROW: usize = 64;

/// The interval at which the thread checks for shutdown and for handshake timeouts. Hundreds of ranks on a few cores
/// wait for each other in this way.
const TICK: Duration = Duration::from_millis(50);

/// The pause after a failed `accept`, usually for lack of file descriptors.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// The connections that a rank expects: those of all higher ranks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Expected {
    pub(crate) purpose: Purpose,
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    pub(crate) scope: u64,
    /// The connections per pair of ranks.
    pub(crate) streams: usize,
}

#[derive(Default)]
struct State {
    /// Accepted, non-blocking connections by rank and connection index.
    arrived: HashMap<(usize, usize), TcpStream>,
    /// Connections already handed out.
    taken: HashSet<(usize, usize)>,
    /// A rank with another world size, and that size.
    other_world: Option<(usize, usize)>,
    /// How often any of these has changed.
    changes: u64,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    closed: AtomicBool,
}

/// A listener for the connections of higher ranks. Its thread ends and frees the port soon after the
/// acceptor is dropped.
pub(crate) struct Acceptor {
    address: SocketAddr,
    shared: Arc<Shared>,
}

/// A listener whose connections wait in its backlog until it is [started](Listening::start).
pub(crate) struct Listening {
    listener: TcpListener,
    address: SocketAddr,
}

impl Listening {
    /// Listens on a free port of `address`. `prepare` may set socket options, which accepted connections
    /// inherit.
    pub(crate) fn bind(address: IpAddr, prepare: impl FnOnce(&Socket)) -> io::Result<Self> {
        let address = SocketAddr::new(address, 0);
        let socket = Socket::new(
            Domain::for_address(address),
            Type::STREAM,
            Some(Protocol::TCP),
        )?;
        prepare(&socket);
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        let listener = TcpListener::from(socket);
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        Ok(Self { listener, address })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn start(self, key: Key, expected: Expected) -> io::Result<Acceptor> {
        let Self { listener, address } = self;
        let shared = Arc::new(Shared::default());
        let most = expected.world_size.saturating_mul(expected.streams);
        let thread = Thread {
            listener,
            key,
            expected,
            shared: shared.clone(),
            pending: BTreeMap::new(),
            quota: PendingQuota::new(MAX_PENDING.max(most), MAX_PENDING_PER_ADDRESS.max(most)),
            next: 0,
            accept_again: None,
            refusals: Refusals::default(),
        };
        thread::Builder::new()
            .name("everburn-accept".to_owned())
            .spawn(move || thread.run())?;
        Ok(Acceptor { address, shared })
    }
}

impl Acceptor {
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn has(&self, rank: usize, index: usize) -> bool {
        lock(&self.shared.state)
            .arrived
            .contains_key(&(rank, index))
    }

    /// Takes connection `index` of `rank`, if it has been accepted. It is non-blocking.
    pub(crate) fn take(&self, rank: usize, index: usize) -> Option<TcpStream> {
        let mut state = lock(&self.shared.state);
        let stream = state.arrived.remove(&(rank, index))?;
        state.taken.insert((rank, index));
        Some(stream)
    }

    /// A rank with another world size, and that size.
    pub(crate) fn other_world(&self) -> Option<(usize, usize)> {
        lock(&self.shared.state).other_world
    }

    pub(crate) fn wait(&self, until: Instant, done: impl Fn(&Self) -> bool) {
        loop {
            let seen = lock(&self.shared.state).changes;
            if done(self) || Instant::now() >= until {
                return;
            }
            let state = lock(&self.shared.state);
            // It may have changed between the check and the lock.
            if state.changes == seen {
                drop(wait_until(&self.shared.changed, state, until));
            }
        }
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Release);
    }
}

struct Thread {
    listener: TcpListener,
    key: Key,
    expected: Expected,
    shared: Arc<Shared>,
    /// By id.
    pending: BTreeMap<usize, Pending>,
    quota: PendingQuota,
    /// The id of the next connection.
    next: usize,
    /// After an error: the time of the next `accept`.
    accept_again: Option<Instant>,
    refusals: Refusals,
}

impl Thread {
    fn run(mut self) {
        while !self.shared.closed.load(Ordering::Acquire) {
            self.sleep();
            self.accept();
            self.advance();
        }
        if let Some(refused) = self.refusals.take_all() {
            self.warn(&refused);
        }
    }

    fn warn(&self, refused: &str) {
        tracing::warn!("the {} refused {refused}", self.name());
    }

    const fn name(&self) -> &'static str {
        match self.expected.purpose {
            Purpose::Mesh => "mesh of ranks",
            Purpose::Channel => "channels of this rank",
        }
    }

    /// Waits until a socket is ready, for [`TICK`] at most.
    fn sleep(&self) {
        let streams = self.pending.values().map(|pending| pending.stream.as_fd());
        let listener = self.accept_again.is_none().then(|| self.listener.as_fd());
        let mut all: Vec<_> = listener
            .into_iter()
            .chain(streams)
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: i64::from(TICK.subsec_nanos()),
        };
        // On an error (EINTR) the caller checks all sockets again.
        let _ = poll(&mut all, Some(&timeout));
    }

    fn accept(&mut self) {
        if self
            .accept_again
            .is_some_and(|again| Instant::now() < again)
        {
            return;
        }
        self.accept_again = None;
        for _ in 0..ACCEPTS_IN_A_ROW {
            match self.listener.accept() {
                Ok((stream, from)) => {
                    if stream.set_nonblocking(true).is_ok() {
                        self.take_in(stream, from.ip());
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    // Usually out of file descriptors: closing a pending connection frees one.
                    if let Some(oldest) = self.quota.oldest() {
                        self.forget(oldest);
                    }
                    self.refusals
                        .add(None, format!("it cannot be accepted: {error}"));
                    self.accept_again = Some(Instant::now() + ACCEPT_AGAIN);
                    return;
                }
            }
        }
    }

    fn take_in(&mut self, stream: TcpStream, from: IpAddr) {
        let id = self.next;
        self.next += 1;
        self.pending.insert(id, Pending::new(stream, from));
        if let Some(leaves) = self.quota.add(id, from) {
            let reason = "too many connections prove nothing";
            self.refusals.add(Some(from), reason);
            self.forget(leaves);
        }
    }

    fn forget(&mut self, id: usize) {
        self.quota.remove(id);
        self.pending.remove(&id);
    }

    /// Advances the handshakes of all pending connections.
    fn advance(&mut self) {
        let own = Responder {
            rank: self.expected.rank,
            world_size: self.expected.world_size,
        };
        for (id, mut pending) in std::mem::take(&mut self.pending) {
            let from = pending.from;
            let refused = match pending.advance(&self.key, own) {
                Progress::Waiting if pending.since.elapsed() < HANDSHAKE => {
                    self.pending.insert(id, pending);
                    continue;
                }
                Progress::Waiting => Err(format!("it proved nothing within {HANDSHAKE:?}")),
                Progress::Refused(reason) => Err(reason),
                Progress::Proved(hello) => self.admit(pending, &hello),
            };
            self.quota.remove(id);
            if let Err(reason) = refused {
                self.refusals.add(Some(from), reason);
            }
        }
        if let Some(refused) = self.refusals.take(Instant::now()) {
            self.warn(&refused);
        }
    }

    /// Sends the verdict on an authenticated connection, and keeps the connection if it is expected.
    fn admit(&self, pending: Pending, hello: &Hello) -> Result<(), String> {
        let mut state = lock(&self.shared.state);
        let place = (hello.rank, hello.index);
        let verdict = self.verdict(&state, hello);
        let stream = pending.decide(verdict).map_err(|error| error.to_string())?;
        match verdict {
            Verdict::Accepted => {
                state.arrived.insert(place, stream);
            }
            Verdict::WorldSizeDiffers => {
                state.other_world = Some((hello.rank, hello.world_size));
            }
            Verdict::Taken => {
                return Err(format!("rank {} is connected already", hello.rank));
            }
            Verdict::NotExpected => return Err(format!("it is not expected: {hello:?}")),
        }
        state.changes += 1;
        drop(state);
        self.shared.changed.notify_all();
        Ok(())
    }

    fn verdict(&self, state: &State, hello: &Hello) -> Verdict {
        let expected = &self.expected;
        if (hello.purpose, hello.scope) != (expected.purpose, expected.scope) {
            return Verdict::NotExpected;
        }
        if hello.world_size != expected.world_size {
            return Verdict::WorldSizeDiffers;
        }
        if hello.rank <= expected.rank || hello.index >= expected.streams {
            return Verdict::NotExpected;
        }
        let place = (hello.rank, hello.index);
        match state.arrived.get(&place) {
            None if state.taken.contains(&place) => Verdict::Taken,
            // A dialer that missed the verdict of its first attempt has closed that connection.
            Some(first) if is_open(first) => Verdict::Taken,
            _ => Verdict::Accepted,
        }
    }
}

/// Whether the non-blocking `stream` is still open on the other side.
fn is_open(stream: &TcpStream) -> bool {
    match stream.peek(&mut [0]) {
        Ok(bytes) => bytes > 0,
        Err(error) => matches!(
            error.kind(),
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
        ),
    }
}
