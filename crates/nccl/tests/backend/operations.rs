//! Results, at all sizes and types.

use everburn_collectives::group::{CollectiveError, ReduceOp};
use everburn_nccl_fake::{FakeCluster, Fault, Number};
use half::{bf16, f16};
use proptest::prelude::*;

use crate::harness::{SIZES, error};

/// Numbers of one rank: small and whole, so that sums are exact in every type.
fn numbers<T: Number>(rank: usize, len: usize) -> Vec<T> {
    (0..len)
        .map(|index| T::narrow(((rank + index) % 5) as f64))
        .collect()
}

fn wide<T: Number>(numbers: &[T]) -> Vec<f64> {
    numbers.iter().map(|number| number.wide()).collect()
}

fn sums(size: usize, len: usize) -> Vec<f64> {
    let at = |index| (0..size).map(|rank| ((rank + index) % 5) as f64).sum();
    (0..len).map(at).collect()
}

fn every_operation<T: Number>(size: usize, len: usize) {
    let cluster = FakeCluster::new(size);
    let results = cluster.on_all_ranks(|nccl, rank| {
        let own = || cluster.allocate::<T>(rank, &numbers(rank, len));
        let room = |len: usize| cluster.allocate::<T>(rank, &vec![T::narrow(9.0); len]);

        let reduced = own();
        nccl.all_reduce(&reduced, ReduceOp::Sum)?.wait()?;
        assert_eq!(wide(&cluster.read::<T>(&reduced)), sums(size, len));

        let greatest = own();
        nccl.all_reduce(&greatest, ReduceOp::Max)?.wait()?;
        let expected = (0..len).map(|index| {
            (0..size)
                .map(|rank| ((rank + index) % 5) as f64)
                .fold(0.0, f64::max)
        });
        assert_eq!(
            wide(&cluster.read::<T>(&greatest)),
            expected.collect::<Vec<_>>()
        );

        let gathered = room(len * size);
        nccl.all_gather(&own(), &gathered)?.wait()?;
        let all: Vec<T> = (0..size).flat_map(|rank| numbers(rank, len)).collect();
        assert_eq!(wide(&cluster.read::<T>(&gathered)), wide(&all));

        let part = room(len);
        let whole = cluster.allocate::<T>(rank, &numbers(rank, len * size));
        nccl.reduce_scatter(&whole, &part, ReduceOp::Sum)?.wait()?;
        let expected = &sums(size, len * size)[rank * len..(rank + 1) * len];
        assert_eq!(wide(&cluster.read::<T>(&part)), expected);

        nccl.check()
    });
    results.into_iter().for_each(|result| result.unwrap());
}

#[test]
fn every_collective_has_its_result_at_every_size_and_length() {
    for size in SIZES {
        for len in [0, 1, 7, 1000] {
            every_operation::<f32>(size, len);
        }
    }
}

#[test]
fn every_type_of_number_travels() {
    every_operation::<f16>(2, 9);
    every_operation::<bf16>(2, 9);
    every_operation::<f64>(2, 9);
    every_operation::<i32>(4, 9);
    every_operation::<i64>(4, 9);
    every_operation::<u8>(4, 9);
}

#[test]
fn in_place_a_ranks_part_lies_in_the_whole() {
    let cluster = FakeCluster::new(4);
    let results = cluster.on_all_ranks(|nccl, rank| {
        let whole = cluster.allocate(rank, &[rank as f32; 8]);
        let own = whole.slice(2 * rank..2 * rank + 2).unwrap();
        nccl.reduce_scatter(&whole, &own, ReduceOp::Sum)?.wait()?;
        nccl.all_gather(&own, &whole)?.wait()?;
        Ok::<_, CollectiveError>(cluster.read::<f32>(&whole))
    });
    for whole in results {
        assert_eq!(whole.unwrap(), [6.0; 8]);
    }
}

