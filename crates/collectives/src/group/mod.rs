//! Process groups: the collectives, point-to-point messages and sub-groups.
//!
//! A [`ProcessGroup`] is one rank's handle of a group. All members make the same collective calls in
//! the same order, and they run in that order. Calls that return a [`Work`] run on the group's
//! communication thread, calls in place on the caller's thread. [`ProcessGroup::send`] and
//! [`ProcessGroup::recv`] are independent of that order.
//!
//! The first collective of a group sets up channels between its ranks: shared memory on one machine,
//! TCP between machines ([`GroupOptions::transport`]). Collectives then stream over the channels and
//! need no frames: a plan of tasks defines the transfers, and an engine runs all of them at once.
//!
//! That is the backend for numbers in host memory. A backend for GPUs, such as NCCL, makes its calls by
//! [`ProcessGroup::device_call`]: members, deadlines, flight record and failure are the group's.
//!
//! Invariants:
//! - After a reduction all ranks hold the same bits, whatever the algorithm and the transport. With
//!   [`ReductionOrder::Rank`] every element is combined in rank order, so a run over another
//!   transport holds the same bits too.
//! - In every collective each rank compares what all ranks called. If one rank finds a
//!   [`CollectiveError::Mismatch`], all do.
//! - Every wait has a deadline. After an error the group is unusable on all its ranks.
//!
//! What is deliberately absent: global state, and a way to cancel an operation or to repair a group
//! that has failed (make a new one).

mod algorithm;
mod arithmetic;
mod collective;
mod communication;
mod core;
mod device_call;
mod dissemination;
mod element;
mod engine;
mod error;
mod execution;
mod failing;
mod flight;
mod names;
mod operations;
mod options;
mod pattern;
mod point_to_point;
mod reduce;
mod signature;
mod subgroup;
mod tuning;
mod work;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub use self::algorithm::Algorithm;
pub use self::device_call::DeviceCall;
pub use self::element::{DType, Element};
pub use self::error::{CollectiveError, RankCall};
pub use self::flight::{FlightEntry, FlightState};
pub use self::options::{DEFAULT_TIMEOUT, GroupOptions, ReductionOrder, TransportKind};
pub use self::reduce::ReduceOp;
pub use self::signature::{Call, Operation, Signature};
pub use self::work::Work;

pub(crate) use self::collective::Collective;
use self::communication::Shared;
pub(crate) use self::core::Core;
use self::engine::WaitPolicy;
pub(crate) use self::failing::waited_for;
use self::flight::NO_LABEL;
pub(crate) use self::signature::SIGNATURE_BYTES;
pub(crate) use self::tuning::Path;
use crate::rendezvous::Rendezvous;
use crate::transport::{TcpMesh, ThreadMesh, Transport};
pub(crate) use everburn_record::ranks;

/// The id of the group of all ranks; sub-groups derive theirs from it.
pub(crate) const WORLD: u64 = 1;

/// One rank's end of a group of ranks that exchange arrays of numbers.
///
/// Cloning is cheap and gives another handle on the same group. Dropping the last handle (a
/// [`Work`] counts as one) leaves the group without waiting for the other ranks, and for at most
/// two seconds for what is still under way; [`ProcessGroup::destroy`] waits.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::group::{GroupOptions, ProcessGroup, ReduceOp};
///
/// let groups = ProcessGroup::over_threads(4, GroupOptions::default());
/// let ranks: Vec<_> = groups
///     .into_iter()
///     .map(|group| {
///         std::thread::spawn(move || {
///             let sum = group.all_reduce(vec![group.rank() as i64], ReduceOp::Sum).wait()?;
///             group.destroy()?;
///             Ok::<_, everburn::collectives::group::CollectiveError>(sum)
///         })
///     })
///     .collect();
/// for rank in ranks {
///     assert_eq!(rank.join().unwrap().unwrap(), vec![6]);
/// }
/// ```
#[doc(alias = "torch.distributed")]
#[derive(Clone)]
pub struct ProcessGroup {
    shared: Arc<Shared>,
    /// The wait policy of collectives in place.
    wait_policy: WaitPolicy,
}

impl ProcessGroup {
    /// The groups of `world_size` ranks that are threads of this process, in rank order.
    #[must_use]
    pub fn over_threads(world_size: usize, options: GroupOptions) -> Vec<Self> {
        ThreadMesh::new(world_size)
            .into_iter()
            .enumerate()
            .map(|(rank, mesh)| Self::over(Arc::new(mesh), rank, options))
            .collect()
    }

