//! The thread of a server: it sleeps until a socket is ready and serves it.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use mio::event::Event;
use mio::{Events, Interest, Poll, Token, Waker};
use socket2::{SockRef, TcpKeepalive};

use super::contents::{ClientId, Contents};
use super::peer::{Closing, Peer, Turn};
use super::{REFUSED_KEY, StoreOptions};
use crate::net::{PendingQuota, Refusals};
use crate::store::user_key;
use crate::sync::lock;

const LISTENER: Token = Token(0);
const WAKER: Token = Token(1);
const FIRST_CLIENT: ClientId = 2;

/// Read from a socket in one call.
const SCRATCH_BYTES: usize = 256 * 1024;

/// How long the thread continues looking for requests after the last one before it sleeps. A client that
/// has just been answered mostly asks again within microseconds, while waking a thread on another,
/// idle core takes tens of them: longer than that core takes for the request. Looking yields
/// the core to whoever wants it.
const LINGER: Duration = Duration::from_micros(50);

/// After this many rounds in a row in which nobody was answered, somebody sends a stream of sets, for
/// which nobody waits.
const SILENT_ROUNDS: u32 = 16;

/// How long a stream of sets may pile up between rounds. Reading each as it comes would fight with
/// its sender for the socket, and the sender would lose by it.
const PILE_UP: Duration = Duration::from_micros(20);

/// Connections accepted before it is the clients' turn again.
const ACCEPTS_IN_A_ROW: usize = 64;

/// When the process is out of file descriptors, accepting is tried again after this.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// The clients that are late are looked for no more often than this: in a flood each moment is the
/// deadline of one.
const LOOK_FOR_LATE: Duration = Duration::from_millis(10);

/// A machine that went away without a word is noticed by the kernel's probes after this.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// What the owner of a server and its thread share.
#[derive(Debug)]
pub(super) struct Control {
    stopping: AtomicBool,
    waker: Waker,
    pub(super) connections: Mutex<usize>,
    unused: Condvar,
    pub(super) held_bytes: AtomicUsize,
    pub(super) requests: AtomicU64,
    /// Who was refused last, and why.
    pub(super) refused: Mutex<Option<String>>,
}

impl Control {
    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        if let Err(error) = self.waker.wake() {
            tracing::error!("waking the store's server thread: {error}");
        }
    }

    fn set_connections(&self, count: usize) {
        *lock(&self.connections) = count;
        if count == 0 {
            self.unused.notify_all();
        }
    }

    pub(super) fn wait_until_unused(&self, deadline: Duration) -> bool {
        let used = |count: &mut usize| *count > 0;
        let waited = self
            .unused
            .wait_timeout_while(lock(&self.connections), deadline, used);
        *waited.unwrap_or_else(PoisonError::into_inner).0 == 0
    }
}

#[derive(Debug)]
pub(super) struct EventLoop {
    poll: Poll,
    listener: mio::net::TcpListener,
    control: Arc<Control>,
    options: StoreOptions,
    contents: Contents,
    peers: HashMap<ClientId, Peer>,
    pending: PendingQuota,
    refusals: Refusals,
    next_id: ClientId,
    /// Clients that have more to do though their sockets stay silent.
    again: Vec<ClientId>,
    /// Requests were carried out this many rounds in a row, and none of them had an answer.
    silent_rounds: u32,
    /// No deadline of any client is before this.
    next_deadline: Option<Instant>,
    accept_again: Option<Instant>,
    scratch: Vec<u8>,
}

