//! Calls of a backend for GPUs, such as NCCL: a library moves their numbers from GPU to GPU, the group counts and records
//! them, and its failures are theirs.
//!
//! Such a library reports neither which ranks it waits for nor what they have called. So a rank whose collective takes
//! long sends its signature to the others, once: a rank that has sent none is waited for, and a different one is a mismatch.

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use super::ProcessGroup;
use super::collective::Collective;
use super::core::{Core, OpContext};
use super::engine::WaitPolicy;
use super::error::CollectiveError;
use super::flight::FlightState;
use super::signature::{Call, Signature};
use crate::sync::lock;
use crate::transport::{FrameKind, Interruption, Payload};

/// After this time, or half of the group's timeout if that is shorter, a rank sends the signature of a collective that is
/// under way: long enough that ranks of different speed send none, and before the first warning of a wait.
const ROLL_CALL: Duration = Duration::from_secs(5);

/// The phase number of these signatures.
const PHASE: u8 = 0;

/// What the error of a missed deadline adds where no rank is late.
const ALL_CALLED: &str = "all ranks have called it, so a GPU or a link between two does not move (`dmesg` for Xid, \
                          `nvidia-smi topo -m`, NCCL_DEBUG=INFO)";

/// A call whose numbers a GPU library moves, in a sub-group that is for such calls alone.
///
/// When it fails, the group that the sub-group was made of fails with it, on all ranks.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use std::time::Instant;
/// use everburn::collectives::group::{Call, GroupOptions, Operation, ProcessGroup, Signature};
///
/// let group = ProcessGroup::alone(GroupOptions::default());
/// let calls = group.duplicate("nccl")?;
/// let barrier = Signature { dtype: None, length: None, op: None, root: None, algorithm: None, operation: Operation::Barrier };
/// let call = calls.device_call(Call::Collective(barrier));
/// call.issue()?;
/// // The GPU computes.
/// call.waits_since(Instant::now())?;
/// call.end();
/// let error = calls.device_call(Call::Named("check")).fail("the GPU is lost".to_owned());
/// assert!(error.to_string().starts_with("rank 0: check (collective 1, step 0) failed after"));
/// assert!(group.failure().is_some());
/// # Ok::<(), everburn_collectives::group::CollectiveError>(())
/// ```
pub struct DeviceCall {
    core: Arc<Core>,
    state: Mutex<State>,
    /// What the group has failed of, if that is this call.
    own_error: OnceLock<CollectiveError>,
}

struct State {
    context: OpContext,
    stage: Stage,
    /// What each rank of the group has called, as far as that is known; empty before the roll call.
    signatures: Vec<Option<Signature>>,
}

#[derive(PartialEq, Eq)]
enum Stage {
    Made,
    Issued,
    Waiting,
    Ended,
}

impl ProcessGroup {
    /// A call that a GPU library will run. Nothing is counted or recorded before [`DeviceCall::issue`].
    #[must_use]
    pub fn device_call(&self, call: Call) -> DeviceCall {
        let core = self.core().clone();
        let context = core.context(call);
        DeviceCall {
            core,
            state: Mutex::new(State {
                context,
                stage: Stage::Made,
                signatures: Vec::new(),
            }),
            own_error: OnceLock::new(),
        }
    }
}

impl DeviceCall {
    /// Gives the call its number and an entry in the flight record. All ranks issue the same calls in the same order.
    ///
    /// # Errors
    /// [`CollectiveError::Invalid`] for what can never succeed: such a call is not issued.
    pub fn issue(&self) -> Result<(), CollectiveError> {
        let checked = self.context().call.check(self.core.members.len());
        checked.map_err(|reason| self.invalid(reason))?;
        let mut state = lock(&self.state);
        let context = &mut state.context;
        context.sequence = self.core.count_issued(context.call);
        self.core.record(context, FlightState::Queued);
        state.stage = Stage::Issued;
        Ok(())
    }

    /// Whether the group can be used; does not wait.
    ///
    /// # Errors
    /// What has failed the group; [`CollectiveError::PeerLost`] if a rank of it is gone.
    pub fn check(&self) -> Result<(), CollectiveError> {
        self.check_within(Duration::ZERO)
    }

    /// [`DeviceCall::check`], waiting for `timeout` for the failure: the library may find the end of another rank before
    /// its reason has arrived.
    ///
    /// # Errors
    /// As [`DeviceCall::check`].
    pub fn check_within(&self, timeout: Duration) -> Result<(), CollectiveError> {
        let waited = self
            .core
            .mailbox
            .wait_for(&|| false, Instant::now() + timeout);
        match waited {
            Ok(()) | Err(Interruption::Deadline { .. }) => Ok(()),
            Err(interruption) => Err(self.interrupted(interruption)),
        }
    }

