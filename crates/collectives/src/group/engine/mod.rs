//! Runs one collective over the channels of a group: all transfers progress at once.
//!
//! The calling thread (communication thread or caller) polls all channels and moves what can be moved.
//! It waits only when nothing can: it spins, then yields, then sleeps. While it waits it checks for a
//! failed group, lost peers and its deadline.

mod header;
mod task;
#[cfg(test)]
mod tests;
mod transfer;
mod trouble;
mod wait_policy;

use std::time::{Duration, Instant};

pub(crate) use self::task::{ALIGNMENT, Plan, Space, TaskId};
pub(crate) use self::transfer::Buffers;
pub(crate) use self::wait_policy::WaitPolicy;

use self::header::{ChannelHeader, HEADER_BYTES};
use self::transfer::{BLOCK, SOCKET_BLOCK};
use self::wait_policy::{Backoff, WaitAction};
use super::collective::Collective;
use super::element::Element;
use super::error::CollectiveError;
use super::reduce::ReduceOp;
use super::signature::Signature;
use super::tuning::Path;
use crate::channel::{Channels, Interest};
use crate::shared_memory::Ticket;

/// The state of one peer during one collective.
#[derive(Debug, Default)]
struct Peer {
    header_out: Header,
    header_in: Header,
    /// The operation that the peer called.
    signature: Option<Signature>,
    sent: bool,
    received: bool,
    /// Set once reads from its channel fail: time and cause.
    broken: Option<(Instant, String)>,
    /// Set once writes to its channel fail: time and cause.
    refused: Option<(Instant, String)>,
    /// Set once the control plane has reported the peer as gone.
    gone: Option<Instant>,
}

#[derive(Debug)]
struct Header([u8; HEADER_BYTES]);

impl Default for Header {
    fn default() -> Self {
        Self([0; HEADER_BYTES])
    }
}

/// Buffers of a group's collectives, reused from one to the next.
#[derive(Debug, Default)]
pub(crate) struct Workspace {
    pub(crate) plan: Plan,
    peers: Vec<Peer>,
    scratch: Vec<u64>,
}

/// A collective under way.
pub(crate) struct Engine<'a, 'b, T> {
    collective: &'a Collective<'a>,
    channels: &'a mut Channels,
    workspace: &'a mut Workspace,
    buffers: Buffers<'b, T>,
    op: ReduceOp,
    /// The lengths to receive are known only from the headers.
    lists: bool,
    /// The number of unfinished transfers (channel directions).
    open: usize,
    /// A rank called another operation.
    disagree: bool,
    /// The most bytes per transfer step.
    block: usize,
}

impl<'a, 'b, T: Element> Engine<'a, 'b, T> {
    /// With the reduction, and whether a list of any length comes from each rank.
    pub(crate) fn new(
        collective: &'a Collective<'a>,
        channels: &'a mut Channels,
        workspace: &'a mut Workspace,
        buffers: Buffers<'b, T>,
        (op, lists): (ReduceOp, bool),
    ) -> Self {
        let block = match channels.path() {
            Path::SharedMemory => BLOCK,
            Path::Tcp | Path::Hosts => SOCKET_BLOCK,
        };
        Self {
            collective,
            channels,
            workspace,
            buffers,
            op,
            lists,
            open: 0,
            disagree: false,
            block,
        }
    }

    /// Executes the plan.
    pub(crate) fn run(mut self) -> Result<(), CollectiveError> {
        self.begin();
        let wait_policy = self.collective.wait_policy;
        let mut backoff = Backoff::new(wait_policy, self.channels.oversubscribed);
        loop {
            if self.pass()? {
                backoff.reset();
            }
            if self.is_over() {
                return match self.disagree {
                    true => Err(self.mismatch(false)),
                    false => Ok(()),
                };
            }
            match backoff.next_action() {
                WaitAction::Retry => {}
                WaitAction::Yield => std::thread::yield_now(),
                WaitAction::Sleep => {
                    let ticket = self.channels.ticket();
                    if self.pass()? {
                        backoff.reset();
                    } else {
                        self.sleep(ticket, backoff.next_pause());
                        if self.check()? {
                            backoff.reset();
                        }
                    }
                }
            }
        }
    }

