//! The network between the machines: latency, bandwidth, loss, and machines that are cut off.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use everburn_collectives::sync::lock;

use crate::kernel::{Action, Kernel};

/// From one machine to another, at least, and up to so much more.
const LATENCY: Duration = Duration::from_micros(50);
const JITTER: Duration = Duration::from_micros(50);

/// Between processes of one machine.
const LOOPBACK: Duration = Duration::from_micros(10);

/// Bytes per second that one machine sends: 10 Gbit/s.
const BANDWIDTH: u64 = 1_250_000_000;

/// One message of this many is lost, and comes after the time in which TCP sends it again.
const LOSS: u64 = 10_000;
const SENT_AGAIN: Duration = Duration::from_millis(200);

/// The bytes of headers per message.
const HEADERS: u64 = 66;

/// What a message is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Ranks that meet for the first time.
    Rendezvous,
    /// Rounds of an elastic job.
    Membership,
    /// Addresses of a mesh.
    Mesh,
    /// Beats, and reports of hangs.
    Heartbeat,
    /// The launchers of the machines.
    Launcher,
    /// Frames between ranks: aborts and goodbyes.
    Frame,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 6] = [
        Self::Rendezvous,
        Self::Membership,
        Self::Mesh,
        Self::Heartbeat,
        Self::Launcher,
        Self::Frame,
    ];

    /// The name in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rendezvous => "rendezvous",
            Self::Membership => "membership",
            Self::Mesh => "mesh",
            Self::Heartbeat => "heartbeats",
            Self::Launcher => "launchers",
            Self::Frame => "frames",
        }
    }
}

/// Messages and bytes by [`Kind`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Messages by kind, replies included.
    pub messages: [u64; Kind::ALL.len()],
    /// Bytes of all.
    pub bytes: u64,
}

impl Traffic {
    /// All messages.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.messages.iter().sum()
    }

    /// What has been added since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut messages = self.messages;
        for (now, before) in messages.iter_mut().zip(earlier.messages) {
            *now -= before;
        }
        Self {
            messages,
            bytes: self.bytes - earlier.bytes,
        }
    }
}

#[derive(Default)]
struct Machine {
    cut: bool,
    /// Messages that wait for the cable.
    held: Vec<(usize, usize, Action)>,
    /// When it has sent what it is sending.
    sends_until: Duration,
}

#[derive(Default)]
struct State {
    machines: Vec<Machine>,
    /// When the last message of each connection comes: none overtakes another.
    last: HashMap<(usize, usize), Duration>,
    traffic: Traffic,
}

pub(crate) struct Network {
    state: Mutex<State>,
}

pub(crate) struct Message {
    pub(crate) from: usize,
    pub(crate) to: usize,
    /// Which messages come in order with it.
    pub(crate) connection: usize,
    pub(crate) bytes: u64,
    pub(crate) kind: Kind,
}

impl Network {
    pub(crate) fn new(machines: usize) -> Self {
        let mut state = State::default();
        state.machines.resize_with(machines, Machine::default);
        Self {
            state: Mutex::new(state),
        }
    }

    pub(crate) fn traffic(&self) -> Traffic {
        lock(&self.state).traffic
    }

    /// Counts messages that are not simulated one by one.
    pub(crate) fn count(&self, kind: Kind, messages: u64, bytes: u64) {
        let traffic = &mut lock(&self.state).traffic;
        traffic.messages[kind as usize] += messages;
        traffic.bytes += bytes;
    }

    /// Has `arrives` happen when `message` does.
    pub(crate) fn send(&self, kernel: &Arc<Kernel>, message: &Message, arrives: Action) {
        self.count(message.kind, 1, message.bytes + HEADERS);
        let (from, to) = (message.from, message.to);
        let mut delay = LOOPBACK;
        if from != to {
            let jitter = kernel.random_below(JITTER.as_nanos() as u64);
            delay = LATENCY + Duration::from_nanos(jitter);
            if kernel.random_below(LOSS) == 0 {
                delay += SENT_AGAIN;
            }
        }
        let now = kernel.now();
        let mut state = lock(&self.state);
        if from != to
            && let Some(cut) = [from, to].into_iter().find(|it| state.machines[*it].cut)
        {
            state.machines[cut].held.push((from, to, arrives));
            return;
        }
        if from != to {
            let takes = (message.bytes + HEADERS) * 1_000_000_000 / BANDWIDTH;
            let machine = &mut state.machines[from];
            machine.sends_until = machine.sends_until.max(now) + Duration::from_nanos(takes);
            delay += machine.sends_until - now;
        }
        let last = state.last.entry((message.connection, to)).or_default();
        *last = (now + delay).max(*last);
        let at = *last;
        drop(state);
        kernel.at(at, arrives);
    }

    /// Pulls or plugs the cable of a machine. What was sent meanwhile comes when TCP sends it again.
    pub(crate) fn set_cut(&self, kernel: &Arc<Kernel>, machine: usize, cut: bool) {
        let mut state = lock(&self.state);
        state.machines[machine].cut = cut;
        if cut {
            return;
        }
        let held = std::mem::take(&mut state.machines[machine].held);
        let mut late = Vec::new();
        for (from, to, arrives) in held {
            match [from, to].into_iter().find(|it| state.machines[*it].cut) {
                Some(other) => state.machines[other].held.push((from, to, arrives)),
                None => late.push(arrives),
            }
        }
        drop(state);
        for arrives in late {
            kernel.after(SENT_AGAIN, arrives);
        }
    }
}