impl EventLoop {
    /// Prepares to serve `listener`, which must not block.
    pub(super) fn new(
        listener: TcpListener,
        options: StoreOptions,
    ) -> io::Result<(Self, Arc<Control>)> {
        let poll = Poll::new()?;
        let mut listener = mio::net::TcpListener::from_std(listener);
        poll.registry()
            .register(&mut listener, LISTENER, Interest::READABLE)?;
        let control = Arc::new(Control {
            stopping: AtomicBool::new(false),
            waker: Waker::new(poll.registry(), WAKER)?,
            connections: Mutex::new(0),
            unused: Condvar::new(),
            held_bytes: AtomicUsize::new(0),
            requests: AtomicU64::new(0),
            refused: Mutex::default(),
        });
        let events = Self {
            poll,
            listener,
            control: Arc::clone(&control),
            contents: Contents::new(options.max_stored_bytes),
            pending: PendingQuota::new(options.max_pending, options.max_pending_per_address),
            refusals: Refusals::default(),
            options,
            peers: HashMap::new(),
            next_id: FIRST_CLIENT,
            again: Vec::new(),
            silent_rounds: 0,
            next_deadline: None,
            accept_again: None,
            scratch: vec![0; SCRATCH_BYTES],
        };
        Ok((events, control))
    }

