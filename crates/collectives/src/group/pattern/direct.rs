//! Pairwise exchange: each rank reduces the chunk that it owns and hands it out.

use super::Setting;
use crate::group::algorithm::chunk;
use crate::group::engine::{Plan, Space, TaskId};
use crate::group::tuning::Path;

/// How many bytes of each chunk are reduced before their result is handed out. What a rank sends,
/// reduces and receives for one segment stays in its L2 cache, so each value is read from memory
/// once and written once.
const SEGMENT: usize = 64 << 10;

/// As [`SEGMENT`] over TCP, where there are few large steps.
const SOCKET_SEGMENT: usize = 256 << 10;

/// How many segments of contributions go ahead of the results, so that a rank has something to
/// send while it waits for the others.
const AHEAD: usize = 2;

/// The most segments, so that the plan of a very long message stays small.
const MAX_SEGMENTS: usize = 2048;

/// To each peer, segment by segment: this rank's contribution to the peer's chunk, then its own
/// chunk reduced.
pub(super) fn all_reduce(plan: &mut Plan, setting: &Setting<'_>, length: usize) {
    let Setting {
        rank,
        size,
        element,
        ..
    } = *setting;
    let longest = setting
        .aligned_chunk(&(0..length), 0, 1)
        .len()
        .div_ceil(size)
        * element;
    let segment = match setting.path {
        Path::SharedMemory => SEGMENT,
        Path::Tcp | Path::Hosts => SOCKET_SEGMENT,
    };
    let segments = longest.div_ceil(segment).clamp(1, MAX_SEGMENTS);
    let part = |owner: usize, segment: usize| {
        let chunk = setting.aligned_chunk(&(0..length), owner, size);
        setting.aligned_chunk(&chunk, segment, segments)
    };
    let mut reduced: Vec<TaskId> = Vec::with_capacity(segments);
    for turn in 0..segments + AHEAD {
        if turn < segments {
            for peer in setting.others() {
                plan.send(peer, Space::Values, part(peer, turn));
            }
            let own = part(rank, turn);
            let start = own.start;
            reduced.push(plan.reduce(setting.others(), own, (Space::Values, start), (true, true)));
        }
        let Some(segment) = turn.checked_sub(AHEAD) else {
            continue;
        };
        for peer in setting.others() {
            plan.send(peer, Space::Values, part(rank, segment));
            plan.after(reduced[segment]);
            plan.copy(peer, Space::Values, part(peer, segment));
        }
    }
}

/// As [`all_reduce`], but the reduced chunks go to the root only. The values of the others stay
/// as they are: their chunk is reduced in `Output(rank)`, at the same place.
pub(super) fn reduce(plan: &mut Plan, setting: &Setting<'_>, length: usize, root: usize) {
    let Setting { rank, size, .. } = *setting;
    for peer in setting.others() {
        plan.send(peer, Space::Values, chunk(length, peer, size));
    }
    let own = chunk(length, rank, size);
    let space = if rank == root {
        Space::Values
    } else {
        Space::Output(rank)
    };
    let target = (space, own.start);
    let reduced = plan.reduce(setting.others(), own.clone(), target, (true, true));
    if rank != root {
        plan.send(root, space, own);
        plan.after(reduced);
        return;
    }
    for peer in setting.others() {
        plan.copy(peer, Space::Values, chunk(length, peer, size));
    }
}

/// The root sends chunk `r` to rank `r`, which hands it out, and its own chunk to everybody.
pub(super) fn broadcast(plan: &mut Plan, setting: &Setting<'_>, length: usize, root: usize) {
    let Setting { rank, size, .. } = *setting;
    let part = |owner| chunk(length, owner, size);
    if rank == root {
        for peer in setting.others() {
            plan.send(peer, Space::Values, part(peer));
            plan.send(peer, Space::Values, part(root));
        }
        return;
    }
    let own = plan.copy(root, Space::Values, part(rank));
    plan.copy(root, Space::Values, part(root));
    for peer in setting.others().filter(|peer| *peer != root) {
        plan.send(peer, Space::Values, part(rank));
        plan.after(own);
        plan.copy(peer, Space::Values, part(peer));
    }
}
