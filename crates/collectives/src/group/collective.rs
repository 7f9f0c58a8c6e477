//! One collective, as its caller sees it; and the exchange of frames by which the group's
//! first collective establishes the channels.

use std::sync::Arc;
use std::time::Instant;

use super::algorithm::Algorithm;
use super::core::{Core, OpContext};
use super::dissemination::{Block, Incomplete};
use super::element::Element;
use super::engine::WaitPolicy;
use super::error::{CollectiveError, RankCall};
use super::signature::{Call, Signature};
use super::tuning::{self, Path};
use crate::transport::{FrameKind, Interruption, Part, Payload};

/// The phase number of the bootstrap frames.
const BOOTSTRAP: u8 = 0;

/// The largest group whose ranks each send to each other one during the setup, so that an error names all ranks that
/// are missing. Of 256 ranks on two cores, that took half of the time to the first result: 65,000 frames per phase.
const DIRECT: usize = 32;

/// The same for the later phases, when all ranks are known to be there.
const DIRECT_LATER: usize = 8;

/// A collective that is being run.
pub(crate) struct Collective<'a> {
    pub(crate) core: &'a Arc<Core>,
    pub(crate) context: OpContext,
    /// What this rank called.
    pub(crate) signature: Signature,
    /// When this rank gives up.
    pub(crate) deadline: Instant,
    pub(crate) wait_policy: WaitPolicy,
}

impl<'a> Collective<'a> {
    /// A collective whose turn has come; its deadline counts from then.
    pub(crate) fn new(
        core: &'a Arc<Core>,
        context: OpContext,
        signature: Signature,
        wait_policy: WaitPolicy,
    ) -> Self {
        Self {
            core,
            context,
            signature,
            deadline: context.started + core.timeout(),
            wait_policy,
        }
    }

    /// How many ranks the group has.
    pub(crate) fn size(&self) -> usize {
        self.core.members.len()
    }

    /// This rank's number in the group.
    pub(crate) fn rank(&self) -> usize {
        self.core.rank
    }

    /// Chooses the algorithm for `bytes` bytes, and names it in the signature where there is a
    /// choice.
    pub(crate) fn choose(&mut self, path: Path, bytes: usize) -> Algorithm {
        let options = &self.core.options;
        let given = options.algorithm;
        let chosen = given.unwrap_or_else(|| tuning::choose(path, self.size(), bytes));
        let chosen = options.restrict(self.signature.operation, chosen);
        if self.signature.operation.has_algorithms() {
            self.signature.algorithm = Some(chosen);
        }
        chosen
    }