    /// The call is under way since `turn`: all before it are over, and this rank's GPU has come to it. To be called now
    /// and then until it is over.
    ///
    /// # Errors
    /// [`CollectiveError::Timeout`] when the group's timeout has passed since; [`CollectiveError::Mismatch`] where ranks
    /// have called different things; and those of [`DeviceCall::check`]. The group has failed then.
    pub fn waits_since(&self, turn: Instant) -> Result<(), CollectiveError> {
        self.check()?;
        let mut state = lock(&self.state);
        match state.stage {
            Stage::Ended => return Ok(()),
            Stage::Issued => {
                state.stage = Stage::Waiting;
                state.context.started = turn;
                self.core
                    .set_waiting_for(&self.missing(&state.context, &[]));
                self.core.record_turn(&mut state.context);
            }
            Stage::Made | Stage::Waiting => {}
        }
        let (waited, timeout) = (turn.elapsed(), self.core.timeout());
        let is_late = waited > timeout;
        let context = state.context;
        if let Call::Collective(signature) = context.call
            && waited >= ROLL_CALL.min(timeout / 2)
        {
            self.call_roll(&mut state.signatures, &context, signature);
            let missing = self.missing(&context, &state.signatures);
            let mut known = state.signatures.iter().flatten();
            if (is_late || missing.is_empty()) && known.any(|called| *called != signature) {
                let mismatch = self.mismatch(&context, signature, &state.signatures);
                drop(state);
                return Err(self.fail_with(mismatch));
            }
            self.core.set_waiting_for(&missing);
        }
        if !is_late {
            return Ok(());
        }
        let missing = self.missing(&context, &state.signatures);
        drop(state);
        let others = self.missing(&context, &[]);
        if others.is_empty() {
            return Err(self.fail(ALL_CALLED.to_owned()));
        }
        let (waiting_for, progress) = match missing.is_empty() {
            true => (others, ALL_CALLED),
            false => (missing, ""),
        };
        let core = &self.core;
        Err(self.fail_with(core.timeout_error(&context, waiting_for, waited, progress)))
    }

    /// Sends this rank's signature to the others, if it has not, and takes the signatures that have come.
    fn call_roll(
        &self,
        signatures: &mut Vec<Option<Signature>>,
        context: &OpContext,
        signature: Signature,
    ) {
        let core = &self.core;
        let OpContext { sequence, step, .. } = *context;
        if signatures.is_empty() {
            signatures.resize(core.members.len(), None);
            signatures[core.rank] = Some(signature);
            for peer in core.others() {
                let kind = FrameKind::Collective {
                    sequence,
                    phase: PHASE,
                    signature,
                };
                core.send(peer, step, kind, Payload::empty());
            }
        }
        core.take_signatures((sequence, PHASE), signatures);
    }

    fn mismatch(
        &self,
        context: &OpContext,
        signature: Signature,
        signatures: &[Option<Signature>],
    ) -> CollectiveError {
        let collective = Collective::new(&self.core, *context, signature, WaitPolicy::Caller);
        let mut calls = collective.calls(signatures);
        calls.retain(|call| call.call.is_some());
        collective.disagreement(calls)
    }

    /// The job ranks at the other end that have sent none of `signatures`.
    fn missing(&self, context: &OpContext, signatures: &[Option<Signature>]) -> Vec<usize> {
        let Core { members, rank, .. } = &*self.core;
        let peer = context.call.peer();
        let is_missing = |other: &usize| {
            let has_come = matches!(signatures.get(*other), Some(Some(_)));
            other != rank && peer.is_none_or(|peer| peer == *other) && !has_come
        };
        let missing = (0..members.len()).filter(is_missing);
        missing.map(|other| members[other]).collect()
    }

    /// The call is over, or given up.
    pub fn end(&self) {
        let mut state = lock(&self.state);
        let before = std::mem::replace(&mut state.stage, Stage::Ended);
        let context = state.context;
        drop(state);
        if matches!(before, Stage::Made | Stage::Ended) {
            return;
        }
        let failed = self.core.mailbox.failure().is_some();
        match context.call {
            Call::Collective(_) => {
                self.core.finish(&context, failed);
                self.core.mailbox.drop_parts_until(context.sequence);
            }
            _ => self.core.record_end(&context, failed),
        }
    }

    /// Fails the group, because of this rank's GPU or library.
    #[must_use]
    pub fn fail(&self, reason: String) -> CollectiveError {
        let context = self.context();
        self.fail_with(CollectiveError::Device {
            rank: self.core.job_rank(),
            operation: context.call.to_string(),
            sequence: context.sequence,
            step: context.step,
            waited: context.started.elapsed(),
            reason: reason.into(),
        })
    }

    /// Fails the group, because the library does not connect the ranks.
    #[must_use]
    pub fn no_path(&self, reason: String) -> CollectiveError {
        self.fail_with(CollectiveError::NoPath {
            rank: self.core.job_rank(),
            operation: self.context().call.to_string(),
            reason,
        })
    }

    /// The error of a call that can never succeed. The group stays usable.
    #[must_use]
    pub fn invalid(&self, reason: String) -> CollectiveError {
        CollectiveError::Invalid {
            rank: self.core.job_rank(),
            operation: self.context().call.to_string(),
            reason,
        }
    }

    fn context(&self) -> OpContext {
        lock(&self.state).context
    }

    fn interrupted(&self, interruption: Interruption) -> CollectiveError {
        if let Some(own) = self.own_error.get() {
            return own.clone();
        }
        let context = self.context();
        match interruption {
            Interruption::Gone { peer, cause } => {
                self.fail_with(self.core.peer_lost(&context, (peer, None), cause))
            }
            other => self.core.interrupted(&context, other),
        }
    }

    /// The group of which this one was made fails, and this one with it.
    fn fail_with(&self, error: CollectiveError) -> CollectiveError {
        let error = self.own_error.get_or_init(|| error).clone();
        if let Some(parent) = self.core.parent.upgrade() {
            parent.fail_everywhere(error.clone());
        }
        // The other group may be left already.
        self.core.fail_everywhere(error)
    }
}

impl fmt::Display for DeviceCall {
    /// `all_reduce(f32[2], sum) (collective 3, step 2)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OpContext {
            call,
            sequence,
            step,
            ..
        } = self.context();
        write!(f, "{call} (collective {sequence}, step {step})")
    }
}

impl fmt::Debug for DeviceCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceCall({self})")
    }
}

impl Drop for DeviceCall {
    /// A call that nobody has ended is over now: leaving its group does not wait for it.
    fn drop(&mut self) {
        self.end();
    }
}
