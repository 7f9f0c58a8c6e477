//! Every algorithm, over every kind of channel, against a plain sum.

use everburn_collectives::group::{
    Algorithm, Element, GroupOptions, ProcessGroup, ReduceOp, ReductionOrder,
};
use half::{bf16, f16};

use crate::elsewhere::on_hosts;
use crate::harness::{WIRES, in_parallel, on_all_ranks, options};
use crate::operations::{Sample, reduced, samples};

/// How far a result may be from the plain computation in rank order, for the sum of magnitudes 1.
trait Rounding: Sample {
    const ERROR: f64;
    fn wide(self) -> f64;
}

macro_rules! rounding {
    ($($type:ty, $error:expr, $wide:expr;)*) => {$(
        impl Rounding for $type {
            const ERROR: f64 = $error;
            fn wide(self) -> f64 {
                $wide(self)
            }
        }
    )*};
}

rounding! {
    f32, 1e-6, f64::from;
    f64, 1e-14, |x| x;
    f16, 4e-3, f16::to_f64;
    bf16, 3e-2, bf16::to_f64;
    i32, 0.0, f64::from;
    i64, 0.0, |x| x as f64;
    u8, 0.0, f64::from;
}

fn check<T: Rounding>(group: &ProcessGroup, length: usize) {
    let size = group.world_size();
    for op in ReduceOp::ALL.into_iter().filter(|op| op.supports(T::DTYPE)) {
        let mut values = samples::<T>(group.rank(), length);
        group.all_reduce_in_place(&mut values, op).unwrap();
        let expected = reduced::<T>(op, size, length);
        for (index, (found, expected)) in values.iter().zip(&expected).enumerate() {
            let magnitude: f64 = match op {
                ReduceOp::Sum | ReduceOp::Mean => (0..size)
                    .map(|rank| T::sample(rank, index).wide().abs())
                    .sum(),
                ReduceOp::Min | ReduceOp::Max => 0.0,
                _ => expected.wide().abs() + 1e-6,
            };
            let (found, expected) = (found.wide(), expected.wide());
            let same = found == expected || (found - expected).abs() <= T::ERROR * magnitude;
            // A product of half types may leave their range in one order and not in another.
            let outside = |value: f64| !value.is_finite() || value.abs() < 1e-4;
            let is_half = T::ERROR > 1e-3;
            let may_leave = op == ReduceOp::Product && is_half;
            let any = may_leave && (outside(found) || outside(expected));
            assert!(same || any, "{op} of {}: {found} {expected}", T::DTYPE);
        }
        same_on_all(group, &values);
    }
}

/// Demands the same bits on all ranks.
fn same_on_all<T: Element>(group: &ProcessGroup, values: &[T]) {
    let all = group.all_gather(values.to_vec()).wait().unwrap();
    for other in all {
        let (own, other): (&[u8], &[u8]) =
            (bytemuck::cast_slice(values), bytemuck::cast_slice(&other));
        assert!(own == other, "the same bits on all ranks");
    }
}

fn check_types(group: &ProcessGroup) {
    for length in [0, 1, 67, 1003] {
        check::<f32>(group, length);
        check::<f64>(group, length);
        check::<f16>(group, length);
        check::<bf16>(group, length);
        check::<i32>(group, length);
        check::<i64>(group, length);
        check::<u8>(group, length);
    }
}

#[test]
fn every_algorithm_gives_the_sum_on_every_rank() {
    for algorithm in Algorithm::ALL {
        let options = GroupOptions {
            algorithm: Some(algorithm),
            ..options()
        };
        for wire in WIRES {
            for size in [1, 2, 3, 4, 7] {
                on_all_ranks(wire, size, options, |group| {
                    check_types(&group);
                    group.destroy().unwrap();
                });
            }
        }
    }
}

#[test]
fn several_machines_share_the_work() {
    for algorithm in [None, Some(Algorithm::Hierarchical), Some(Algorithm::Ring)] {
        let options = GroupOptions {
            algorithm,
            ..options()
        };
        for hosts in [&[0, 0, 1, 1][..], &[0, 1, 0, 2, 1, 0, 3], &[0, 1, 2]] {
            in_parallel(on_hosts(hosts, options), |group| {
                check_types(&group);
                check::<f32>(&group, 100_003);
                let lists = group
                    .all_gather_varied(vec![1u8; group.rank()])
                    .wait()
                    .unwrap();
                assert!(
                    lists
                        .iter()
                        .enumerate()
                        .all(|(rank, list)| list.len() == rank)
                );
                group.destroy().unwrap();
            });
        }
    }
}

#[test]
fn ten_million_elements() {
    const LENGTH: usize = 10_000_000;
    let value = |rank: usize, index: usize| ((index * 7 + rank * 13) % 251) as f32;
    for wire in WIRES {
        for (size, algorithm) in [
            (2, None),
            (3, Some(Algorithm::Ring)),
            (4, Some(Algorithm::HalvingDoubling)),
            (2, Some(Algorithm::RecursiveDoubling)),
        ] {
            let options = GroupOptions {
                algorithm,
                ..options()
            };
            on_all_ranks(wire, size, options, |group| {
                let rank = group.rank();
                let mut values: Vec<f32> = (0..LENGTH).map(|index| value(rank, index)).collect();
                group
                    .all_reduce_in_place(&mut values, ReduceOp::Sum)
                    .unwrap();
                // Small integers: the sum is exact in any order.
                let sum = |index| (0..size).map(|rank| value(rank, index)).sum::<f32>();
                let wrong = (0..LENGTH).find(|index| values[*index] != sum(*index));
                assert_eq!(wrong, None, "{algorithm:?} over {wire:?}");
                group
                    .broadcast_in_place(&mut values[..LENGTH - 1], size - 1)
                    .unwrap();
                assert_eq!(values[LENGTH - 2], sum(LENGTH - 2));
            });
        }
    }
}

#[test]
fn rank_order_gives_the_same_bits_whatever_is_asked_for() {
    let expected = reduced::<f32>(ReduceOp::Sum, 4, 50_001);
    for algorithm in [
        None,
        Some(Algorithm::Ring),
        Some(Algorithm::RecursiveDoubling),
    ] {
        let options = GroupOptions {
            algorithm,
            order: ReductionOrder::Rank,
            ..options()
        };
        for wire in WIRES {
            let results = on_all_ranks(wire, 4, options, |group| {
                let mut values = samples::<f32>(group.rank(), 50_001);
                group
                    .all_reduce_in_place(&mut values, ReduceOp::Sum)
                    .unwrap();
                values
            });
            assert!(results.iter().all(|result| *result == expected), "{wire:?}");
        }
        let groups = on_hosts(&[0, 0, 1, 1], options);
        let results = in_parallel(groups, |group| {
            let values = samples::<f32>(group.rank(), 50_001);
            group.all_reduce(values, ReduceOp::Sum).wait().unwrap()
        });
        assert!(results.iter().all(|result| *result == expected));
    }
}
