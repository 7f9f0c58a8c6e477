//! The order of actions in each rank, for each kind of schedule.
//!
//! Each function yields the list of one rank. None of them looks at times: an order is fixed before
//! the step and every rank can work out those of all others.

use crate::Action;

/// The list of `rank`, of `ranks`.
pub(crate) struct OrderConfig {
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    pub(crate) micro_batches: usize,
    pub(crate) chunks: usize,
}

/// All forward passes, then all backward passes, both in the order of micro-batches.
///
/// The paper runs the backward passes in reverse order; in this one the micro-batch whose
/// gradients the last rank has first is also the one that the others have waited for longest, and
/// the same order is used by all schedules. Time and memory are the same.
pub(crate) fn gpipe(config: &OrderConfig) -> Vec<Action> {
    of_one_chunk(config, config.micro_batches)
}

/// One forward pass more for each rank behind this one, then a forward and a backward pass in
/// turn, then the backward passes that are left. Rank `r` of `p` has at most `p - r` live.
pub(crate) fn one_forward_one_backward(config: &OrderConfig) -> Vec<Action> {
    of_one_chunk(config, config.ranks - 1 - config.rank)
}

fn of_one_chunk(config: &OrderConfig, warm_up: usize) -> Vec<Action> {
    let stage = config.rank;
    let forward = |micro_batch| Action::Forward { micro_batch, stage };
    let backward = |micro_batch| Action::Backward { micro_batch, stage };
    let passes = 0..config.micro_batches;
    in_turn(
        warm_up,
        passes.clone().map(forward).collect(),
        passes.map(backward).collect(),
    )
}

/// 1F1B over chunks. Micro-batches go through the chunks of a rank in rounds of as many as there
/// are ranks: a round in chunk 0, the same round in chunk 1, and so on; backward from the last
/// chunk to the first.
///
/// The paper asks for micro-batches that the ranks divide. Here a rest is spread over the rounds
/// (as PyTorch's `ScheduleInterleaved1F1B` sizes its rounds, but without asking for equal ones), so
/// that no round is smaller than the pipeline is long, unless there are fewer micro-batches at all.
/// Where the ranks do divide them, this is the paper's order; elsewhere it is as idle as the paper's
/// formula says.
pub(crate) fn interleaved(config: &OrderConfig) -> Vec<Action> {
    let &OrderConfig {
        rank,
        ranks,
        micro_batches,
        chunks,
    } = config;
    // As many rounds as there can be of at least `ranks` micro-batches, the larger ones first.
    let rounds = (micro_batches / ranks).max(1);
    let (size, larger) = (micro_batches / rounds, micro_batches % rounds);
    let start = |round: usize| round * size + round.min(larger);
    let largest = micro_batches.div_ceil(rounds);
    // Twice as many as in 1F1B: a chunk's gradient comes back as far behind as its activation left.
    let warm_up = (2 * (ranks - 1 - rank) + (chunks - 1) * largest).min(micro_batches * chunks);
    let mut forward = Vec::with_capacity(micro_batches * chunks);
    let mut backward = Vec::with_capacity(micro_batches * chunks);
    for round in 0..rounds {
        let round = start(round)..start(round + 1);
        for chunk in 0..chunks {
            let stage = chunk * ranks + rank;
            let passes = round.clone();
            forward.extend(passes.map(|micro_batch| Action::Forward { micro_batch, stage }));
        }
        for chunk in (0..chunks).rev() {
            let stage = chunk * ranks + rank;
            let passes = round.clone();
            backward.extend(passes.map(|micro_batch| Action::Backward { micro_batch, stage }));
        }
    }
    in_turn(warm_up, forward, backward)
}

/// 1F1B with the backward pass cut in two: the gradients of weights of a micro-batch are computed as
/// many backward passes later as there are ranks before this one.
///
/// So every rank has as many live micro-batches as the first one has in 1F1B, the gradients of
/// inputs get to the first rank sooner, and what is put off fills the bubble at the end.
pub(crate) fn zero_bubble_h1(config: &OrderConfig) -> Vec<Action> {
    let (stage, micro_batches) = (config.rank, config.micro_batches);
    let warm_up = (config.ranks - 1 - config.rank).min(micro_batches);
    let mut actions = Vec::with_capacity(3 * micro_batches);
    actions.extend((0..warm_up).map(|micro_batch| Action::Forward { micro_batch, stage }));
    for micro_batch in 0..micro_batches {
        let ahead = micro_batch + warm_up;
        if ahead < micro_batches {
            let micro_batch = ahead;
            actions.push(Action::Forward { micro_batch, stage });
        }
        actions.push(Action::BackwardInput { micro_batch, stage });
        if let Some(micro_batch) = micro_batch.checked_sub(config.rank) {
            actions.push(Action::BackwardWeight { micro_batch, stage });
        }
    }
    let put_off = micro_batches.saturating_sub(config.rank)..micro_batches;
    actions.extend(put_off.map(|micro_batch| Action::BackwardWeight { micro_batch, stage }));
    actions
}

/// `warm_up` forward passes, then one forward and one backward in turn, then what is left.
fn in_turn(warm_up: usize, forward: Vec<Action>, backward: Vec<Action>) -> Vec<Action> {
    let mut actions = Vec::with_capacity(forward.len() + backward.len());
    let mut forward = forward.into_iter();
    actions.extend(forward.by_ref().take(warm_up));
    for action in backward {
        actions.extend(forward.next());
        actions.push(action);
    }
    actions
}