#[test]
fn what_can_never_be_is_refused_and_the_group_stays_usable() {
    let cluster = FakeCluster::new(2);
    let results = cluster.on_all_ranks(|nccl, rank| {
        let counts = cluster.allocate(rank, &[1i32, 2, 3]);
        let refused = error(nccl.all_reduce(&counts, ReduceOp::Mean));
        assert_eq!(
            refused.to_string(),
            format!(
                "invalid call all_reduce(i32[3], mean) on rank {rank}: mean does not exist for i32; \
                 sum and divide, or convert first; check the arguments of this call: nothing was sent"
            )
        );
        nccl.all_reduce(&counts, ReduceOp::Sum)?.wait()?;
        Ok::<_, CollectiveError>(cluster.read::<i32>(&counts))
    });
    for counts in results {
        assert_eq!(counts.unwrap(), [2, 4, 6]);
    }
}

#[test]
fn a_launch_that_connects_first_is_waited_for() {
    let cluster = FakeCluster::new(2);
    cluster.inject(1, Fault::LaunchTakes(Some(20)));
    let results = cluster.on_all_ranks(|nccl, rank| {
        let buffer = cluster.allocate(rank, &[1f32]);
        for _ in 0..3 {
            nccl.all_reduce(&buffer, ReduceOp::Sum)?.wait()?;
        }
        Ok::<_, CollectiveError>(cluster.read::<f32>(&buffer))
    });
    for buffer in results {
        assert_eq!(buffer.unwrap(), [8.0]);
    }
}

#[test]
fn sub_groups_beside_the_whole_keep_their_exchanges_apart() {
    let cluster = FakeCluster::new(4);
    let results = cluster.on_all_ranks(|world, rank| {
        let mut own = None;
        for first in 0..2 {
            let made = world.process_group().subgroup(&[first, first + 2])?;
            own = own.or(made);
        }
        let pair = cluster.connect(rank, &own.expect("each rank is in one pair"))?;
        let (a, b) = (
            cluster.allocate(rank, &[rank as i64]),
            cluster.allocate(rank, &[1i64]),
        );
        let in_pair = pair.all_reduce(&a, ReduceOp::Sum)?;
        world.all_reduce(&b, ReduceOp::Sum)?.wait()?;
        in_pair.wait()?;
        Ok::<_, CollectiveError>((cluster.read::<i64>(&a)[0], cluster.read::<i64>(&b)[0]))
    });
    let sums: Vec<_> = results.into_iter().map(Result::unwrap).collect();
    assert_eq!(sums, [(2, 4), (4, 4), (2, 4), (4, 4)]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn buckets_of_any_length_that_are_under_way_at_once_have_their_sums_and_means(
        size in 1usize..5,
        lengths in prop::collection::vec(0usize..300, 1..12),
    ) {
        let cluster = FakeCluster::new(size);
        let results = cluster.on_all_ranks(|nccl, rank| {
            let buckets: Vec<_> = lengths
                .iter()
                .map(|len| cluster.allocate(rank, &numbers::<f32>(rank, *len)))
                .collect();
            for (bucket, op) in buckets.iter().zip([ReduceOp::Sum, ReduceOp::Mean].iter().cycle()) {
                let _ = nccl.all_reduce(bucket, *op)?;
            }
            nccl.synchronize()?;
            let read = buckets.iter().map(|bucket| wide(&cluster.read::<f32>(bucket)));
            Ok::<_, CollectiveError>(read.collect::<Vec<_>>())
        });
        let expected: Vec<Vec<f64>> = lengths
            .iter()
            .zip([1, size].iter().cycle())
            .map(|(len, parts)| {
                let means = sums(size, *len).into_iter().map(|sum| sum / *parts as f64);
                means.map(|mean| f32::narrow(mean).wide()).collect()
            })
            .collect();
        for result in results {
            prop_assert_eq!(result.unwrap(), expected.clone());
        }
    }
}
