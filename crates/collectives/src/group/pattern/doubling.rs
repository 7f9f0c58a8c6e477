//! Exchanges at distance 1, 2, 4, ..: of everything, or of halves, quarters, ..
//!
//! Where the number of ranks is no power of two, the first ranks form pairs: the odd one hands its
//! values to the even one, takes no part, and gets the result at the end.

use std::ops::Range;

use super::{Setting, Team};
use crate::group::engine::{Plan, Space, TaskId};

/// The ranks that exchange, a power of two of them.
struct Cube {
    /// How many pairs have been folded into one rank each.
    pairs: usize,
    /// This rank's place among the ranks that are left.
    place: usize,
    /// How many exchanges there are.
    steps: u32,
    /// What must come first to each of this rank's elements.
    before: Option<TaskId>,
    /// The odd rank of this rank's pair.
    folded: Option<usize>,
}

impl Cube {
    /// Folds pairs; `None` where this rank is the odd one of a pair, and has its tasks already.
    fn fold(plan: &mut Plan, team: &Team<'_>, length: usize) -> Option<Self> {
        let steps = team.ranks.len().ilog2();
        let pairs = team.ranks.len() - (1 << steps);
        let mut cube = Self {
            pairs,
            place: team.own.wrapping_sub(pairs),
            steps,
            before: team.before,
            folded: None,
        };
        if team.own >= 2 * pairs {
            return Some(cube);
        }
        if !team.own.is_multiple_of(2) {
            let even = team.ranks[team.own - 1];
            plan.send(even, Space::Values, 0..length);
            team.wait(plan);
            plan.copy(even, Space::Values, 0..length);
            return None;
        }
        let odd = team.ranks[team.own + 1];
        let folded = plan.combine(odd, 0..length, true, false);
        team.wait(plan);
        cube.place = team.own / 2;
        cube.before = Some(folded);
        cube.folded = Some(odd);
        Some(cube)
    }

    /// The place of the partner in a step, and its rank.
    fn partner(&self, team: &Team<'_>, step: u32) -> (usize, usize) {
        let place = self.place ^ (1 << step);
        let own = if place < self.pairs {
            2 * place
        } else {
            place + self.pairs
        };
        (place, team.ranks[own])
    }

    /// Gives the result to the odd rank of this rank's pair.
    fn unfold(&self, plan: &mut Plan, length: usize, ends: &[TaskId]) {
        if let Some(odd) = self.folded {
            plan.send(odd, Space::Values, 0..length);
            ends.iter().for_each(|end| plan.after(*end));
        }
    }
}

/// The tasks that end every element of a rank that takes no part in the exchanges.
fn ends_of_folded(plan: &Plan) -> Vec<TaskId> {
    vec![plan.tasks.len() as TaskId - 1]
}

/// Everything is exchanged in each step. Both partners combine the lower one's values with the
/// higher one's, so both get the same bits.
pub(super) fn recursive(plan: &mut Plan, team: &Team<'_>, length: usize) -> Vec<TaskId> {
    let Some(cube) = Cube::fold(plan, team, length) else {
        return ends_of_folded(plan);
    };
    let mut before = cube.before;
    for step in 0..cube.steps {
        let (place, partner) = cube.partner(team, step);
        let sent = plan.send(partner, Space::Values, 0..length);
        before.into_iter().for_each(|before| plan.after(before));
        let last = step + 1 == cube.steps;
        let combined = plan.combine(partner, 0..length, cube.place < place, last);
        before.into_iter().for_each(|before| plan.after(before));
        // In place: an element changes when the partner has it.
        plan.after(sent);
        before = Some(combined);
    }
    let ends: Vec<TaskId> = before.into_iter().collect();
    cube.unfold(plan, length, &ends);
    ends
}

/// Half of what a rank still reduces is exchanged in each step, then the way back.
pub(super) fn halving(
    plan: &mut Plan,
    setting: &Setting<'_>,
    team: &Team<'_>,
    length: usize,
) -> Vec<TaskId> {
    let Some(cube) = Cube::fold(plan, team, length) else {
        return ends_of_folded(plan);
    };
    let mut before = cube.before;
    let mut range = 0..length;
    let mut way: Vec<(usize, Range<usize>, Range<usize>)> = Vec::new();
    for step in 0..cube.steps {
        let (place, partner) = cube.partner(team, step);
        let (lower, upper) = (
            setting.aligned_chunk(&range, 0, 2),
            setting.aligned_chunk(&range, 1, 2),
        );
        let (kept, given) = if cube.place < place {
            (lower, upper)
        } else {
            (upper, lower)
        };
        plan.send(partner, Space::Values, given.clone());
        before.into_iter().for_each(|before| plan.after(before));
        let last = step + 1 == cube.steps;
        let combined = plan.combine(partner, kept.clone(), true, last);
        before.into_iter().for_each(|before| plan.after(before));
        before = Some(combined);
        range = kept.clone();
        way.push((partner, kept, given));
    }
    let mut ends: Vec<TaskId> = before.into_iter().collect();
    for (partner, kept, given) in way.into_iter().rev() {
        plan.send(partner, Space::Values, kept);
        ends.iter().for_each(|end| plan.after(*end));
        ends.push(plan.copy(partner, Space::Values, given));
    }
    cube.unfold(plan, length, &ends);
    ends
}
