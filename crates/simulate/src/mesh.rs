//! The connections of one generation's ranks, and the steps that they make together.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use everburn_auth::Key;
use everburn_collectives::runtime::{self, Condition};
use everburn_collectives::simulation;
use everburn_collectives::sync::lock;
use everburn_collectives::transport::{Frame, FrameKind, Inbox, Transport};

use crate::kernel::Kernel;
use crate::network::{Kind, Message, Network};

/// The CPU time of one handshake with a peer, by docs/scale.md.
const HANDSHAKE: Duration = Duration::from_micros(200);

/// A message of an all-reduce and the work on it, of which there are two per doubling.
const MESSAGE: Duration = Duration::from_micros(150);

/// The cause that a rank sees when the kernel closes the connection of a killed peer.
const CLOSED: &str = "its connection broke off";

/// One rank's end.
struct End {
    process: usize,
    inbox: Arc<Inbox>,
}

#[derive(Default)]
struct State {
    /// By rank, once it has made its connections.
    ends: Vec<Option<End>>,
    connected: usize,
    arrived: usize,
    leave_after: Option<u64>,
    end_after: Option<u64>,
}

pub(crate) struct Mesh {
    kernel: Arc<Kernel>,
    network: Arc<Network>,
    pub(crate) generation: u64,
    /// By rank, slot and incarnation.
    pub(crate) members: Vec<(usize, u64)>,
    state: Mutex<State>,
    changed: Condition,
    /// By rank: an abort has come, so another one changes nothing.
    aborted: Vec<AtomicBool>,
    /// How many steps have been made.
    pub(crate) steps: AtomicU64,
    pub(crate) first_step: u64,
    /// When the first step was made, in nanoseconds.
    pub(crate) first_made: AtomicU64,
    key: Key,
}

impl Mesh {
    pub(crate) fn new(
        kernel: &Arc<Kernel>,
        network: &Arc<Network>,
        generation: u64,
        members: Vec<(usize, u64)>,
        first_step: u64,
    ) -> Self {
        let mut state = State::default();
        state.ends.resize_with(members.len(), || None);
        Self {
            kernel: kernel.clone(),
            network: network.clone(),
            generation,
            state: Mutex::new(state),
            changed: Condition::default(),
            aborted: members.iter().map(|_| AtomicBool::new(false)).collect(),
            members,
            steps: AtomicU64::new(0),
            first_step,
            first_made: AtomicU64::new(0),
            key: Key::random().expect("the operating system gives random bytes"),
        }
    }

    fn size(&self) -> usize {
        self.members.len()
    }

    /// The time that a rank needs for its handshakes.
    pub(crate) fn handshakes(&self) -> Duration {
        HANDSHAKE * self.size().saturating_sub(1) as u32
    }

    /// A rank has made its connections. It sees at once which of the others have ended since.
    pub(crate) fn connect(&self, rank: usize, process: usize, inbox: &Arc<Inbox>) {
        let mut state = lock(&self.state);
        let inbox = inbox.clone();
        let ends = state.ends.iter().enumerate();
        let dead = ends.filter_map(|(peer, end)| {
            let end = end.as_ref()?;
            (!self.kernel.is_alive(end.process)).then_some(peer)
        });
        let dead: Vec<usize> = dead.collect();
        state.ends[rank] = Some(End {
            process,
            inbox: inbox.clone(),
        });
        state.connected += 1;
        let complete = state.connected == self.size();
        drop(state);
        for peer in dead {
            inbox.lost(peer, CLOSED);
        }
        if complete {
            self.changed.notify_all();
        }
    }

    /// Waits until all ranks have made their connections; whether they have.
    pub(crate) fn wait_connected(&self, limit: Duration) -> bool {
        let deadline = runtime::now() + limit;
        let waits = |state: &mut State| state.connected < self.size();
        let state = lock(&self.state);
        !self
            .changed
            .wait_while(&self.state, state, deadline, waits)
            .1
    }

    /// The connections of a process that has ended break.
    pub(crate) fn process_ended(self: &Arc<Self>, process: usize) {
        let state = lock(&self.state);
        let of = |end: &Option<End>| end.as_ref().is_some_and(|end| end.process == process);
        let Some(rank) = state.ends.iter().position(of) else {
            return;
        };
        let of_peer = |(peer, end): (usize, &Option<End>)| Some((peer, end.as_ref()?.process));
        let ends = state.ends.iter().enumerate().filter_map(of_peer);
        let peers: Vec<(usize, usize)> = ends.filter(|(peer, _)| *peer != rank).collect();
        drop(state);
        for (peer, other) in peers {
            let this = self.clone();
            let message = self.message(process, other, 0);
            let arrives = move |_: &Arc<Kernel>| this.on(peer, |inbox| inbox.lost(rank, CLOSED));
            self.network.send(&self.kernel, &message, Box::new(arrives));
        }
    }