    /// Serves until the owner says stop.
    pub(super) fn run(mut self) {
        let mut events = Events::with_capacity(1024);
        let mut last_request = None;
        while !self.control.stopping.load(Ordering::Acquire) {
            let sleep = match last_request {
                Some(_) => Some(Duration::ZERO),
                None => self.sleep(),
            };
            match self.poll.poll(&mut events, sleep) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    tracing::error!("the store's server stops: {error}");
                    return;
                }
            }
            last_request = match last_request {
                _ if !events.is_empty() => Some(Instant::now()),
                Some(last) if last.elapsed() < LINGER => Some(last),
                _ => None,
            };
            if events.is_empty() && last_request.is_some() {
                std::thread::yield_now();
            }
            if !events.is_empty() {
                self.silent_rounds = self.silent_rounds.saturating_add(1);
            }
            for event in &events {
                self.handle(event);
            }
            if self.silent_rounds >= SILENT_ROUNDS && !events.is_empty() {
                std::thread::sleep(PILE_UP);
            }
            for id in std::mem::take(&mut self.again) {
                self.serve(id);
            }
            let now = Instant::now();
            if self.accept_again.is_some_and(|at| at <= now) {
                self.accept();
            }
            if self.next_deadline.is_some_and(|at| at <= now) {
                self.close_late(now);
            }
            if let Some(refused) = self.refusals.take(now) {
                tracing::warn!("the store refuses {refused}");
                *lock(&self.control.refused) = Some(refused);
                self.publish_refused();
            }
            let held_bytes = self.contents.held_bytes;
            self.control.held_bytes.store(held_bytes, Ordering::Relaxed);
            let requests = self.contents.requests;
            self.control.requests.store(requests, Ordering::Relaxed);
        }
        if let Some(refused) = self.refusals.take_all() {
            tracing::warn!("the store has refused {refused}");
        }
    }

    /// Has the clients of the store find the refused addresses at [`REFUSED_KEY`].
    fn publish_refused(&mut self) {
        if let Some(refused) = self.refusals.unproved()
            && let Err(error) = self.contents.store(&user_key(REFUSED_KEY), refused.into())
        {
            tracing::debug!("whom the store has refused is not in it: {error}");
        }
    }

    fn sleep(&self) -> Option<Duration> {
        if !self.again.is_empty() {
            return Some(Duration::ZERO);
        }
        let now = Instant::now();
        let next = self
            .next_deadline
            .into_iter()
            .chain(self.accept_again)
            .chain(self.refusals.due(now))
            .min();
        next.map(|at| at.saturating_duration_since(now))
    }

    fn handle(&mut self, event: &Event) {
        match event.token() {
            // While it pauses it continues by the clock.
            LISTENER if self.accept_again.is_some() => {}
            LISTENER => self.accept(),
            WAKER => {}
            Token(id) => {
                if let Some(peer) = self.peers.get_mut(&id) {
                    peer.half_closed |= event.is_read_closed() || event.is_error();
                }
                self.serve(id);
            }
        }
    }

    fn accept(&mut self) {
        self.accept_again = None;
        for _ in 0..ACCEPTS_IN_A_ROW {
            match self.listener.accept() {
                Ok((stream, address)) => self.welcome(stream, address),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return,
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                    _ => {
                        // Mostly out of descriptors: a connection that has shown nothing yet holds one.
                        let Some(oldest) = self.pending.oldest() else {
                            let reason = format!("it cannot be accepted: {error}");
                            self.refusals.add(None, reason);
                            self.accept_again = Some(Instant::now() + ACCEPT_AGAIN);
                            return;
                        };
                        self.close(oldest, &Closing::Evicted);
                    }
                },
            }
        }
        self.accept_again = Some(Instant::now());
    }

    fn welcome(&mut self, stream: mio::net::TcpStream, address: SocketAddr) {
        if self.peers.len() >= self.options.max_connections {
            match self.pending.oldest() {
                Some(oldest) => self.close(oldest, &Closing::Evicted),
                None => {
                    let reason = "too many connections";
                    return self.refusals.add(Some(address.ip()), reason);
                }
            }
        }
        let id = self.next_id;
        self.next_id += 1;
        if let Err(error) = self.take_on(id, stream) {
            return self.refusals.add(Some(address.ip()), error);
        }
        if let Some(oldest) = self.pending.add(id, address.ip()) {
            self.close(oldest, &Closing::Evicted);
        }
    }

    fn take_on(&mut self, id: ClientId, mut stream: mio::net::TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        SockRef::from(&stream).set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE))?;
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.poll
            .registry()
            .register(&mut stream, Token(id), interest)?;
        let peer = Peer::new(id, stream, &self.options);
        self.expect(peer.deadline());
        self.peers.insert(id, peer);
        self.control.set_connections(self.peers.len());
        Ok(())
    }

    fn expect(&mut self, deadline: Option<Instant>) {
        self.next_deadline = self.next_deadline.into_iter().chain(deadline).min();
    }

    fn serve(&mut self, id: ClientId) {
        let Some(peer) = self.peers.get_mut(&id) else {
            return;
        };
        let mut woken = Vec::new();
        let was_pending = peer.is_pending();
        let turn = peer.take_turn(
            &mut self.contents,
            &self.options,
            &mut self.scratch,
            &mut woken,
        );
        if std::mem::take(&mut peer.answered) {
            self.silent_rounds = 0;
        }
        if was_pending && !peer.is_pending() {
            self.pending.remove(id);
        }
        let deadline = peer.deadline();
        self.expect(deadline);
        match turn {
            Ok(Turn::Done) => {}
            Ok(Turn::Again) => self.again.push(id),
            Err(reason) => self.close(id, &reason),
        }
        for id in woken {
            self.wake(id);
        }
    }

    fn wake(&mut self, id: ClientId) {
        let Some(peer) = self.peers.get_mut(&id) else {
            return;
        };
        let sent = peer.stop_waiting(&self.options);
        self.silent_rounds = 0;
        let deadline = peer.deadline();
        self.expect(deadline);
        if let Err(reason) = sent {
            self.close(id, &reason);
        }
    }

    fn close(&mut self, id: ClientId, reason: &Closing) {
        let Some(mut peer) = self.peers.remove(&id) else {
            return;
        };
        match reason {
            Closing::Left => tracing::trace!("a client of the store left"),
            Closing::Broken(error) => tracing::debug!("a client of the store vanished: {error}"),
            reason if reason.is_unproved() => self.refusals.add_unproved(peer.from, reason),
            reason => self.refusals.add(peer.from, reason),
        }
        // Closing the socket takes it out of the poll anyway.
        let _ = self.poll.registry().deregister(&mut peer.stream);
        self.pending.remove(id);
        peer.release(&mut self.contents);
        self.control.set_connections(self.peers.len());
    }

    fn close_late(&mut self, now: Instant) {
        let late = |peer: &Peer| peer.deadline().is_some_and(|at| at <= now);
        let expired: Vec<ClientId> = self
            .peers
            .iter()
            .filter(|(_, peer)| late(peer))
            .map(|(&id, _)| id)
            .collect();
        for id in expired {
            self.close(id, &Closing::Late);
        }
        let next = self.peers.values().filter_map(Peer::deadline).min();
        self.next_deadline = next.map(|at| at.max(now + LOOK_FOR_LATE));
    }
}