    /// Prepares headers and buffers; the workspace's plan is already filled.
    fn begin(&mut self) {
        let (rank, size) = (self.collective.rank(), self.collective.size());
        let Workspace {
            plan,
            peers,
            scratch,
        } = &mut *self.workspace;
        peers.clear();
        peers.resize_with(size, Peer::default);
        for (to, peer) in peers.iter_mut().enumerate() {
            let header = ChannelHeader {
                sequence: self.collective.context.sequence,
                bytes: plan.sends[to].bytes as u64,
                signature: self.collective.signature,
            };
            peer.header_out = Header(header.encode());
            (peer.sent, peer.received) = (to == rank, to == rank);
        }
        peers[rank].signature = Some(self.collective.signature);
        self.open = 2 * (size - 1);
        let block = self.block.min(size_of_val(self.buffers.values));
        let words = block.div_ceil(size_of::<u64>());
        if scratch.len() < words {
            scratch.resize(words, 0);
        }
    }

    /// Whether all transfers are done or, after a mismatch, all headers have been exchanged.
    fn is_over(&self) -> bool {
        match self.disagree {
            true => self.all_headers_moved(),
            false => self.open == 0,
        }
    }

    /// Polls all channels once. Returns whether any bytes were moved.
    fn pass(&mut self) -> Result<bool, CollectiveError> {
        let mut moved = false;
        for peer in self.collective.others() {
            let Peer {
                sent,
                received,
                refused,
                broken,
                ..
            } = &self.workspace.peers[peer];
            let (send, receive) = (!sent && refused.is_none(), !received && broken.is_none());
            if send {
                moved |= self.send_to(peer);
            }
            if receive {
                moved |= self.receive_from(peer)?;
            }
        }
        Ok(moved)
    }

    fn send_to(&mut self, to: usize) -> bool {
        let Workspace { plan, peers, .. } = &mut *self.workspace;
        let Some(channel) = self.channels.channel(to) else {
            return false;
        };
        let peer = &mut peers[to];
        match transfer::send(
            channel,
            plan,
            &self.buffers,
            to,
            &peer.header_out.0,
            self.block,
        ) {
            Ok(bytes) => {
                let (tasks, _, queue) = plan.sending(to);
                if bytes > 0 && queue.is_done(tasks) {
                    peer.sent = true;
                    self.open -= 1;
                }
                bytes > 0
            }
            Err(error) => {
                peer.refused = Some((Instant::now(), error.cause));
                false
            }
        }
    }

    fn receive_from(&mut self, from: usize) -> Result<bool, CollectiveError> {
        if self.workspace.plan.receives[from].header < HEADER_BYTES {
            let bytes = self.receive_header(from)?;
            if self.workspace.plan.receives[from].header < HEADER_BYTES {
                return Ok(bytes > 0);
            }
        }
        // The data of a rank that called another operation are not for this one.
        if !self.workspace.plan.receives[from].is_open {
            return Ok(false);
        }
        let Workspace {
            plan,
            peers,
            scratch,
        } = &mut *self.workspace;
        let both = (self.collective.rank(), from);
        let channels = &mut self.channels.by_rank;
        match transfer::receive(
            channels,
            plan,
            &mut self.buffers,
            scratch,
            both,
            (self.op, self.block),
        ) {
            Ok(bytes) => {
                if plan.receives[from].is_done(&plan.tasks) {
                    peers[from].received = true;
                    self.open -= 1;
                    return Ok(true);
                }
                Ok(bytes > 0)
            }
            Err((peer, error)) => {
                peers[peer].broken = Some((Instant::now(), error.cause));
                Ok(false)
            }
        }
    }