    fn message(&self, from: usize, to: usize, bytes: u64) -> Message {
        Message {
            from: self.kernel.machine_of(from),
            to: self.kernel.machine_of(to),
            // Frames between two ranks come in order; these few come one at a time.
            connection: usize::MAX - from,
            bytes,
            kind: Kind::Frame,
        }
    }

    /// Has something come to a rank's inbox, with that rank's clock.
    fn on(&self, rank: usize, act: impl FnOnce(&Inbox)) {
        let state = lock(&self.state);
        let Some(end) = state.ends[rank].as_ref() else {
            return;
        };
        let (process, inbox) = (end.process, end.inbox.clone());
        drop(state);
        if self.kernel.is_alive(process) {
            runtime::enter(self.kernel.runtime(process), || act(&inbox));
        }
    }

    /// A rank has made its part of the next step; the last one ends it on all.
    pub(crate) fn arrive(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        state.arrived += 1;
        if state.arrived < self.size() {
            return;
        }
        state.arrived = 0;
        drop(state);
        let doublings = usize::BITS - self.size().leading_zeros();
        let this = self.clone();
        let made = move |kernel: &Arc<Kernel>| {
            if this.steps.fetch_add(1, Ordering::AcqRel) == 0 {
                let now = kernel.now().as_nanos() as u64;
                this.first_made.store(now, Ordering::Release);
            }
            for rank in 0..this.size() {
                this.on(rank, simulation::wake);
            }
        };
        self.kernel.after(MESSAGE * 2 * doublings, Box::new(made));
    }

    /// All ranks leave after this step, for others to join.
    pub(crate) fn leave_after(&self, step: u64) {
        lock(&self.state).leave_after.get_or_insert(step);
    }

    pub(crate) fn end_after(&self, step: u64) {
        lock(&self.state).end_after.get_or_insert(step);
    }

    pub(crate) fn leaves_after(&self, step: u64) -> bool {
        lock(&self.state).leave_after == Some(step)
    }

    pub(crate) fn ends_after(&self, step: u64) -> bool {
        lock(&self.state).end_after == Some(step)
    }
}

/// One rank's transport of frames.
pub(crate) struct MeshTransport {
    pub(crate) mesh: Arc<Mesh>,
    pub(crate) rank: usize,
    pub(crate) process: usize,
    pub(crate) inbox: Arc<Inbox>,
}

impl fmt::Debug for MeshTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MeshTransport")
            .field("rank", &self.rank)
            .finish_non_exhaustive()
    }
}

impl Transport for MeshTransport {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.mesh.size()
    }

    fn key(&self) -> Key {
        self.mesh.key.clone()
    }

    fn inbox(&self) -> &Arc<Inbox> {
        &self.inbox
    }

    /// Goodbyes are counted only. So are aborts for a rank that has had one: it keeps the first.
    fn send(&self, to: usize, frame: Frame) {
        let bytes = 64 + frame.payload.len() as u64;
        if let Some(written) = frame.written {
            written(Ok(()));
        }
        let is_abort = frame.header.kind == FrameKind::Abort;
        if !is_abort || self.mesh.aborted[to].swap(true, Ordering::AcqRel) {
            self.mesh.network.count(Kind::Frame, 1, bytes);
            return;
        }
        let other = lock(&self.mesh.state).ends[to]
            .as_ref()
            .map(|end| end.process);
        let Some(other) = other else { return };
        let (mesh, rank) = (self.mesh.clone(), self.rank);
        let message = mesh.message(self.process, other, bytes);
        let arrives = move |_: &Arc<Kernel>| {
            mesh.on(to, |inbox| {
                if let Err(reason) = inbox.deliver(rank, &frame.header, frame.payload) {
                    inbox.lost(rank, &reason);
                }
            });
        };
        let (kernel, network) = (&self.mesh.kernel, &self.mesh.network);
        network.send(kernel, &message, Box::new(arrives));
    }

    fn flush(&self, _deadline: Instant) -> bool {
        true
    }

    fn sever(&self) {}

    fn cut(&self, _peer: usize) {}
}
