//! What ends a collective early: another rank's failure or loss, the deadline, a mismatch.

use std::time::{Duration, Instant};

use super::header::HEADER_BYTES;
use super::{Engine, Workspace};
use crate::group::element::Element;
use crate::group::error::CollectiveError;
use crate::transport::{Interruption, Parting, STRAGGLERS};

/// How long a broken lane waits for the control plane to say why.
const EXPLANATION: Duration = Duration::from_secs(1);

impl<T: Element> Engine<'_, '_, T> {
    /// Whether all ranks' headers are here and this rank's are with all others, as far as they
    /// can be.
    pub(super) fn all_headers_moved(&self) -> bool {
        let Workspace { plan, peers, .. } = &*self.workspace;
        self.collective.others().all(|rank| {
            let sent = plan.sends[rank].header == HEADER_BYTES || peers[rank].refused.is_some();
            peers[rank].signature.is_some() && sent
        })
    }

    /// The error when the ranks called different things. The others hold the same headers and
    /// need not be told.
    pub(super) fn mismatch(&self) -> CollectiveError {
        let peers = self.workspace.peers.iter();
        let signatures: Vec<_> = peers.map(|peer| peer.signature).collect();
        self.collective.mismatch(&signatures, false)
    }

    /// Looks for what makes waiting pointless; whether anything was moved meanwhile.
    pub(super) fn check(&mut self) -> Result<bool, CollectiveError> {
        let core = self.collective.core;
        let place = &self.collective.place;
        let failure = core.mailbox.settled_failure(core.job_rank());
        let late = Instant::now() >= self.collective.deadline();
        // Failure and deadline are looked for first and what has arrived second: a rank that was long
        // away (asleep, or without a core) finds what the others sent before they failed. This ends:
        // what a collective moves is finite, and nothing is waited for.
        let mut moved = false;
        while self.pass()? {
            moved = true;
        }
        if self.is_over() {
            return Ok(moved);
        }
        if let Some(failure) = failure {
            return Err(core.failed(place, &failure));
        }
        if core.mailbox.failure().is_some() {
            // News of a failure explains more than the partings that follow it.
            return Ok(moved);
        }
        for rank in self.collective.others() {
            let job_rank = core.members[rank];
            if !self.is_needed(rank) {
                continue;
            }
            let parting = core.mailbox.parting(job_rank);
            if let Some(cause) = self.loss_of(rank, parting) {
                // A rank that told why before it left is not merely lost.
                if let Some(failure) = core.mailbox.failure() {
                    return Err(core.failed(place, &failure));
                }
                let peer = job_rank;
                return Err(core.interrupted(place, Interruption::Gone { peer, cause }));
            }
        }
        let missing = self.missing();
        core.set_waiting_for(&missing);
        if !late {
            return Ok(moved);
        }
        let peers = &self.workspace.peers;
        if self.disagree {
            let signatures: Vec<_> = peers.iter().map(|peer| peer.signature).collect();
            return Err(self.collective.mismatch(&signatures, true));
        }
        Err(core.interrupted(place, Interruption::Deadline { missing }))
    }

    /// Whether something of `rank` is missing: its header once the ranks are known to disagree,
    /// else anything.
    fn is_needed(&self, rank: usize) -> bool {
        let Workspace { plan, peers, .. } = &*self.workspace;
        if self.disagree {
            let unsent = plan.sends[rank].header < HEADER_BYTES;
            return peers[rank].signature.is_none() || unsent;
        }
        !peers[rank].received || !peers[rank].sent
    }

    /// Why nothing more can come from `rank`, if that is certain.
    fn loss_of(&mut self, rank: usize, parting: Option<Parting>) -> Option<String> {
        let now = Instant::now();
        let in_memory = self.lanes.is_memory(rank);
        // A rank that has seen a mismatch leaves; this one sees it too, once all headers are here.
        let headers_missing = self
            .workspace
            .peers
            .iter()
            .any(|peer| peer.signature.is_none());
        let peer = &mut self.workspace.peers[rank];
        // What a rank has sent is read to its end, even if it takes nothing more itself.
        let refused = peer.refused.as_ref().filter(|_| peer.received);
        let broken = peer.broken.as_ref().or(refused);
        let parting = match (parting, broken) {
            (None, None) => return None,
            (None, Some((since, cause))) => {
                let unexplained = now.duration_since(*since) >= EXPLANATION;
                return unexplained.then(|| cause.clone());
            }
            (Some(parting), _) => parting,
        };
        if parting.in_order && headers_missing && peer.signature.is_some() {
            return None;
        }
        if broken.is_some() {
            return Some(parting.cause);
        }
        // What it wrote before is looked for once more: at least one pass lies between.
        let Some(since) = peer.gone else {
            peer.gone = Some(now);
            return None;
        };
        let over = in_memory || (!parting.in_order && now.duration_since(since) >= STRAGGLERS);
        over.then_some(parting.cause)
    }

    /// The job ranks that keep this one waiting: those that have not called, else those whose
    /// bytes are missing, else those that do not take theirs.
    fn missing(&self) -> Vec<usize> {
        let peers = &self.workspace.peers;
        let of = |waits: &dyn Fn(usize) -> bool| -> Vec<usize> {
            let ranks = self.collective.others().filter(|rank| waits(*rank));
            let mut ranks: Vec<usize> = ranks
                .map(|rank| self.collective.core.members[rank])
                .collect();
            ranks.sort_unstable();
            ranks
        };
        let stages: [&dyn Fn(usize) -> bool; 3] = [
            &|rank| peers[rank].signature.is_none(),
            &|rank| !peers[rank].received,
            &|rank| !peers[rank].sent,
        ];
        let mut stages = stages.into_iter().map(of);
        stages.find(|ranks| !ranks.is_empty()).unwrap_or_default()
    }
}
