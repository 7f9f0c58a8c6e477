//! Diagnosis of a hang: the rank that the others wait for, directly or through other waiting ranks.
//!
//! Ranks are the nodes of a wait-for graph. The stalled rank is waited for and waits for no other. A rank
//! that has not answered counts as waiting only while its beats arrive: the last beat of a stopped process
//! is outdated. All ranks decide from the same answers, ties included, so all name the same rank.

use std::cmp::Reverse;
use std::time::Duration;

use crate::group::{FlightEntry, FlightState};

#[derive(Debug, Clone, Default)]
pub(super) struct RankState {
    /// Its report was looked for.
    pub(super) asked: bool,
    /// It has reported after the failure.
    pub(super) answered: bool,
    /// Its beats arrive, or it has reported.
    pub(super) alive: bool,
    /// Its process is stopped, as a rank of its machine has found.
    pub(super) stopped: bool,
    /// The job ranks that it waited for, by its error.
    pub(super) waiting_for: Vec<usize>,
    /// How long ago the group failed on it, as it has reported.
    pub(super) failed_for: Option<Duration>,
    pub(super) records: Vec<FlightEntry>,
}

impl RankState {
    /// The ranks that it waits for.
    fn edges(&self, own: usize) -> Vec<usize> {
        if !self.answered && !self.alive {
            return Vec::new();
        }
        let of_records = self.records.iter().filter(|entry| self.waits_in(entry));
        let mut edges: Vec<usize> = of_records
            .flat_map(|entry| &entry.waiting_for)
            .chain(self.waiting_for.iter().filter(|_| self.answered))
            .copied()
            .filter(|rank| *rank != own)
            .collect();
        edges.sort_unstable();
        edges.dedup();
        edges
    }

    /// Whether it waits in `entry`, or has waited until the group failed.
    fn waits_in(&self, entry: &FlightEntry) -> bool {
        let ended = self.answered && entry.state == FlightState::Failed;
        // A call that fails at once, because it comes too late, waits for nobody.
        ended && self.late(entry).is_none() || entry.state == FlightState::Running
    }

    /// How long after the failure of the group it called `entry`; `None` if it did so before.
    fn late(&self, entry: &FlightEntry) -> Option<Duration> {
        let late = self.failed_for?.checked_sub(entry.began)?;
        (!late.is_zero()).then_some(late)
    }

    /// The number of collectives of `group` that it has called in time.
    fn progress(&self, group: u64) -> u64 {
        let in_time = |entry: &&FlightEntry| entry.group == group && self.late(entry).is_none();
        let of_group = self.records.iter().filter(in_time);
        let called = of_group.filter(|entry| entry.collective);
        called
            .map(|entry| entry.sequence.saturating_add(1))
            .max()
            .unwrap_or(0)
    }
}

pub(super) fn stalled(ranks: &[RankState]) -> Option<usize> {
    let all_edges: Vec<Vec<usize>> = (0..ranks.len())
        .map(|rank| ranks[rank].edges(rank))
        .collect();
    let votes = |rank: usize| {
        all_edges
            .iter()
            .filter(|edges| edges.contains(&rank))
            .count()
    };
    let wanted = (0..ranks.len()).filter(|rank| ranks[*rank].asked && votes(*rank) > 0);
    let wanted: Vec<usize> = wanted.collect();
    let idle = |rank: &usize| all_edges[*rank].is_empty();
    // Nobody may wait for a stopped rank yet, as where one that was stopped with it and continued would be the next to.
    let stopped = (0..ranks.len()).filter(|rank| ranks[*rank].stopped);
    let mut suspects: Vec<usize> = stopped.collect();
    if suspects.is_empty() {
        suspects.extend(wanted.iter().copied().filter(idle));
    }
    if suspects.is_empty() {
        // A cycle, or no rank without edges.
        suspects = wanted;
    }
    if suspects.is_empty() {
        suspects = (0..ranks.len())
            .filter(|rank| ranks[*rank].asked && !ranks[*rank].answered)
            .collect();
    }
    suspects.into_iter().min_by_key(|rank| {
        let state = &ranks[*rank];
        let group = wanted_in(ranks, *rank).map_or(crate::group::WORLD, |entry| entry.group);
        let behind = state.progress(group);
        (
            state.answered,
            state.alive,
            behind,
            Reverse(votes(*rank)),
            *rank,
        )
    })
}

/// The operation in which others wait for `rank`: the earliest.
pub(super) fn wanted_in(ranks: &[RankState], rank: usize) -> Option<&FlightEntry> {
    let answered = ranks.iter().filter(|state| state.answered);
    let entries = answered.flat_map(|state| &state.records);
    let waiting = entries.filter(|entry| entry.waiting_for.contains(&rank));
    waiting.min_by_key(|entry| (entry.step, !entry.collective, entry.sequence, entry.group))
}

