//! Inside each host to one leader, between the leaders, and back.

use super::{Setting, Team, doubling, ring};
use crate::group::engine::{Plan, Space, TaskId};

/// From how many bytes on the leaders exchange in a ring: below it, steps count more than bytes.
const LARGE: usize = 64 << 10;

/// The lowest rank of each host leads. A leader reduces its host's values in rank order.
pub(super) fn all_reduce(plan: &mut Plan, setting: &Setting<'_>, length: usize) {
    let Setting {
        rank,
        hosts,
        element,
        ..
    } = *setting;
    let leader = hosts[rank];
    if rank != leader {
        plan.send(leader, Space::Values, 0..length);
        plan.copy(leader, Space::Values, 0..length);
        return;
    }
    let of_host = |peer: &usize| hosts[*peer] == rank && *peer != rank;
    let members: Vec<usize> = (0..setting.size).filter(of_host).collect();
    let leaders: Vec<usize> = (0..setting.size)
        .filter(|peer| hosts[*peer] == *peer)
        .collect();
    let before = (!members.is_empty()).then(|| {
        let members = members.iter().copied();
        plan.reduce(
            members,
            0..length,
            (Space::Values, 0),
            (leaders.len() == 1, true),
        )
    });
    let team = Team {
        ranks: &leaders,
        own: leaders
            .iter()
            .position(|other| *other == rank)
            .unwrap_or_default(),
        before,
    };
    let ends: Vec<TaskId> = if leaders.len() == 1 {
        before.into_iter().collect()
    } else if leaders.len() == 2 || length * element < LARGE {
        doubling::recursive(plan, &team, length)
    } else {
        ring::all_reduce(plan, setting, &team, length)
    };
    for member in members {
        plan.send(member, Space::Values, 0..length);
        ends.iter().for_each(|end| plan.after(*end));
    }
}