    /// The group of one rank, which exchanges nothing.
    #[must_use]
    pub fn alone(options: GroupOptions) -> Self {
        let mut groups = Self::over_threads(1, options);
        groups.remove(0)
    }

    /// Connects this process with the other ranks of `rendezvous` by TCP. The timeout of the
    /// options, if there is one, takes the place of the rendezvous' own.
    ///
    /// # Errors
    /// As [`TcpMesh::connect`]: the error names the ranks that have not come.
    pub fn connect(
        mut rendezvous: Rendezvous,
        options: GroupOptions,
    ) -> Result<Self, CollectiveError> {
        let timeout = options.timeout.unwrap_or(rendezvous.timeout);
        rendezvous.timeout = timeout;
        let options = GroupOptions {
            timeout: Some(timeout),
            ..options
        };
        let Rendezvous {
            rank, world_size, ..
        } = rendezvous;
        if rank >= world_size {
            return Err(CollectiveError::Invalid {
                rank,
                operation: "connect".to_owned(),
                reason: format!("rank {rank} does not exist in a world of {world_size}"),
            });
        }
        let mesh = TcpMesh::connect(&rendezvous, &options)?;
        Ok(Self::over(Arc::new(mesh), rendezvous.local_rank, options))
    }

    /// The group of all ranks of `transport`. Make one such group a transport.
    #[must_use]
    pub fn over(transport: Arc<dyn Transport>, local_rank: usize, options: GroupOptions) -> Self {
        let members = (0..transport.world_size()).collect();
        let rank = transport.rank();
        let step = Arc::new(AtomicU64::new(0));
        // A second group over the same transport gets a mailbox of its own that nobody writes to,
        // and times out.
        let mailbox = transport.inbox().mailbox(WORLD).unwrap_or_default();
        let core = Core::new(transport, mailbox, WORLD, members, rank, options, step);
        Self {
            shared: Shared::new(core, local_rank),
            wait_policy: WaitPolicy::Caller,
        }
    }

    /// Another handle on the same group, for a thread that works beside one that computes: its
    /// collectives in place leave the core to the others while they wait, as those on the
    /// communication thread do, instead of spinning for the answer.
    ///
    /// ```
    /// # mod everburn { pub use everburn_collectives as collectives; }
    /// use everburn::collectives::group::{GroupOptions, ProcessGroup, ReduceOp};
    ///
    /// let group = ProcessGroup::alone(GroupOptions::default());
    /// let beside = group.in_background();
    /// let reducer = std::thread::spawn(move || {
    ///     let mut gradients = [1.0f32, 2.0];
    ///     beside.all_reduce_in_place(&mut gradients, ReduceOp::Mean).map(|()| gradients)
    /// });
    /// assert_eq!(reducer.join().unwrap()?, [1.0, 2.0]);
    /// # Ok::<(), everburn_collectives::group::CollectiveError>(())
    /// ```
    #[must_use]
    pub fn in_background(&self) -> Self {
        Self {
            shared: self.shared.clone(),
            wait_policy: WaitPolicy::Background,
        }
    }

    /// This rank's number in the group, 0 to [`ProcessGroup::world_size`] - 1.
    #[must_use]
    #[doc(alias = "get_rank")]
    pub fn rank(&self) -> usize {
        self.core().rank
    }

    /// How many ranks the group has.
    #[must_use]
    #[doc(alias = "get_world_size")]
    pub fn world_size(&self) -> usize {
        self.core().members.len()
    }

    /// This rank's number on its own machine.
    #[must_use]
    pub fn local_rank(&self) -> usize {
        self.shared.local_rank
    }

    /// The job rank of each member, by rank of the group.
    #[must_use]
    pub fn job_ranks(&self) -> &[usize] {
        &self.core().members
    }

