//! What a group's handles, its communication thread and its pending messages share, and how a
//! group fails.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, Weak};
use std::time::{Duration, Instant};

use super::GroupOptions;
use super::engine::Workspace;
use super::error::CollectiveError;
use super::flight::{FlightEntry, FlightRecorder, FlightState, NO_LABEL};
use super::signature::{Call, Signature};
use crate::channel::Channels;
use crate::sync::{lock, wait_while};
use crate::transport::{
    Failure, Frame, FrameKind, Header, Mailbox, Payload, Transport, encode_abort,
};

/// How often a collective that waits for its turn looks whether the group has failed.
const TURN_TICK: Duration = Duration::from_millis(100);

/// How many operations of failed sub-groups are remembered.
const MOST_REMEMBERED: usize = 64;

/// One call of this rank: what it was, and where in the run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OpContext {
    pub(crate) call: Call,
    pub(crate) sequence: u64,
    pub(crate) step: u64,
    pub(crate) started: Instant,
    /// Under which the flight recorder finds it; 0 if it has no entry.
    pub(crate) ticket: u64,
}

/// The group as its communication thread sees it.
pub(crate) struct Core {
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) id: u64,
    /// What reports call it, once [`super::ProcessGroup::named`] has said.
    pub(crate) name: OnceLock<&'static str>,
    /// The job rank of each member, by group rank.
    pub(crate) members: Vec<usize>,
    /// This rank's number in the group.
    pub(crate) rank: usize,
    pub(crate) options: GroupOptions,
    /// The label of [`super::ProcessGroup::set_step`], shared with sub-groups.
    pub(crate) step: Arc<AtomicU64>,
    /// The label of [`super::ProcessGroup::set_label`].
    pub(crate) label: AtomicU32,
    /// The sub-groups that were made of this group.
    pub(crate) children: Mutex<Vec<Weak<Self>>>,
    /// The group that this one was made of.
    pub(crate) parent: Weak<Self>,
    /// What sub-groups that have failed and gone were doing, and when they went.
    remembered: Mutex<Vec<(Instant, FlightEntry)>>,
    /// How many collectives this rank has issued.
    pub(crate) issued: AtomicU64,
    progress: Mutex<Progress>,
    turn: Condvar,
    /// Channels and workspace, locked by the thread that runs the current collective.
    pub(crate) data: Mutex<DataPlane>,
    /// Group ranks whose channels the next collective closes (fault injection).
    cut: Mutex<Vec<usize>>,
    any_cut: AtomicBool,
    /// A collective has ended early: the channels may still hold data that others sent for it.
    pub(crate) channels_out_of_step: AtomicBool,
}

#[derive(Default)]
pub(crate) struct DataPlane {
    /// Established by the group's first collective.
    pub(crate) channels: Option<Channels>,
    pub(crate) workspace: Workspace,
}

#[derive(Default)]
struct Progress {
    finished: u64,
    /// The job ranks that the collective under way is waiting for.
    waiting_for: Vec<usize>,
    flight: FlightRecorder,
}

impl Core {
    pub(crate) fn new(
        transport: Arc<dyn Transport>,
        mailbox: Arc<Mailbox>,
        id: u64,
        members: Vec<usize>,
        rank: usize,
        options: GroupOptions,
        step: Arc<AtomicU64>,
    ) -> Self {
        let issued = AtomicU64::new(0);
        let label = AtomicU32::new(NO_LABEL);
        let (name, children, parent, remembered, progress, turn) = Default::default();
        let (data, cut, any_cut) = Default::default();
        Self {
            transport,
            mailbox,
            id,
            name,
            members,
            rank,
            options,
            step,
            label,
            children,
            parent,
            remembered,
            issued,
            progress,
            turn,
            data,
            cut,
            any_cut,
            channels_out_of_step: AtomicBool::new(false),
        }
    }

    /// This rank's number in the job, which errors name.
    pub(crate) fn job_rank(&self) -> usize {
        self.transport.rank()
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.options.timeout.unwrap_or(super::DEFAULT_TIMEOUT)
    }

    /// The job ranks of the other members, beginning after this one, so that not all ranks send to
    /// the same one first.
    pub(crate) fn others(&self) -> impl Iterator<Item = usize> {
        let size = self.members.len();
        (1..size).map(move |offset| self.members[(self.rank + offset) % size])
    }

