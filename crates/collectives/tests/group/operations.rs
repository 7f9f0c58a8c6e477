//! Every collective, type, size and length against a plain sequential computation.

use everburn_collectives::group::{Algorithm, Element, GroupOptions, ProcessGroup, ReduceOp};
use half::{bf16, f16};

use crate::harness::{WIRES, on_all_ranks, on_every_wire, options};

const SIZES: [usize; 5] = [1, 2, 3, 4, 7];

/// A type with values to test on and an independent definition of its reductions.
pub trait Sample: Element {
    fn sample(rank: usize, index: usize) -> Self;
    fn reduced(op: ReduceOp, contributions: &[Self]) -> Self;
}

macro_rules! float_sample {
    ($type:ty, $wide:ty, $widen:expr, $narrow:expr) => {
        impl Sample for $type {
            fn sample(rank: usize, index: usize) -> Self {
                // Neither exact in binary nor of one magnitude, so that the order shows.
                let value = ((rank * 31 + index * 17) % 101) as f32 / 7.0 - 6.3;
                $narrow((value * if index % 3 == 0 { 100.0 } else { 0.01 }) as $wide)
            }
            fn reduced(op: ReduceOp, contributions: &[Self]) -> Self {
                let mut values = contributions.iter().map(|value| $widen(*value));
                let first: $wide = values.next().unwrap();
                $narrow(match op {
                    ReduceOp::Sum => values.fold(first, |a, b| a + b),
                    ReduceOp::Mean => {
                        values.fold(first, |a, b| a + b) / contributions.len() as $wide
                    }
                    ReduceOp::Min => values.fold(first, |a, b| if b < a { b } else { a }),
                    ReduceOp::Max => values.fold(first, |a, b| if b > a { b } else { a }),
                    _ => values.fold(first, |a, b| a * b),
                })
            }
        }
    };
}

macro_rules! integer_sample {
    ($type:ty) => {
        impl Sample for $type {
            fn sample(rank: usize, index: usize) -> Self {
                (rank * 7919 + index * 104_729) as $type
            }
            fn reduced(op: ReduceOp, contributions: &[Self]) -> Self {
                let values = contributions.iter().copied();
                match op {
                    ReduceOp::Min => values.min().unwrap(),
                    ReduceOp::Max => values.max().unwrap(),
                    ReduceOp::Product => values.fold(1, Self::wrapping_mul),
                    _ => values.fold(0, Self::wrapping_add),
                }
            }
        }
    };
}

float_sample!(f32, f32, |x| x, |x| x);
float_sample!(f64, f64, |x| x, |x| x);
float_sample!(f16, f32, f16::to_f32, f16::from_f32);
float_sample!(bf16, f32, bf16::to_f32, bf16::from_f32);
integer_sample!(i32);
integer_sample!(i64);
integer_sample!(u8);

pub fn samples<T: Sample>(rank: usize, length: usize) -> Vec<T> {
    (0..length).map(|index| T::sample(rank, index)).collect()
}

pub fn reduced<T: Sample>(op: ReduceOp, size: usize, length: usize) -> Vec<T> {
    let at = |index| {
        (0..size)
            .map(|rank| T::sample(rank, index))
            .collect::<Vec<_>>()
    };
    (0..length)
        .map(|index| T::reduced(op, &at(index)))
        .collect()
}

/// Equal to the bit. Every rank compares with the same bits, so all ranks hold the same.
#[track_caller]
fn assert_bits<T: Element>(found: &[T], expected: &[T], what: &str) {
    let bytes = |values| bytemuck::cast_slice::<T, u8>(values);
    assert!(
        bytes(found) == bytes(expected),
        "{what}: {} elements",
        expected.len()
    );
}

fn check_reductions<T: Sample>(group: &ProcessGroup, length: usize) {
    let (rank, size) = (group.rank(), group.world_size());
    let mine = || samples::<T>(rank, length);
    for op in ReduceOp::ALL.into_iter().filter(|op| op.supports(T::DTYPE)) {
        let expected = reduced::<T>(op, size, length);
        let what = format!("{op} of {} over {size}", T::DTYPE);
        assert_bits(
            &group.all_reduce(mine(), op).wait().unwrap(),
            &expected,
            &what,
        );

        let root = length % size;
        let result = group.reduce(mine(), op, root).wait().unwrap();
        if rank == root {
            assert_bits(&result, &expected, &what);
        } else {
            assert_bits(
                &result,
                &mine(),
                "a rank that is not the root keeps its own",
            );
        }

        let whole = samples::<T>(rank, length * size);
        let part = group.reduce_scatter(whole, op).wait().unwrap();
        let expected = reduced::<T>(op, size, length * size);
        assert_bits(&part, &expected[rank * length..(rank + 1) * length], &what);
    }
}

