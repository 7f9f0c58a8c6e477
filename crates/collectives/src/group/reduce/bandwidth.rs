//! How fast reductions are beside a copy, in the L2 cache and in memory: for people, by
//! `cargo test --release -p everburn-collectives --lib bandwidth -- --ignored --nocapture`.

use std::hint::black_box;
use std::time::{Duration, Instant};

use half::{bf16, f16};

use super::*;

/// The best rate of many calls, in 10^9 bytes read and written a second.
fn rate(bytes: usize, mut call: impl FnMut()) -> f64 {
    let begin = Instant::now();
    let mut best = Duration::MAX;
    while begin.elapsed() < Duration::from_millis(1000) {
        let start = Instant::now();
        let calls = (1 << 22) / bytes + 1;
        for _ in 0..calls {
            call();
        }
        best = best.min(start.elapsed() / calls as u32);
    }
    bytes as f64 / best.as_secs_f64() / 1e9
}

#[allow(clippy::print_stderr, reason = "a measurement is printed")]
fn measure<T: Element>(op: ReduceOp, bytes: usize) {
    let length = bytes / size_of::<T>();
    let zero: T = T::narrow(T::Accumulator::default());
    let lists: Vec<Vec<T>> = (0..4).map(|_| vec![zero; length]).collect();
    let all: Vec<&[T]> = lists.iter().map(Vec::as_slice).collect();
    let mut result = vec![zero; length];
    let name = format!("{op} of {:4} x {bytes}", T::DTYPE);
    let copy = rate(2 * bytes, || {
        black_box(&mut result).copy_from_slice(black_box(all[0]));
    });
    let accumulated = rate(3 * bytes, || {
        accumulate(op, black_box(&mut result), black_box(all[0]));
    });
    let two = rate(3 * bytes, || {
        reduce_in_rank_order(op, black_box(&all[..2]), black_box(&mut result));
    });
    let four = rate(5 * bytes, || {
        reduce_in_rank_order(op, black_box(&all), black_box(&mut result));
    });
    let in_place = rate(5 * bytes, || {
        reduce_in_place_in_rank_order(op, black_box(&mut result), 1, black_box(&all[..3]));
    });
    eprintln!(
        "{name}: copy {copy:.1}, accumulate {accumulated:.1}, 2 ranks {two:.1}, 4 ranks {four:.1}, 4 in place {in_place:.1} GB/s"
    );
}

#[test]
#[ignore = "prints bandwidths"]
fn bandwidth() {
    for bytes in [64 << 10, 100 << 20] {
        measure::<f32>(ReduceOp::Sum, bytes);
        measure::<f64>(ReduceOp::Sum, bytes);
        measure::<f16>(ReduceOp::Sum, bytes);
        measure::<bf16>(ReduceOp::Sum, bytes);
        measure::<f32>(ReduceOp::Mean, bytes);
        measure::<f32>(ReduceOp::Max, bytes);
    }
}
