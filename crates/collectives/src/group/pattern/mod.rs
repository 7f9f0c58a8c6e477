//! The tasks of each collective: who sends which elements to whom, and what waits for what.
//!
//! Costs and sources are in [`super::algorithm`]. What one rank sends to another must be, task by
//! task, what the other receives from it.

mod direct;
mod doubling;
mod hierarchical;
mod ring;

use std::ops::Range;

use super::algorithm::{Algorithm, chunk};
use super::engine::{ALIGNMENT, Plan, Space, TaskId};
use super::tuning::Path;

/// The place of this rank in its group.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setting<'a> {
    pub(crate) rank: usize,
    pub(crate) size: usize,
    /// The lowest rank on the machine of each rank.
    pub(crate) hosts: &'a [usize],
    /// The size of an element, in bytes.
    pub(crate) element: usize,
    pub(crate) path: Path,
}

impl Setting<'_> {
    /// The other ranks, beginning after this one, so that not all ranks send to the same one
    /// first.
    pub(crate) fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let (rank, size) = (self.rank, self.size);
        (1..size).map(move |offset| (rank + offset) % size)
    }

    /// As [`chunk`], with boundaries between cache lines.
    fn aligned_chunk(&self, range: &Range<usize>, part: usize, parts: usize) -> Range<usize> {
        let line = ALIGNMENT / self.element;
        let lines = chunk(range.len().div_ceil(line), part, parts);
        let at = |lines: usize| (range.start + lines * line).min(range.end);
        at(lines.start)..at(lines.end)
    }
}

/// Some ranks that reduce together.
#[derive(Debug, Clone, Copy)]
struct Team<'a> {
    /// In ascending order.
    ranks: &'a [usize],
    /// The place of this rank among them.
    own: usize,
    /// What must have come first to each element of this rank.
    before: Option<TaskId>,
}

impl Team<'_> {
    /// Makes the last task wait for what must come first.
    fn wait(&self, plan: &mut Plan) {
        if let Some(before) = self.before {
            plan.after(before);
        }
    }
}

/// All values reduced on every rank.
pub(crate) fn all_reduce(plan: &mut Plan, setting: &Setting<'_>, length: usize, how: Algorithm) {
    let ranks: Vec<usize> = (0..setting.size).collect();
    let team = Team {
        ranks: &ranks,
        own: setting.rank,
        before: None,
    };
    match how {
        Algorithm::Flat => flat_all_reduce(plan, setting, length),
        Algorithm::Direct => direct::all_reduce(plan, setting, length),
        Algorithm::RecursiveDoubling => {
            doubling::recursive(plan, &team, length);
        }
        Algorithm::Ring => {
            ring::all_reduce(plan, setting, &team, length);
        }
        Algorithm::HalvingDoubling => {
            doubling::halving(plan, setting, &team, length);
        }
        Algorithm::Hierarchical => hierarchical::all_reduce(plan, setting, length),
    }
}

/// Everybody sends everything to everybody and reduces all of it. In place: an element is reduced
/// when it has been sent to all.
fn flat_all_reduce(plan: &mut Plan, setting: &Setting<'_>, length: usize) {
    let send = |plan: &mut Plan, peer| plan.send(peer, Space::Values, 0..length);
    let sends: Vec<TaskId> = setting.others().map(|peer| send(plan, peer)).collect();
    plan.reduce(
        setting.others(),
        0..length,
        (Space::Values, 0),
        (true, false),
    );
    for send in sends {
        plan.after(send);
    }
}

/// All values reduced on the root. The others' values stay; those of `Output(rank)` are theirs to
/// work on.
pub(crate) fn reduce(
    plan: &mut Plan,
    setting: &Setting<'_>,
    length: usize,
    root: usize,
    how: Algorithm,
) {
    if how != Algorithm::Flat {
        return direct::reduce(plan, setting, length, root);
    }
    if setting.rank == root {
        plan.reduce(
            setting.others(),
            0..length,
            (Space::Values, 0),
            (true, true),
        );
    } else {
        plan.send(root, Space::Values, 0..length);
    }
}

/// The root's values on every rank.
pub(crate) fn broadcast(
    plan: &mut Plan,
    setting: &Setting<'_>,
    length: usize,
    root: usize,
    how: Algorithm,
) {
    if how != Algorithm::Flat {
        return direct::broadcast(plan, setting, length, root);
    }
    if setting.rank == root {
        for peer in setting.others() {
            plan.send(peer, Space::Values, 0..length);
        }
    } else {
        plan.copy(root, Space::Values, 0..length);
    }
}

/// Part `r` of the values of all ranks, reduced, on rank `r`, in its output.
pub(crate) fn reduce_scatter(plan: &mut Plan, setting: &Setting<'_>, length: usize) {
    for peer in setting.others() {
        plan.send(peer, Space::Values, chunk(length, peer, setting.size));
    }
    let own = chunk(length, setting.rank, setting.size);
    plan.reduce(
        setting.others(),
        own,
        (Space::Output(setting.rank), 0),
        (true, true),
    );
}

/// The values of each rank on every rank (or on the root only), each in its output.
pub(crate) fn gather(plan: &mut Plan, setting: &Setting<'_>, length: usize, root: Option<usize>) {
    for peer in setting.others() {
        if root.is_none_or(|root| root == peer) {
            plan.send(peer, Space::Values, 0..length);
        }
        if root.is_none_or(|root| root == setting.rank) {
            plan.copy(peer, Space::Output(peer), 0..length);
        }
    }
}

/// The values of this rank for every other, which learns their number from the header.
pub(crate) fn hand_out_values(plan: &mut Plan, setting: &Setting<'_>, length: usize) {
    for peer in setting.others() {
        plan.send(peer, Space::Values, 0..length);
    }
}

/// A list for each other rank, which learns its length from the header. No lists stand for empty
/// ones.
pub(crate) fn hand_out_lists<T>(plan: &mut Plan, setting: &Setting<'_>, lists: &[Vec<T>]) {
    for peer in setting.others() {
        if let Some(list) = lists.get(peer) {
            plan.send(peer, Space::Input(peer), 0..list.len());
        }
    }
}
