//! What has arrived for one process group, and who waits for it.

use std::collections::{HashMap, VecDeque};
use std::mem;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use super::backlog::{Awaited, Backlog, Charge};
use super::interruption::{Failure, Interruption, Parting};
use super::payload::Payload;
use crate::group::Signature;
use crate::runtime::{self, Condition};
use crate::sync::lock;

/// A rank's part in a collective.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) signature: Signature,
    pub(crate) payload: Payload,
}

/// Whom to call with a message, or with the reason why there will be none.
pub(crate) type Receiver = Box<dyn FnOnce(Result<Payload, Interruption>) + Send>;

/// Whom to call when a message has been written.
pub(crate) type OnWritten = Box<dyn FnOnce(Result<(), Interruption>) + Send>;

/// How long bytes that a rank sent before its failure may still be under way on another connection
/// than the news of it.
pub(crate) const STRAGGLERS: Duration = Duration::from_millis(100);

/// Where one collective's parts of one phase are found: sequence number and phase.
pub(crate) type PartKey = (u64, u8);

#[derive(Default)]
struct State {
    parts: HashMap<(PartKey, usize), (Part, Charge)>,
    messages: HashMap<(usize, u64), VecDeque<(Payload, Charge)>>,
    receivers: HashMap<(usize, u64), VecDeque<(Receiver, Awaited)>>,
    on_written: HashMap<u64, (usize, OnWritten)>,
    next_send: u64,
    failure: Option<Failure>,
    failed_at: Option<Instant>,
    /// Ranks that will send nothing more, and why.
    gone: HashMap<usize, Parting>,
    /// The mailboxes of sub-groups, which fail with this one.
    children: Vec<Weak<Mailbox>>,
}

/// The mailbox of one group on one rank: transports put frames in, the group takes them out.
///
/// Callbacks run on the thread that brings the news, and never under the lock.
pub(crate) struct Mailbox {
    state: Mutex<State>,
    changed: Condition,
    /// What waits in all mailboxes of this rank.
    backlog: Arc<Backlog>,
}

impl Default for Mailbox {
    /// A mailbox without a transport.
    fn default() -> Self {
        Self::new(&Backlog::new(u64::MAX, u64::MAX))
    }
}

impl Mailbox {
    pub(crate) fn new(backlog: &Arc<Backlog>) -> Self {
        Self {
            state: Mutex::default(),
            changed: Condition::default(),
            backlog: backlog.clone(),
        }
    }

    /// `peers` may send until the guard is dropped, however much waits here already.
    pub(crate) fn awaits(&self, peers: &[usize]) -> Awaited {
        self.backlog.awaits(peers)
    }

