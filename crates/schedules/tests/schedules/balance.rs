//! Where a model is cut.

use std::ops::Range;

use everburn_schedules::{
    BalanceError, Block, Costs, Link, MemoryLimit, OptimizerState, Schedule, ScheduleKind, balance,
    even_cuts, memory_of, simulate, stage_costs,
};
use proptest::prelude::*;

/// Every way to cut `from..count` into `parts`.
fn all_cuts(from: usize, count: usize, parts: usize) -> Vec<Vec<Range<usize>>> {
    if parts == 1 {
        return vec![vec![from..count]];
    }
    let firsts = from + 1..=count - (parts - 1);
    let with_first = |to: usize| {
        all_cuts(to, count, parts - 1)
            .into_iter()
            .map(move |mut rest| {
                rest.insert(0, from..to);
                rest
            })
    };
    firsts.flat_map(with_first).collect()
}

/// Whole seconds, so that sums are exact and ties are ties.
fn blocks(seconds: &[u32], bytes: &[u64]) -> Vec<Block> {
    let blocks = seconds.iter().zip(bytes).enumerate();
    let block = |(index, (seconds, bytes)): (usize, (&u32, &u64))| Block {
        parameter_bytes: *bytes,
        activation_bytes: bytes / 2,
        ..Block::of_forward(format!("layers.{index}"), f64::from(*seconds))
    };
    blocks.map(block).collect()
}

/// What a cut is judged by, smaller is better: the slowest stage, the squares, then the last cut, the
/// one before it, and so on.
fn judged(blocks: &[Block], cut: &[Range<usize>]) -> (u64, u64, Vec<usize>) {
    let time =
        |range: &Range<usize>| blocks[range.clone()].iter().map(Block::total).sum::<f64>() as u64;
    let times: Vec<u64> = cut.iter().map(time).collect();
    let squares = times.iter().map(|time| time * time).sum();
    let starts = cut.iter().rev().map(|range| range.start).collect();
    (times.into_iter().max().unwrap(), squares, starts)
}

fn stage_bytes(limit: &MemoryLimit, blocks: &[Block], stage: usize, range: &Range<usize>) -> u64 {
    blocks[range.clone()]
        .iter()
        .map(|block| limit.needed(stage, block))
        .sum()
}

proptest! {
    #[test]
    fn no_other_cut_is_better(
        costs in prop::collection::vec((0_u32..6, 0_u64..40), 1..9),
        parts in 1_usize..5,
        bytes in 20_u64..600,
        limited in any::<bool>(),
    ) {
        let (seconds, sizes): (Vec<u32>, Vec<u64>) = costs.into_iter().unzip();
        let blocks = blocks(&seconds, &sizes);
        prop_assume!(parts <= blocks.len());
        let live = (1..=parts).rev().collect();
        let limit = MemoryLimit { bytes, live, optimizer: OptimizerState::MOMENTUM };
        let most = |cut: &[Range<usize>]| {
            let stages = cut.iter().enumerate();
            stages.map(|(stage, range)| stage_bytes(&limit, &blocks, stage, range)).max().unwrap()
        };
        let all = all_cuts(0, blocks.len(), parts);
        let fitting = all.iter().filter(|cut| !limited || most(cut) <= bytes);
        let best = fitting.min_by_key(|cut| judged(&blocks, cut));
        match (balance(&blocks, parts, limited.then_some(&limit)), best) {
            (Ok(cut), Some(best)) => prop_assert_eq!(&cut, best),
            (Err(BalanceError::NoFit { needed, .. }), None) => {
                prop_assert_eq!(Some(needed), all.iter().map(|cut| most(cut)).min());
            }
            (Err(BalanceError::BlockTooLarge { name, needed, .. }), None) => {
                let block = blocks.iter().find(|block| block.name == name).unwrap();
                prop_assert_eq!(Some(needed), (0..parts).map(|stage| limit.needed(stage, block)).min());
                prop_assert!(needed > bytes);
            }
            (found, best) => prop_assert!(false, "{:?}, but {:?}", found, best),
        }
    }
}

proptest! {
    #[test]
    fn even_cuts_have_the_smallest_greatest_cost(
        costs in prop::collection::vec((0_u32..10).prop_map(f64::from), 1..9),
        parts in 1_usize..9,
    ) {
        prop_assume!(parts <= costs.len());
        let cuts = even_cuts(&costs, parts).unwrap();
        let greatest = |cuts: &[Range<usize>]| {
            let costs = cuts.iter().map(|range| costs[range.clone()].iter().sum::<f64>());
            costs.fold(0.0, f64::max)
        };
        let all = all_cuts(0, costs.len(), parts);
        prop_assert!(all.contains(&cuts));
        let least = all.iter().map(|cuts| greatest(cuts)).fold(f64::INFINITY, f64::min);
        prop_assert_eq!(greatest(&cuts), least);
    }
}

