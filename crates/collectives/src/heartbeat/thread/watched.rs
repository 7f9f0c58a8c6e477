//! Whose beats a rank reads.

use super::{Heartbeat, State};
use crate::heartbeat::machine::machine_of;
use crate::heartbeat::status::LATE_BEATS;
use crate::runtime;
use crate::sync::lock;

/// The largest group whose ranks each watch all others.
pub(in crate::heartbeat) const WATCH_ALL: usize = 32;

impl Heartbeat {
    /// The members whose beats this one reads, in order: its neighbours, and of the machine of a silent one all others.
    pub(super) fn watched(&self, state: &State) -> Vec<usize> {
        let mut watched = self.neighbours(state);
        watched.extend(&state.suspects);
        watched.sort_unstable();
        watched.dedup();
        watched
    }

    /// Whether this member reads the beats of `member`.
    pub(in crate::heartbeat) fn watches(&self, member: usize) -> bool {
        self.watched(&lock(&self.state)).contains(&member)
    }

    /// The members whose beats this one reads at any time, in order.
    ///
    /// In a small group that is everyone. In a large one each rank watches the ranks 1, 2, 4, 8, ... above it: each
    /// has log2 n watchers, on other machines too, and the first that misses its beats fails the group on all ranks.
    /// Everyone watching everyone would be n² beats per interval.
    pub(super) fn neighbours(&self, state: &State) -> Vec<usize> {
        let is_other = |member: &usize| *member != self.member && *member < self.members;
        let size = state
            .followed
            .as_ref()
            .map_or(self.members, |it| it.members.len());
        if state.reads_all || size <= WATCH_ALL {
            return (0..self.members).filter(is_other).collect();
        }
        let Some(followed) = &state.followed else {
            return Vec::new();
        };
        let distances = distances(size);
        let above = distances.map(|distance| followed.members[(followed.rank + distance) % size]);
        let mut neighbours: Vec<usize> = above.filter(is_other).collect();
        neighbours.sort_unstable();
        neighbours
    }

    /// Begins to read the beats of all on the machine of a neighbour that is silent, to know whether the machine is
    /// silent as a whole; and ends it once the neighbour beats again.
    pub(super) fn suspect_machines(&self, state: &mut State) {
        let (Some(per_machine), Some(followed)) = (self.options.ranks_per_machine, &state.followed)
        else {
            return;
        };
        let neighbours = self.neighbours(state);
        let late = LATE_BEATS * self.options.interval;
        let is_silent = |member: &usize| {
            let peer = &state.peers[*member];
            let beat = peer.found.beat().filter(|beat| !beat.goodbye);
            beat.is_some() && runtime::elapsed(peer.moved) >= late
        };
        let silent = neighbours.iter().copied().filter(is_silent);
        let machines: Vec<usize> = silent
            .map(|member| machine_of(member, per_machine))
            .collect();
        let is_suspect = |member: &usize| {
            let is_known = *member == self.member || neighbours.binary_search(member).is_ok();
            *member < self.members
                && !is_known
                && machines.contains(&machine_of(*member, per_machine))
        };
        let members = followed.members.iter().copied();
        let mut suspects: Vec<usize> = members.filter(is_suspect).collect();
        suspects.sort_unstable();
        for suspect in &suspects {
            if state.suspects.binary_search(suspect).is_err() {
                // What it has sent before is old by now, and no sign of silence.
                state.peers[*suspect].moved = runtime::now();
            }
        }
        state.suspects = suspects;
    }
}

/// How far above a rank of a large group those are that it watches.
fn distances(size: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(1), |distance: &usize| distance.checked_mul(2))
        .take_while(move |distance| *distance < size)
}

/// The ranks of a group of `size` that read the beats of `rank`; empty where all do.
pub(in crate::heartbeat) fn watchers_of(rank: usize, size: usize) -> Vec<usize> {
    match size > WATCH_ALL {
        true => distances(size)
            .map(|distance| (rank + size - distance) % size)
            .collect(),
        false => Vec::new(),
    }
}

#[cfg(test)]
mod tests;