    /// Takes in `from`'s part; an error if it is there already, which no honest rank causes.
    pub(crate) fn put_part(&self, key: PartKey, from: usize, part: Part) -> Result<(), String> {
        let charge = self.backlog.charge(from, part.payload.bytes().len());
        let mut state = lock(&self.state);
        let before = state.parts.insert((key, from), (part, charge));
        if before.is_some() {
            return Err(format!(
                "two frames for phase {} of collective {}",
                key.1, key.0
            ));
        }
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    /// Drops the parts of collectives up to number `sequence`, which are over.
    pub(crate) fn drop_parts_until(&self, sequence: u64) {
        let mut state = lock(&self.state);
        state.parts.retain(|((number, _), _), _| *number > sequence);
    }

    /// Takes in a message, or hands it to whoever has waited longest for it.
    pub(crate) fn put_message(&self, from: usize, tag: u64, payload: Payload) {
        let mut state = lock(&self.state);
        match pop(&mut state.receivers, (from, tag)) {
            Some((receiver, _awaited)) => {
                drop(state);
                receiver(Ok(payload));
            }
            None => {
                let charge = self.backlog.charge(from, payload.bytes().len());
                let messages = state.messages.entry((from, tag)).or_default();
                messages.push_back((payload, charge));
            }
        }
    }

    /// Waits for the part of `from`.
    ///
    /// Ends at once when the group fails or when any rank of `outstanding` (the ranks whose part
    /// of this phase is still needed) is gone without having sent it. Parts that are there come
    /// first: a rank that answered and then left has answered.
    pub(crate) fn take_part(
        &self,
        key: PartKey,
        from: usize,
        outstanding: &[usize],
        deadline: Instant,
    ) -> Result<Part, Interruption> {
        let mut awaited = None;
        let mut state = lock(&self.state);
        loop {
            if let Some((part, _charge)) = state.parts.remove(&(key, from)) {
                return Ok(part);
            }
            if let Some(failure) = &state.failure {
                return Err(Interruption::Failed(failure.clone()));
            }
            let missing = |peer: &&usize| !state.parts.contains_key(&(key, **peer));
            for peer in outstanding.iter().filter(missing) {
                if let Some(parting) = state.gone.get(peer) {
                    return Err(Interruption::Gone {
                        peer: *peer,
                        cause: parting.cause.clone(),
                    });
                }
            }
            awaited.get_or_insert_with(|| match outstanding {
                [] => self.awaits(&[from]),
                all => self.awaits(all),
            });
            let (locked, late) = self.changed.wait_until(&self.state, state, deadline);
            state = locked;
            if late {
                let missing = |peer: &&usize| !state.parts.contains_key(&(key, **peer));
                let missing = outstanding.iter().filter(missing).copied().collect();
                return Err(Interruption::Deadline { missing });
            }
        }
    }

    /// Calls `receiver` with the next message of `from` under `tag`, now or when it comes.
    pub(crate) fn take_message(&self, from: usize, tag: u64, receiver: Receiver) {
        let mut state = lock(&self.state);
        if let Some(failure) = state.failure.clone().filter(|failure| failure.destroyed) {
            drop(state);
            receiver(Err(Interruption::Failed(failure)));
            return;
        }
        let answer = match pop(&mut state.messages, (from, tag)) {
            Some((payload, _charge)) => Ok(payload),
            None => match interruption(&state, from) {
                Some(interruption) => Err(interruption),
                None => {
                    state
                        .receivers
                        .entry((from, tag))
                        .or_default()
                        .push_back((receiver, self.awaits(&[from])));
                    return;
                }
            },
        };
        drop(state);
        receiver(answer);
    }

    /// Registers `call` for a message to `peer`; it is called once, by [`Mailbox::written`],
    /// or when the group fails. `None` if it has been called already.
    pub(crate) fn on_written(&self, peer: usize, call: OnWritten) -> Option<u64> {
        let mut state = lock(&self.state);
        if let Some(interruption) = interruption(&state, peer) {
            drop(state);
            call(Err(interruption));
            return None;
        }
        let id = state.next_send;
        state.next_send += 1;
        state.on_written.insert(id, (peer, call));
        Some(id)
    }

    /// Reports to the send `id` what became of its message.
    pub(crate) fn written(&self, id: u64, result: Result<(), String>) {
        let Some((peer, call)) = lock(&self.state).on_written.remove(&id) else {
            return;
        };
        call(result.map_err(|cause| Interruption::Gone { peer, cause }));
    }

    /// Waits until `is_done`, which [`Mailbox::wake`] has asked. Ends at once when the group fails or any rank is gone without a
    /// goodbye.
    pub(crate) fn wait_for(
        &self,
        is_done: &dyn Fn() -> bool,
        deadline: Instant,
    ) -> Result<(), Interruption> {
        let mut state = lock(&self.state);
        loop {
            if is_done() {
                return Ok(());
            }
            if let Some(failure) = &state.failure {
                return Err(Interruption::Failed(failure.clone()));
            }
            let gone = state.gone.iter().filter(|(_, it)| !it.in_order);
            if let Some((peer, parting)) = gone.min_by_key(|(peer, _)| **peer) {
                return Err(Interruption::Gone {
                    peer: *peer,
                    cause: parting.cause.clone(),
                });
            }
            let (locked, late) = self.changed.wait_until(&self.state, state, deadline);
            state = locked;
            if late {
                return Err(Interruption::Deadline {
                    missing: Vec::new(),
                });
            }
        }
    }

    /// Has [`Mailbox::wait_for`] look again.
    pub(crate) fn wake(&self) {
        self.changed.notify_all();
    }

    pub(crate) fn failure(&self) -> Option<Failure> {
        lock(&self.state).failure.clone()
    }

    /// How long ago the group has failed here, if it has.
    pub(crate) fn failed_for(&self) -> Option<Duration> {
        lock(&self.state).failed_at.map(runtime::elapsed)
    }

    /// The failure of the group, or of which the news comes within a moment: another rank's end is often
    /// seen before its reason.
    pub(crate) fn failure_of_late(&self) -> Option<Failure> {
        let deadline = runtime::now() + STRAGGLERS;
        let waits = |state: &mut State| state.failure.is_none();
        let (state, _) = self
            .changed
            .wait_while(&self.state, lock(&self.state), deadline, waits);
        state.failure.clone()
    }

    /// The failure of the group, if it makes waiting pointless: one of `rank`, which is this rank,
    /// at once (its abort is one too), another's after [`STRAGGLERS`]. What that rank sent before
    /// may still be under way on another connection than the news, and is often the very thing that
    /// gives this rank the reason too.
    pub(crate) fn settled_failure(&self, rank: usize) -> Option<Failure> {
        let state = lock(&self.state);
        let failure = state.failure.as_ref()?;
        let fresh = state
            .failed_at
            .is_some_and(|at| runtime::elapsed(at) < STRAGGLERS);
        let own = failure.first.is_some() || failure.destroyed || failure.by == rank;
        (own || !fresh).then(|| failure.clone())
    }

    /// Marks the group as failed, ends all waiting and fails the sub-groups too; `false` if it
    /// had failed before (the first cause stays).
    pub(crate) fn fail(&self, failure: &Failure) -> bool {
        let mut state = lock(&self.state);
        if state.failure.is_some() {
            return false;
        }
        state.failure = Some(failure.clone());
        state.failed_at = Some(runtime::now());
        let receivers = mem::take(&mut state.receivers);
        let on_written = mem::take(&mut state.on_written);
        let children = mem::take(&mut state.children);
        drop(state);
        self.changed.notify_all();
        for (receiver, _awaited) in receivers.into_values().flatten() {
            receiver(Err(Interruption::Failed(failure.clone())));
        }
        for (_, call) in on_written.into_values() {
            call(Err(Interruption::Failed(failure.clone())));
        }
        if !failure.destroyed {
            for child in children.iter().filter_map(Weak::upgrade) {
                child.fail(failure);
            }
        }
        true
    }

    /// Notes that `peer` will send nothing more. The first cause stays.
    ///
    /// Calls for messages to `peer` are left to the transport: a peer may well answer and leave
    /// before this rank has come to report the message that it answered.
    pub(crate) fn mark_gone(&self, peer: usize, parting: &Parting) {
        let mut state = lock(&self.state);
        if state.gone.contains_key(&peer) {
            return;
        }
        state.gone.insert(peer, parting.clone());
        let keys: Vec<_> = state
            .receivers
            .keys()
            .filter(|key| key.0 == peer)
            .copied()
            .collect();
        let receivers: Vec<_> = keys
            .iter()
            .filter_map(|key| state.receivers.remove(key))
            .flatten()
            .collect();
        drop(state);
        self.changed.notify_all();
        for (receiver, _awaited) in receivers {
            receiver(Err(Interruption::Gone {
                peer,
                cause: parting.cause.clone(),
            }));
        }
    }

    /// How `peer` went, if it is gone.
    pub(crate) fn parting(&self, peer: usize) -> Option<Parting> {
        lock(&self.state).gone.get(&peer).cloned()
    }

    /// Waits until every rank of `peers` is gone; the others when `deadline` passes.
    pub(crate) fn wait_gone(&self, peers: &[usize], deadline: Instant) -> Vec<usize> {
        let _awaited = self.awaits(peers);
        let is_present = |state: &State, peer: &usize| !state.gone.contains_key(peer);
        let waits = |state: &mut State| peers.iter().any(|peer| is_present(state, peer));
        let (state, _) = self
            .changed
            .wait_while(&self.state, lock(&self.state), deadline, waits);
        let present = peers.iter().filter(|peer| is_present(&state, peer));
        present.copied().collect()
    }

    /// Makes `child` fail when this mailbox fails.
    pub(crate) fn adopt(&self, child: &Arc<Self>) {
        let mut state = lock(&self.state);
        match state.failure.clone() {
            Some(failure) if !failure.destroyed => {
                drop(state);
                child.fail(&failure);
            }
            Some(_) => {}
            None => {
                state.children.retain(|child| child.strong_count() > 0);
                state.children.push(Arc::downgrade(child));
            }
        }
    }
}

/// The first of the queue at `key`; of an empty queue nothing is kept.
fn pop<T>(queues: &mut HashMap<(usize, u64), VecDeque<T>>, key: (usize, u64)) -> Option<T> {
    let queue = queues.get_mut(&key)?;
    let first = queue.pop_front();
    if queue.is_empty() {
        queues.remove(&key);
    }
    first
}

/// Why nothing can be expected from (or sent to) `peer`.
fn interruption(state: &State, peer: usize) -> Option<Interruption> {
    if let Some(failure) = &state.failure {
        return Some(Interruption::Failed(failure.clone()));
    }
    let cause = state.gone.get(&peer)?.cause.clone();
    Some(Interruption::Gone { peer, cause })
}