    /// Receives the header as far as it has arrived, and checks it once it is complete.
    fn receive_header(&mut self, from: usize) -> Result<usize, CollectiveError> {
        let Workspace { plan, peers, .. } = &mut *self.workspace;
        let queue = &mut plan.receives[from];
        let peer = &mut peers[from];
        let Some(channel) = self.channels.channel(from) else {
            return Ok(0);
        };
        match channel.try_recv(&mut peer.header_in.0[queue.header..]) {
            Ok(bytes) => {
                queue.header += bytes;
                if queue.header == HEADER_BYTES {
                    self.read_header(from)?;
                }
                Ok(bytes)
            }
            Err(error) => {
                peer.broken = Some((Instant::now(), error.cause));
                Ok(0)
            }
        }
    }

    fn read_header(&mut self, from: usize) -> Result<(), CollectiveError> {
        let header = ChannelHeader::decode(&self.workspace.peers[from].header_in.0);
        let header = header.map_err(|reason| self.collective.protocol(from, reason))?;
        let ours = self.collective.context.sequence;
        if header.sequence != ours {
            let reason = format!("it is at collective {}, not {ours}", header.sequence);
            return Err(self.collective.protocol(from, reason));
        }
        self.workspace.peers[from].signature = Some(header.signature);
        if header.signature != self.collective.signature {
            self.disagree = true;
            return Ok(());
        }
        self.workspace.plan.receives[from].is_open = true;
        if self.lists {
            return self.make_list(from, header.bytes);
        }
        let expected = self.workspace.plan.receives[from].bytes as u64;
        if header.bytes != expected {
            let found = header.bytes;
            let reason = format!("it announced {found} bytes instead of {expected}");
            return Err(self.collective.protocol(from, reason));
        }
        Ok(())
    }

    /// Allocates the list of `bytes` bytes that `from` announced. Zeroed pages are backed by memory only
    /// when they are written, so a false length costs nothing.
    fn make_list(&mut self, from: usize, bytes: u64) -> Result<(), CollectiveError> {
        let limit = self.collective.core.options.max_message_bytes;
        let refused = |reason: String| Err(self.collective.protocol(from, reason));
        if bytes > limit {
            return refused(format!(
                "it announced {bytes} bytes, more than the {limit} allowed (option \
                 `max_message_bytes`)"
            ));
        }
        if !bytes.is_multiple_of(size_of::<T>() as u64) {
            let dtype = T::DTYPE;
            return refused(format!(
                "it announced {bytes} bytes, not a whole number of {dtype}"
            ));
        }
        let length = bytes as usize / size_of::<T>();
        let Ok(list) = bytemuck::allocation::try_zeroed_vec(length) else {
            return refused(format!(
                "it announced {bytes} bytes, more than there is memory"
            ));
        };
        self.buffers.outputs[from] = list;
        let plan = &mut self.workspace.plan;
        plan.copy(from, Space::Output(from), 0..length);
        Ok(())
    }

    /// Sleeps until a channel is ready, for a short time at most. Sockets are polled after `between_polls`.
    fn sleep(&mut self, ticket: Option<Ticket>, between_polls: Duration) {
        let Workspace { plan, peers, .. } = &mut *self.workspace;
        let mut interests = Vec::with_capacity(peers.len());
        for (rank, peer) in peers.iter().enumerate() {
            let buffered = self
                .channels
                .channel(rank)
                .map_or(0, |channel| channel.buffered());
            let mut interest = Interest::default();
            let (reads, writes) = (peer.broken.is_none(), peer.refused.is_none());
            interest.read = reads && !peer.received && plan.wants_more(rank, buffered, self.block);
            interest.write = writes && !peer.sent && plan.has_more(rank);
            interests.push(interest);
        }
        self.channels.wait(ticket, &interests, between_polls);
    }
}