    pub(crate) fn send(&self, to: usize, step: u64, kind: FrameKind, payload: Payload) {
        let header = Header {
            group: self.id,
            step,
            kind,
        };
        self.transport.send(to, Frame::new(header, payload));
    }

    /// Takes the signatures that have come, without waiting; by group rank.
    pub(crate) fn take_signatures(&self, key: (u64, u8), signatures: &mut [Option<Signature>]) {
        for (signature, from) in signatures.iter_mut().zip(&self.members) {
            if signature.is_none() {
                let part = self.mailbox.take_part(key, *from, &[], Instant::now());
                *signature = part.ok().map(|part| part.signature);
            }
        }
    }

    /// The context of `call`, made now, without an entry in the flight recorder.
    pub(crate) fn context(&self, call: Call) -> OpContext {
        OpContext {
            call,
            sequence: self.issued.load(Ordering::Acquire),
            step: self.step.load(Ordering::Relaxed),
            started: Instant::now(),
            ticket: 0,
        }
    }

    /// Adds an issued operation to the flight recorder.
    pub(crate) fn record(&self, context: &mut OpContext, state: FlightState) {
        let label = self.label.load(Ordering::Relaxed);
        context.ticket = lock(&self.progress).flight.begin(*context, label, state);
    }

    /// Notes in the flight recorder that the turn of an issued operation has come, at `context.started`.
    pub(crate) fn record_turn(&self, context: &mut OpContext) {
        let label = self.label.load(Ordering::Relaxed);
        context.ticket = lock(&self.progress).flight.run(context, label);
    }

    /// The number of the next collective; `call` takes it if it is one.
    pub(crate) fn count_issued(&self, call: Call) -> u64 {
        match call {
            Call::Collective(_) => self.issued.fetch_add(1, Ordering::AcqRel),
            _ => self.issued.load(Ordering::Acquire),
        }
    }

    /// The collective under way.
    pub(crate) fn running(&self) -> Option<OpContext> {
        lock(&self.progress).flight.running()
    }

    pub(crate) fn record_end(&self, context: &OpContext, failed: bool) {
        let Progress {
            waiting_for,
            flight,
            ..
        } = &mut *lock(&self.progress);
        flight.end(context.ticket, failed, waiting_for);
    }

    /// The last operations of this group and of its sub-groups.
    pub(crate) fn flight_record(&self) -> Vec<FlightEntry> {
        let progress = lock(&self.progress);
        let waiting_for = &progress.waiting_for;
        let group = (self.id, self.name.get().copied());
        let mut entries = progress.flight.entries(group, &self.members, waiting_for);
        drop(progress);
        for child in self.living_children() {
            entries.extend(child.flight_record());
        }
        let remembered = lock(&self.remembered);
        entries.extend(
            remembered
                .iter()
                .map(|(at, entry)| entry.aged(at.elapsed())),
        );
        entries
    }

    /// Keeps what a failed sub-group was doing: a hang report is made after its handles are gone.
    fn remember(&self, entries: Vec<FlightEntry>) {
        let now = Instant::now();
        let mut remembered = lock(&self.remembered);
        remembered.extend(entries.into_iter().map(|entry| (now, entry)));
        let surplus = remembered.len().saturating_sub(MOST_REMEMBERED);
        remembered.drain(..surplus);
    }

    /// The sub-groups of this group that somebody still uses.
    pub(crate) fn living_children(&self) -> Vec<Arc<Self>> {
        let mut children = lock(&self.children);
        children.retain(|child| child.strong_count() > 0);
        children.iter().filter_map(Weak::upgrade).collect()
    }

    /// Waits for the turn of the collective `context`: for those before it, each of which has a
    /// deadline of its own. The context then starts at the time at which its turn came.
    pub(crate) fn take_turn(&self, context: &OpContext) -> Result<OpContext, CollectiveError> {
        let mut context = *context;
        loop {
            let mut now = Instant::now();
            let label = self.label.load(Ordering::Relaxed);
            let mut progress = lock(&self.progress);
            if progress.finished < context.sequence && context.ticket == 0 {
                context.ticket = progress.flight.begin(context, label, FlightState::Queued);
            }
            let (mut progress, waited) =
                self.until_turn(progress, context.sequence, now + TURN_TICK);
            let come = progress.finished >= context.sequence;
            if waited {
                now = Instant::now();
            }
            if come {
                context.started = now;
                context.ticket = progress.flight.run(&context, label);
            }
            drop(progress);
            // The next collective must not take data of an earlier one for its own.
            let failure = match self.channels_out_of_step.load(Ordering::Acquire) {
                true => self.mailbox.failure(),
                false => self.mailbox.settled_failure(self.job_rank()),
            };
            if let Some(failure) = failure {
                let error = self.failed(&context, &failure);
                self.record_end(&context, true);
                return Err(error);
            }
            if come {
                return Ok(context);
            }
        }
    }

