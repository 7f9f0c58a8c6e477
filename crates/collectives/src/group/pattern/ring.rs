//! Chunks travel around the ring of ranks: once to be reduced, once to be handed out.

use super::{Setting, Team};
use crate::group::engine::{Plan, Space, TaskId};

/// What is sent in one step is what was received in the step before, as far as it has come. The
/// tasks returned together end every element.
pub(super) fn all_reduce(
    plan: &mut Plan,
    setting: &Setting<'_>,
    team: &Team<'_>,
    length: usize,
) -> Vec<TaskId> {
    let (own, size) = (team.own, team.ranks.len());
    let next = team.ranks[(own + 1) % size];
    let previous = team.ranks[(own + size - 1) % size];
    let part = |index: usize| setting.aligned_chunk(&(0..length), index % size, size);
    let mut received: Option<TaskId> = None;
    for step in 0..size - 1 {
        plan.send(next, Space::Values, part(own + size - step));
        match received {
            Some(received) => plan.after(received),
            None => team.wait(plan),
        }
        let last = step + 2 == size;
        let combined = plan.combine(previous, part(own + 2 * size - step - 1), true, last);
        team.wait(plan);
        received = Some(combined);
    }
    let mut ends: Vec<TaskId> = received.into_iter().collect();
    for step in 0..size - 1 {
        plan.send(next, Space::Values, part(own + 1 + size - step));
        if let Some(end) = ends.last() {
            plan.after(*end);
        }
        ends.push(plan.copy(previous, Space::Values, part(own + size - step)));
    }
    ends
}