    /// The other ranks of the group, beginning after this one.
    pub(crate) fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let (rank, size) = (self.rank(), self.size());
        (1..size).map(move |offset| (rank + offset) % size)
    }

    /// The bootstrap exchange: sends each rank `own` with this rank's signature, receives those of all others and
    /// compares all signatures. Returns the payloads by group rank; this rank's own may be empty.
    ///
    /// All ranks have all signatures and reach the same verdict. Later phases begin only after that.
    pub(crate) fn bootstrap(&self, own: &Arc<Vec<u8>>) -> Result<Vec<Payload>, CollectiveError> {
        let payloads = match self.size() > DIRECT {
            true => self.bootstrap_of_many(own)?,
            false => self.bootstrap_of_few(own)?,
        };
        self.core.set_waiting_for(&[]);
        Ok(payloads)
    }

    /// The payloads of `phase`, a later phase of the setup, by group rank; this rank's own may be empty.
    pub(crate) fn all_gather_setup(
        &self,
        phase: u8,
        own: &Arc<Vec<u8>>,
    ) -> Result<Vec<Payload>, CollectiveError> {
        if self.size() > DIRECT_LATER {
            return match self.disseminate(phase, own) {
                Ok(blocks) => Ok(payloads_of(blocks)),
                Err(Incomplete::Failed(error)) => Err(error),
                Err(Incomplete::Late { missing, .. }) => Err(self
                    .core
                    .interrupted(&self.context, Interruption::Deadline { missing })),
            };
        }
        let mut payloads = vec![Payload::empty(); self.size()];
        let exchanged = self.exchange(phase, own, |peer, part| payloads[peer] = part.payload);
        exchanged.map_err(|interruption| self.core.interrupted(&self.context, interruption))?;
        Ok(payloads)
    }

    /// Sends `own` to all other ranks, and calls `take` with the part of `phase` of each, by group rank.
    fn exchange(
        &self,
        phase: u8,
        own: &Arc<Vec<u8>>,
        mut take: impl FnMut(usize, Part),
    ) -> Result<(), Interruption> {
        for peer in self.others() {
            self.send(peer, phase, Payload::part_of(own, 0..own.len()));
        }
        let Core {
            members, mailbox, ..
        } = &**self.core;
        let key = (self.context.sequence, phase);
        let mut outstanding: Vec<usize> = self.others().map(|peer| members[peer]).collect();
        for peer in self.others() {
            self.core.set_waiting_for(&outstanding);
            let rank = members[peer];
            let part = mailbox.take_part(key, rank, &outstanding, self.deadline)?;
            outstanding.retain(|other| *other != rank);
            take(peer, part);
        }
        self.core.set_waiting_for(&[]);
        Ok(())
    }

    fn bootstrap_of_many(&self, own: &[u8]) -> Result<Vec<Payload>, CollectiveError> {
        match self.disseminate(BOOTSTRAP, own) {
            Ok(blocks) => {
                let signatures: Vec<_> = blocks.iter().map(|block| Some(block.signature)).collect();
                self.demand_same_signatures(&signatures)?;
                Ok(payloads_of(blocks))
            }
            Err(Incomplete::Failed(error)) => Err(error),
            Err(Incomplete::Late {
                signatures,
                missing,
            }) => Err(self.late(&signatures, missing)),
        }
    }

    fn bootstrap_of_few(&self, own: &Arc<Vec<u8>>) -> Result<Vec<Payload>, CollectiveError> {
        let mut signatures = vec![None; self.size()];
        signatures[self.rank()] = Some(self.signature);
        let mut payloads = vec![Payload::empty(); self.size()];
        let exchanged = self.exchange(BOOTSTRAP, own, |peer, part| {
            signatures[peer] = Some(part.signature);
            payloads[peer] = part.payload;
        });
        match exchanged {
            Ok(()) => self.demand_same_signatures(&signatures).map(|()| payloads),
            Err(Interruption::Deadline { missing }) => {
                Err(self.late_bootstrap(signatures, missing))
            }
            Err(interruption) => Err(self.core.interrupted(&self.context, interruption)),
        }
    }

    fn demand_same_signatures(
        &self,
        signatures: &[Option<Signature>],
    ) -> Result<(), CollectiveError> {
        let own = Some(self.signature);
        match signatures.iter().all(|signature| *signature == own) {
            true => Ok(()),
            false => Err(self.mismatch(signatures, false)),
        }
    }

    /// The error when some ranks have not called in time: a mismatch if those that did already
    /// disagree, which is more likely the cause of the wait than its effect.
    fn late_bootstrap(
        &self,
        mut signatures: Vec<Option<Signature>>,
        missing: Vec<usize>,
    ) -> CollectiveError {
        let key = (self.context.sequence, BOOTSTRAP);
        self.core.take_signatures(key, &mut signatures);
        self.late(&signatures, missing)
    }

    /// The same, with what the ranks that are known have called. Others have not called, or are not known.
    fn late(&self, signatures: &[Option<Signature>], missing: Vec<usize>) -> CollectiveError {
        let mut known = signatures.iter().flatten();
        if known.all(|signature| *signature == self.signature) {
            return self
                .core
                .interrupted(&self.context, Interruption::Deadline { missing });
        }
        let mut calls = self.calls(signatures);
        calls.retain(|call| call.call.is_some() || missing.contains(&call.rank));
        self.core.fail_everywhere(self.disagreement(calls))
    }

    /// The error when ranks called different things, by group rank. Unless it is `late` (some have
    /// not called at all), the others have the same signatures, so no abort is sent.
    pub(crate) fn mismatch(&self, signatures: &[Option<Signature>], late: bool) -> CollectiveError {
        let error = self.disagreement(self.calls(signatures));
        match late {
            true => self.core.fail_everywhere(error),
            false => self.core.fail_here(error),
        }
    }

    /// What each rank called, with the algorithm only where nothing else differs.
    pub(super) fn calls(&self, signatures: &[Option<Signature>]) -> Vec<RankCall> {
        let texts: Vec<_> = signatures
            .iter()
            .map(|signature| signature.map(|call| call.to_string()))
            .collect();
        let alike = texts.iter().all(|text| *text == texts[0]);
        let calls = signatures.iter().zip(texts).zip(&self.core.members);
        calls
            .map(|((signature, text), rank)| {
                let call = if alike {
                    signature.map(|call| format!("{call:#}"))
                } else {
                    text
                };
                RankCall { rank: *rank, call }
            })
            .collect()
    }

    /// Demands that all ranks gave the same list, `lists` by group rank, and names the call of each
    /// otherwise.
    pub(crate) fn demand_same<T: Element>(&self, lists: &[Vec<T>]) -> Result<(), CollectiveError> {
        if lists.iter().all(|list| *list == lists[0]) {
            return Ok(());
        }
        let name = self.signature.operation.name();
        let calls = lists
            .iter()
            .zip(&self.core.members)
            .map(|(list, rank)| RankCall {
                rank: *rank,
                call: Some(format!("{name}({list:?})")),
            });
        Err(self.core.fail_here(self.disagreement(calls.collect())))
    }

    /// The error when group rank `peer` has violated the protocol; sends aborts to the others.
    pub(crate) fn protocol(&self, peer: usize, reason: String) -> CollectiveError {
        self.core.fail_everywhere(CollectiveError::Protocol {
            rank: self.core.job_rank(),
            peer: self.core.members[peer],
            operation: Call::Collective(self.signature).to_string(),
            step: self.context.step,
            waited: self.context.started.elapsed(),
            reason,
        })
    }

    /// The error when the ranks cannot use the requested transport; all ranks detect it.
    pub(crate) fn no_path(&self, reason: String) -> CollectiveError {
        // A rank that aborts also closes its memory, which is not the cause of the failure.
        if let Some(failure) = self.core.mailbox.failure_of_late() {
            return self.core.failed(&self.context, &failure);
        }
        self.core.fail_here(CollectiveError::NoPath {
            rank: self.core.job_rank(),
            operation: Call::Collective(self.signature).to_string(),
            reason,
        })
    }

    /// The error when the operating system refuses a resource for channels; sends aborts to the others.
    pub(crate) fn system(&self, action: &str, error: &dyn ToString) -> CollectiveError {
        self.core.fail_everywhere(CollectiveError::System {
            rank: self.core.job_rank(),
            action: action.to_owned(),
            reason: error.to_string(),
        })
    }

    pub(super) fn disagreement(&self, calls: Vec<RankCall>) -> CollectiveError {
        let OpContext { sequence, step, .. } = self.context;
        CollectiveError::Mismatch {
            rank: self.core.job_rank(),
            sequence,
            step,
            waited: self.context.started.elapsed(),
            calls,
        }
    }

    /// Sends this rank's part of `phase` to the group rank `to`.
    pub(crate) fn send(&self, to: usize, phase: u8, payload: Payload) {
        let OpContext { sequence, step, .. } = self.context;
        let kind = FrameKind::Collective {
            sequence,
            phase,
            signature: self.signature,
        };
        self.core.send(self.core.members[to], step, kind, payload);
    }
}

fn payloads_of(blocks: Vec<Block>) -> Vec<Payload> {
    let payloads = blocks.into_iter().map(|block| block.payload);
    payloads.map(Payload::from_vec).collect()
}