    /// How many collectives are finished.
    pub(crate) fn finished(&self) -> u64 {
        lock(&self.progress).finished
    }

    pub(crate) fn waiting_for(&self) -> Vec<usize> {
        lock(&self.progress).waiting_for.clone()
    }

    /// Notes whom the collective under way waits for, for the report of a waiter whose own
    /// timeout ends first.
    pub(crate) fn set_waiting_for(&self, ranks: &[usize]) {
        let mut progress = lock(&self.progress);
        progress.waiting_for.clear();
        progress.waiting_for.extend_from_slice(ranks);
    }

    /// Ends the turn of a collective whose end is in the flight recorder.
    pub(crate) fn count_finished(&self) {
        self.count(lock(&self.progress));
    }

    /// Ends the turn of `context`.
    pub(crate) fn finish(&self, context: &OpContext, failed: bool) {
        let mut locked = lock(&self.progress);
        let progress = &mut *locked;
        let waiting_for = &progress.waiting_for;
        progress.flight.end(context.ticket, failed, waiting_for);
        self.count(locked);
    }

    fn count(&self, mut progress: MutexGuard<'_, Progress>) {
        progress.finished += 1;
        progress.waiting_for.clear();
        drop(progress);
        self.turn.notify_all();
    }

    /// Waits until the collectives before `sequence` are finished or `deadline` has passed;
    /// whether they are. Each of them has a deadline of its own.
    pub(crate) fn wait_for_turn(&self, sequence: u64, deadline: Instant) -> bool {
        let progress = lock(&self.progress);
        let (progress, _) = self.until_turn(progress, sequence, deadline);
        progress.finished >= sequence
    }

    /// As [`Core::wait_for_turn`], with the lock; the second value says whether it waited at all.
    fn until_turn<'a>(
        &self,
        progress: MutexGuard<'a, Progress>,
        sequence: u64,
        deadline: Instant,
    ) -> (MutexGuard<'a, Progress>, bool) {
        let waits = |progress: &mut Progress| progress.finished < sequence;
        let waited = progress.finished < sequence;
        (wait_while(&self.turn, progress, deadline, waits).0, waited)
    }

    /// Closes the channels to job rank `peer`, in this group and its sub-groups, before their next
    /// collective.
    pub(crate) fn cut_channels(&self, peer: usize) {
        if let Some(rank) = self.members.iter().position(|member| *member == peer) {
            lock(&self.cut).push(rank);
            self.any_cut.store(true, Ordering::Release);
        }
        for child in self.living_children() {
            child.cut_channels(peer);
        }
    }

    /// The group ranks whose channels are to be closed.
    pub(crate) fn take_cut(&self) -> Vec<usize> {
        if !self.any_cut.load(Ordering::Acquire) {
            return Vec::new();
        }
        lock(&self.cut).clone()
    }

    /// Leaves the group and notifies the other ranks.
    pub(crate) fn leave(&self) {
        let failure = Failure {
            destroyed: true,
            ..self.failure(String::new())
        };
        // If this rank leaves because of another rank's abort, it forwards the abort first, so that the others
        // receive the cause before they see this rank leave.
        let received = self.mailbox.failure();
        let received = received.filter(|failure| failure.first.is_none() && !failure.destroyed);
        self.mailbox.fail(&failure);
        // Peers that wait on a channel see it closed. A collective that runs on another thread ends with
        // the failure set above; its channels are dropped with the group.
        let channels = self
            .data
            .try_lock()
            .ok()
            .and_then(|mut data| data.channels.take());
        drop(channels);
        let abort = received.as_ref().map(encode_abort);
        for peer in self.others() {
            if let Some(abort) = &abort {
                self.send(peer, 0, FrameKind::Abort, abort.clone());
            }
            self.send(peer, 0, FrameKind::Leave, Payload::empty());
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        if let (Some(parent), Some(_)) = (self.parent.upgrade(), self.mailbox.failure()) {
            parent.remember(self.flight_record());
        }
        self.transport.inbox().close(self.id);
    }
}