fn check_transfers<T: Sample>(group: &ProcessGroup, length: usize) {
    let (rank, size) = (group.rank(), group.world_size());
    let mine = || samples::<T>(rank, length);
    let all: Vec<Vec<T>> = (0..size).map(|rank| samples(rank, length)).collect();
    for root in [0, size - 1] {
        let result = group.broadcast(mine(), root).wait().unwrap();
        assert_bits(&result, &all[root], "broadcast");
        let result = group.gather(mine(), root).wait().unwrap();
        assert_eq!(result, (rank == root).then(|| all.clone()));
        let lists = (rank == root).then(|| {
            (0..size)
                .map(|to| samples::<T>(to + 1, length + to))
                .collect()
        });
        let result = group.scatter(lists, root).wait().unwrap();
        assert_bits(&result, &samples(rank + 1, length + rank), "scatter");
    }
    assert_eq!(group.all_gather(mine()).wait().unwrap(), all);

    let varied = samples::<T>(rank, length + rank);
    let expected: Vec<Vec<T>> = (0..size).map(|rank| samples(rank, length + rank)).collect();
    assert_eq!(group.all_gather_varied(varied).wait().unwrap(), expected);

    // What `from` sends to `to` differs by both, in content and length.
    let list = |from: usize, to: usize| samples::<T>(from * size + to, length + from + 2 * to);
    let lists = (0..size).map(|to| list(rank, to)).collect();
    let expected: Vec<Vec<T>> = (0..size).map(|from| list(from, rank)).collect();
    assert_eq!(group.all_to_all(lists).wait().unwrap(), expected);

    let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
    let send = group.send(mine(), next, 3);
    assert_bits(
        &group.recv(previous, 3).wait().unwrap(),
        &all[previous],
        "ring",
    );
    send.wait().unwrap();
}

fn check_type<T: Sample>(group: &ProcessGroup) {
    for length in [0, 1, 1003] {
        check_reductions::<T>(group, length);
        check_transfers::<T>(group, length);
    }
}

#[test]
fn every_operation_with_the_algorithms_in_rank_order() {
    for algorithm in [Algorithm::Flat, Algorithm::Direct] {
        let options = GroupOptions {
            algorithm: Some(algorithm),
            ..options()
        };
        for (wire, size) in WIRES
            .into_iter()
            .flat_map(|wire| SIZES.map(|size| (wire, size)))
        {
            on_all_ranks(wire, size, options, |group| {
                check_type::<f32>(&group);
                check_type::<f64>(&group);
                check_type::<f16>(&group);
                check_type::<bf16>(&group);
                check_type::<i32>(&group);
                check_type::<i64>(&group);
                check_type::<u8>(&group);
                group.barrier().wait().unwrap();
                group.destroy().unwrap();
            });
        }
    }
}

#[test]
fn large_messages() {
    for size in SIZES {
        on_every_wire(size, |group| {
            check_transfers::<f32>(&group, 300_000);
            for op in [ReduceOp::Sum, ReduceOp::Mean] {
                let expected = reduced::<f32>(op, size, 300_000);
                let result = group.all_reduce(samples(group.rank(), 300_000), op).wait();
                assert_bits(&result.unwrap(), &expected, "large all_reduce");
            }
            group.destroy().unwrap();
        });
    }
}

#[test]
fn works_are_waited_for_in_any_order() {
    on_every_wire(3, |group| {
        let rank = group.rank();
        let sums: Vec<_> = (0..8)
            .map(|index| group.all_reduce(samples::<f32>(rank, 1 << (2 * index)), ReduceOp::Sum))
            .collect();
        let gathered = group.all_gather(vec![rank as u8]);
        assert_eq!(gathered.wait().unwrap(), [[0], [1], [2]]);
        for (index, work) in sums.into_iter().enumerate().rev() {
            assert!(work.is_done(), "the gather came after it");
            assert_eq!(work.sequence(), index as u64);
            let expected = reduced::<f32>(ReduceOp::Sum, 3, 1 << (2 * index));
            assert_bits(&work.wait().unwrap(), &expected, "async");
        }
        // Neither a dropped work nor a dropped group cancels what the others count on.
        drop(group.all_reduce(vec![1.0f32], ReduceOp::Sum));
        let last = group.barrier();
        drop(group);
        last.wait().unwrap();
    });
}

#[test]
fn handles_on_several_threads_share_one_group() {
    on_every_wire(2, |group| {
        let other = group.clone();
        let thread = std::thread::spawn(move || {
            let peer = 1 - other.rank();
            let send = other.send(vec![other.rank() as i32], peer, 1);
            let received = other.recv::<i32>(peer, 1).wait().unwrap();
            send.wait().unwrap();
            received[0]
        });
        let sum = group.all_reduce(vec![1i64], ReduceOp::Sum).wait().unwrap();
        assert_eq!(
            (sum[0], thread.join().unwrap()),
            (2, 1 - group.rank() as i32)
        );
    });
}