    /// The deadline of operations that are given none.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.core().timeout()
    }

    /// Labels this rank's next operations with the training step, which errors then name. Holds
    /// for the group's sub-groups too.
    pub fn set_step(&self, step: u64) {
        self.core().step.store(step, Ordering::Relaxed);
    }

    /// The label of [`ProcessGroup::set_step`].
    #[must_use]
    pub fn step(&self) -> u64 {
        self.core().step.load(Ordering::Relaxed)
    }

    /// Labels this rank's next operations of this group, all its handles included, in the flight
    /// record: with the number of a bucket, say.
    pub fn set_label(&self, label: Option<u32>) {
        let label = label.unwrap_or(NO_LABEL);
        self.core().label.store(label, Ordering::Relaxed);
    }

    /// The last 32 operations of this rank in this group, the oldest first, and then those in
    /// each of its sub-groups: what this rank is doing, and what it did before.
    #[must_use]
    pub fn flight_record(&self) -> Vec<FlightEntry> {
        self.core().flight_record()
    }

    /// Gives the group up: what is under way and all later operations, here and on the other
    /// ranks, fail at once with `reason`, and so do the group's sub-groups.
    pub fn abort(&self, reason: impl Into<String>) {
        self.core().abort(reason.into());
    }

    /// [`ProcessGroup::abort`] because of `error`, which a sub-group of this group has failed of, say: the
    /// others also learn who was lost, or that somebody did not come in time.
    pub fn abort_because(&self, error: &CollectiveError, reason: impl Into<String>) {
        self.core().abort_because(error, reason.into());
    }

    /// Why the group can no longer be used, once it has failed; never waits. `None` also of a group
    /// that this rank has left.
    #[must_use]
    pub fn failure(&self) -> Option<GroupFailure> {
        let failure = self.core().mailbox.failure()?;
        (!failure.destroyed).then_some(GroupFailure {
            by: failure.by,
            lost: failure.lost,
            silent_machine: failure.silent_machine,
            reason: failure.reason,
        })
    }

    /// Closes all connections of this rank at once without a goodbye, as if its process had been
    /// killed: for tests of what the others do then.
    pub fn sever(&self) {
        self.core().transport.sever();
    }

    /// Cuts the connections between this rank and `peer`, a rank of this group, as if the network
    /// had: both find [`CollectiveError::PeerLost`] when they next need each other. For tests and
    /// chaos on purpose; call it on the group of all ranks, whose sub-groups are cut too. A rank
    /// that does not exist, and this rank itself, have no connection: nothing happens.
    pub fn break_connection(&self, peer: usize) {
        let core = self.core();
        let Some(peer) = core.members.get(peer).filter(|_| peer != core.rank) else {
            return;
        };
        core.cut_channels(*peer);
        core.transport.cut(*peer);
    }

    /// Leaves the group in good order: finishes what was issued, sends what is queued and waits
    /// until all other ranks have left too, so that nobody's last message is cut off. Other
    /// handles of the group fail from then on; sub-groups continue. A group that has failed is left
    /// at once.
    ///
    /// # Errors
    /// [`CollectiveError::Timeout`] names the ranks that have not left within the group's timeout.
    #[doc(alias = "destroy_process_group")]
    pub fn destroy(self) -> Result<(), CollectiveError> {
        let core = self.core();
        let started = Instant::now();
        let deadline = started + core.timeout();
        let failed = core.mailbox.failure().is_some();
        let others: Vec<usize> = core.others().collect();
        // Nobody here will ask for what they still have to send: it must not keep them from leaving.
        let _awaited = core.mailbox.awaits(&others);
        // Messages first: once the group is left, those who wait for one are turned away.
        let flushed = failed || core.transport.flush(deadline);
        let finished = self.shared.close(deadline);
        if failed {
            return Ok(());
        }
        let waiting_for = if flushed && finished && core.transport.flush(deadline) {
            core.mailbox.wait_gone(&others, deadline)
        } else {
            others
        };
        if waiting_for.is_empty() {
            return Ok(());
        }
        let context = core.context(Call::Named("destroy"));
        Err(core.timeout_error(&context, waiting_for, started.elapsed(), ""))
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        self.shared.core()
    }
}

/// The failure of a group, as returned by [`ProcessGroup::failure`].
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::group::GroupFailure;
///
/// let reason = "it was killed".to_owned();
/// let failure = GroupFailure { by: 1, lost: Some(3), silent_machine: None, reason };
/// assert_eq!(failure.lost, Some(3));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupFailure {
    /// The job rank that noticed it first.
    pub by: usize,
    /// The job rank that was lost, if that is what happened.
    pub lost: Option<usize>,
    /// The number of its machine, from 0, if no rank of that sends heartbeats.
    pub silent_machine: Option<usize>,
    /// In words.
    pub reason: String,
}

impl fmt::Debug for ProcessGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessGroup")
            .field("rank", &self.rank())
            .field("world_size", &self.world_size())
            .field("job_ranks", &self.job_ranks())
            .finish_non_exhaustive()
    }
}