#[test]
fn no_run_is_empty_so_there_are_no_more_runs_than_blocks() {
    assert_eq!(even_cuts(&[1.0, 1.0], 3), None);
    assert_eq!(even_cuts(&[1.0], 0), None);
}

#[test]
fn a_memory_limit_moves_the_cut() {
    let mut blocks = blocks(&[1; 6], &[10; 6]);
    for block in &mut blocks {
        block.activation_bytes = 100;
    }
    let schedule = Schedule::new(ScheduleKind::OneForwardOneBackward, 2, 8, 1).unwrap();
    assert_eq!(balance(&blocks, 2, None).unwrap(), [0..3, 3..6]);
    // The first stage keeps two micro-batches: 240 bytes a block, 140 in the second stage.
    let limit = |bytes| MemoryLimit::of_schedule(&schedule, bytes, OptimizerState::ADAM);
    assert_eq!(
        balance(&blocks, 2, Some(&limit(719))).unwrap(),
        [0..2, 2..6]
    );
    let error = balance(&blocks, 2, Some(&limit(559))).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no cut into 2 stages fits into 559 B a stage; the smallest limit that does is 560 B: use \
         more stages, smaller micro-batches or activation checkpointing"
    );
}

#[test]
fn bad_requests_are_answered_with_what_to_do() {
    let blocks = blocks(&[1, 2], &[100, 1 << 30]);
    let error = |parts, limit: Option<&MemoryLimit>| {
        balance(&blocks, parts, limit).unwrap_err().to_string()
    };
    assert_eq!(
        error(0, None),
        "a model must be split into at least one stage, not 0"
    );
    assert_eq!(
        error(5, None),
        "2 blocks cannot be split into 5 stages: use at most 2 stages"
    );
    let limit = MemoryLimit {
        bytes: 1 << 30,
        live: vec![2, 1],
        optimizer: OptimizerState::ADAM,
    };
    assert_eq!(
        error(2, Some(&limit)),
        "block layers.1 alone takes 4.5 GiB, more than the limit of 1 GiB a stage: cut the block into \
         smaller ones, use smaller micro-batches or activation checkpointing"
    );
    let wide = MemoryLimit {
        bytes: 4 << 30,
        ..limit
    };
    assert_eq!(
        error(1, Some(&wide)),
        "the memory limit is for 2 stages, but the model is split into 1"
    );
    let mut bad = blocks.clone();
    bad[1].backward_input = f64::NAN;
    let error = balance(&bad, 2, None).unwrap_err().to_string();
    assert_eq!(
        error,
        "block layers.1 takes [2.0, NaN, 2.0] s: each must be finite and not negative"
    );
    bad[1].backward_input = f64::MAX;
    bad[0].forward = f64::MAX;
    assert!(matches!(
        balance(&bad, 2, None),
        Err(BalanceError::TooLong { .. })
    ));
}

#[test]
fn a_plan_from_blocks_to_the_time_of_a_step() {
    let mut blocks = blocks(&[2, 1, 1, 2, 1, 1], &[80; 6]);
    for block in &mut blocks {
        block.output_bytes = 500;
    }
    let schedule = Schedule::new(ScheduleKind::OneForwardOneBackward, 2, 4, 1).unwrap();
    let cuts = balance(&blocks, schedule.stages(), None).unwrap();
    assert_eq!(cuts, [0..3, 3..6]);
    let link = Link {
        latency: 0.5,
        bytes_per_second: 1000.0,
    };
    let costs = stage_costs(&blocks, &cuts, link);
    assert_eq!(costs.stages[0].transfer, 1.0);
    let timeline = simulate(&schedule, &costs).unwrap();
    // Five slots of 4 + 8 s; the first activation and the last gradient travel for 1 s each, and each
    // gradient between comes 1 s after the first rank could have gone on.
    assert!(timeline.makespan() > 5.0 * 12.0 + 2.0 - 1e-9);

    let ranks = memory_of(&schedule, &costs, OptimizerState::MOMENTUM).unwrap();
    assert_eq!(ranks[0].parameters, 240);
    assert_eq!(ranks[0].total(), 3 * 240 + 2 * 120);
    assert_eq!(ranks[1].activations, 120);
    let error = memory_of(&schedule, &Costs::equal(3), OptimizerState::SGD).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the schedule has 2 stages, but there are costs of 3"
    );
}