/// Whether `state` contains the call that others wait in, or a later one of the same group, before the group failed;
/// `None` if unknown.
pub(super) fn has_called(state: &RankState, wanted: &FlightEntry) -> Option<bool> {
    if !wanted.collective || state.records.is_empty() {
        return None;
    }
    Some(state.progress(wanted.group) > wanted.sequence)
}

/// The operation in which the stalled rank waited for others itself, where that is another one than they wait in: a message on
/// one rank and a collective on the other, as a rule.
pub(super) fn waits_itself<'a>(
    state: &'a RankState,
    wanted: &FlightEntry,
) -> Option<&'a FlightEntry> {
    let call = |it: &FlightEntry| (it.collective, it.group, it.sequence);
    let waits = |it: &&FlightEntry| !it.waiting_for.is_empty() && state.waits_in(it);
    let entry = state
        .records
        .iter()
        .filter(waits)
        .min_by_key(|it| it.sequence)?;
    (state.answered && !(wanted.collective && call(entry) == call(wanted))).then_some(entry)
}

/// How long after the failure of the group `state` came to the call that others had waited in; `None` if it has not, or
/// came in time.
pub(super) fn late(state: &RankState, wanted: &FlightEntry) -> Option<Duration> {
    let is_wanted = |entry: &&FlightEntry| {
        let collective = wanted.collective && entry.collective;
        collective && (entry.group, entry.sequence) == (wanted.group, wanted.sequence)
    };
    state.late(state.records.iter().find(is_wanted)?)
}

/// The running operation of a rank, else the failed one, else the last.
pub(super) fn doing(records: &[FlightEntry]) -> Option<&FlightEntry> {
    let order = |entry: &&FlightEntry| match entry.state {
        FlightState::Running => 0,
        FlightState::Failed => 1,
        FlightState::Queued => 2,
        FlightState::Done => 3,
    };
    records
        .iter()
        .min_by_key(|entry| (order(entry), entry.waiting_for.is_empty(), entry.ended))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heartbeat::thread::tests::barrier;

    fn entry(sequence: u64, state: FlightState, waiting_for: &[usize]) -> FlightEntry {
        FlightEntry {
            sequence,
            step: 50,
            state,
            began: Duration::from_secs(2),
            ..barrier(waiting_for.to_vec())
        }
    }

    fn rank(answered: bool, records: Vec<FlightEntry>) -> RankState {
        RankState {
            asked: true,
            answered,
            alive: answered,
            records,
            ..RankState::default()
        }
    }

    #[test]
    fn a_chain_of_waiting_ranks_is_followed_to_its_end() {
        // In a ring that stopped in the middle each waits for its neighbour.
        let failed = |waiting_for: usize| vec![entry(57, FlightState::Failed, &[waiting_for])];
        let stopped = rank(false, vec![entry(57, FlightState::Running, &[3])]);
        let ranks = [
            rank(true, failed(3)),
            stopped,
            rank(true, failed(1)),
            rank(true, failed(2)),
        ];
        assert_eq!(stalled(&ranks), Some(1));
        assert_eq!(wanted_in(&ranks, 1).map(|entry| entry.sequence), Some(57));
        assert_eq!(
            has_called(&ranks[1], wanted_in(&ranks, 1).unwrap()),
            Some(true)
        );
    }

    #[test]
    fn a_live_rank_that_waits_for_another_is_not_the_stalled_one() {
        let mut patient = rank(false, vec![entry(9, FlightState::Running, &[2])]);
        patient.alive = true;
        let busy = RankState {
            alive: true,
            ..rank(false, vec![entry(8, FlightState::Done, &[])])
        };
        let ranks = [
            rank(true, vec![entry(57, FlightState::Failed, &[1, 2])]),
            patient,
            busy,
        ];
        assert_eq!(stalled(&ranks), Some(2));
    }

    #[test]
    fn a_rank_whose_process_is_stopped_is_named_before_one_that_was_continued() {
        let continued = RankState {
            alive: true,
            ..rank(false, vec![entry(56, FlightState::Done, &[])])
        };
        let stopped = RankState {
            stopped: true,
            ..rank(false, vec![entry(56, FlightState::Done, &[])])
        };
        let waits = rank(true, vec![entry(57, FlightState::Failed, &[1])]);
        let ranks = [waits, continued, stopped];
        assert_eq!(stalled(&ranks), Some(2));
        assert_eq!(stalled(&ranks[..2]), Some(1));
    }

    #[test]
    fn of_two_that_stalled_the_one_further_behind_is_named() {
        let ranks = [
            rank(true, vec![entry(57, FlightState::Failed, &[1, 2])]),
            rank(false, vec![entry(56, FlightState::Done, &[])]),
            rank(false, vec![entry(55, FlightState::Done, &[])]),
        ];
        assert_eq!(stalled(&ranks), Some(2));
        assert_eq!(
            stalled(&[rank(true, Vec::new()), rank(true, Vec::new())]),
            None
        );
    }
}
