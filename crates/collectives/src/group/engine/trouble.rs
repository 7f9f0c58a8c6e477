//! Early ends of a collective: a failed or lost rank, the deadline, a mismatch.

use std::time::{Duration, Instant};

use super::header::HEADER_BYTES;
use super::{Engine, Workspace};
use crate::group::element::Element;
use crate::group::error::CollectiveError;
use crate::transport::{Interruption, Parting, STRAGGLERS};

/// How long a broken channel waits for the cause to arrive on the control plane.
const EXPLANATION: Duration = Duration::from_secs(1);

impl<T: Element> Engine<'_, '_, T> {
    /// Whether all headers have been received, and sent to all reachable ranks.
    pub(super) fn all_headers_moved(&self) -> bool {
        let Workspace { plan, peers, .. } = &*self.workspace;
        self.collective.others().all(|rank| {
            let sent = plan.sends[rank].header == HEADER_BYTES || peers[rank].refused.is_some();
            peers[rank].signature.is_some() && sent
        })
    }

    /// The error when ranks called different operations. Unless it is `late`, the others have the same headers, so no
    /// abort is sent.
    pub(super) fn mismatch(&self, late: bool) -> CollectiveError {
        let peers = self.workspace.peers.iter();
        let signatures: Vec<_> = peers.map(|peer| peer.signature).collect();
        self.collective.mismatch(&signatures, late)
    }

    /// Checks for a failed group, lost peers and the deadline. Returns whether any bytes were moved.
    pub(super) fn check(&mut self) -> Result<bool, CollectiveError> {
        let core = self.collective.core;
        let context = &self.collective.context;
        let failure = core.mailbox.settled_failure(core.job_rank());
        let late = Instant::now() >= self.collective.deadline;
        // Reads failure and deadline first, received data second: a rank that was descheduled for long
        // still sees what the others sent before they failed. The loop ends because a collective moves
        // a finite number of bytes and never waits.
        let mut moved = false;
        while self.pass()? {
            moved = true;
        }
        if self.is_over() {
            return Ok(moved);
        }
        if let Some(failure) = failure {
            return Err(core.failed(context, &failure));
        }
        if core.mailbox.failure().is_some() {
            // The failure explains the lost connections that follow it.
            return Ok(moved);
        }
        for rank in self.collective.others() {
            let job_rank = core.members[rank];
            if !self.is_needed(rank) {
                continue;
            }
            let parting = core.mailbox.parting(job_rank);
            if let Some(cause) = self.loss_of(rank, parting) {
                // A rank that sent its reason before it left is not merely lost.
                if let Some(failure) = core.mailbox.failure() {
                    return Err(core.failed(context, &failure));
                }
                let peer = job_rank;
                return Err(core.interrupted(context, Interruption::Gone { peer, cause }));
            }
        }
        let missing = self.missing();
        core.set_waiting_for(&missing);
        if !late {
            return Ok(moved);
        }
        if self.disagree {
            return Err(self.mismatch(true));
        }
        Err(core.interrupted(context, Interruption::Deadline { missing }))
    }

    /// Whether a transfer with `rank` is unfinished; after a mismatch, only headers count.
    fn is_needed(&self, rank: usize) -> bool {
        let Workspace { plan, peers, .. } = &*self.workspace;
        if self.disagree {
            let unsent = plan.sends[rank].header < HEADER_BYTES;
            return peers[rank].signature.is_none() || unsent;
        }
        !peers[rank].received || !peers[rank].sent
    }

    /// The cause, if `rank` is certainly lost.
    fn loss_of(&mut self, rank: usize, parting: Option<Parting>) -> Option<String> {
        let now = Instant::now();
        let in_memory = self.channels.is_memory(rank);
        // A rank that has seen a mismatch leaves. This rank sees it too once all headers have arrived.
        let headers_missing = self
            .workspace
            .peers
            .iter()
            .any(|peer| peer.signature.is_none());
        let peer = &mut self.workspace.peers[rank];
        // Data of a rank are read to their end even if writes to it fail.
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
        // Data written before are read once more: at least one pass happens in between.
        let Some(since) = peer.gone else {
            peer.gone = Some(now);
            return None;
        };
        let over = in_memory || (!parting.in_order && now.duration_since(since) >= STRAGGLERS);
        over.then_some(parting.cause)
    }

    /// The job ranks that this one waits for: those that have not called, else those whose data are
    /// missing, else those that do not read.
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
