mod reference;

use half::{bf16, f16};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use self::reference::Reference;
use super::*;

/// What `ranks` ranks contribute. Every third number is an edge of the type, so that edges of
/// several ranks meet. Rank r begins at element r, so that no two are aligned alike.
fn contributions<T: Reference>(
    ranks: usize,
    length: usize,
    mut numbers: impl FnMut() -> u64,
) -> Vec<Vec<T>> {
    let mut number = || match numbers() {
        bits if bits % 3 == 0 => T::from_bits(T::EDGES[(bits >> 32) as usize % T::EDGES.len()]),
        bits => T::from_bits(bits.rotate_left(17)),
    };
    (0..ranks)
        .map(|rank| (0..rank + length).map(|_| number()).collect())
        .collect()
}

#[track_caller]
fn assert_same<T: Reference>(found: &[T], expected: &[T], what: &str) {
    let differs = found
        .iter()
        .zip(expected)
        .position(|(a, b)| a.bits() != b.bits());
    assert_eq!(found.len(), expected.len());
    if let Some(at) = differs {
        let (found, expected) = (found[at].bits(), expected[at].bits());
        panic!(
            "{}, {what}, element {at}: {found:#x} instead of {expected:#x}",
            T::DTYPE
        );
    }
}

/// Compares every way to reduce these contributions with the reference.
fn check<T: Reference>(lists: &[Vec<T>]) {
    let ranks = lists.len();
    let length = lists[0].len();
    let all: Vec<&[T]> = lists
        .iter()
        .enumerate()
        .map(|(rank, list)| &list[rank..])
        .collect();
    for op in ReduceOp::ALL.into_iter().filter(|op| op.supports(T::DTYPE)) {
        let element = |at: usize| all.iter().map(|list| list[at]).collect::<Vec<_>>();
        let expected: Vec<T> = (0..length).map(|at| T::reduce(op, &element(at))).collect();
        let mut result = all[0].to_vec();
        T::reduce_in_rank_order(op, &all, &mut result);
        assert_same(&result, &expected, &format!("{op}"));
        for set in InstructionSet::all() {
            let contributions = &all[..];
            let result = &mut result[..];
            result.fill(T::zeroed());
            run_combining!(set, op, mean: Mean { ranks }, Reduce { contributions, result });
            assert_same(result, &expected, &format!("{op} by {set:?}"));
        }
        for own_rank in 0..ranks {
            let mut others = all.clone();
            let contribution = others.remove(own_rank);
            let mut own = contribution.to_vec();
            T::reduce_in_place_in_rank_order(op, &mut own, own_rank, &others);
            assert_same(&own, &expected, &format!("{op} in place of {own_rank}"));
            for set in InstructionSet::all() {
                own.copy_from_slice(contribution);
                let (own, others) = (&mut own[..], &others[..]);
                let mean = Mean { ranks };
                run_combining!(set, op, mean: mean, ReduceInPlace { own, own_rank, others });
                assert_same(
                    own,
                    &expected,
                    &format!("{op} in place of {own_rank} by {set:?}"),
                );
            }
        }
        check_accumulation(op, all[0], all[ranks - 1]);
    }
    check_division(all[0], ranks);
}

fn check_accumulation<T: Reference>(op: ReduceOp, first: &[T], second: &[T]) {
    let kind = if op == ReduceOp::Mean {
        ReduceOp::Sum
    } else {
        op
    };
    let pairs = first.iter().zip(second);
    let expected: Vec<T> = pairs.map(|(a, b)| T::reduce(kind, &[*a, *b])).collect();
    let mut into = first.to_vec();
    T::accumulate(op, &mut into, second);
    assert_same(&into, &expected, &format!("{op} accumulated"));
    into.copy_from_slice(second);
    accumulate_before(op, &mut into, first);
    assert_same(&into, &expected, &format!("{op} accumulated before"));
    for set in InstructionSet::all() {
        into.copy_from_slice(first);
        let (into, from) = (&mut into[..], second);
        run_combining!(set, op, mean: Sum, Accumulate { into, from });
        assert_same(into, &expected, &format!("{op} accumulated by {set:?}"));
    }
}

fn check_division<T: Reference>(sums: &[T], ranks: usize) {
    if !ReduceOp::Mean.supports(T::DTYPE) {
        return;
    }
    // To add a negative zero changes nothing.
    let mut all = vec![T::from_bits(T::EDGES[8]); ranks];
    let mut mean = |sum: &T| {
        all[0] = *sum;
        T::reduce(ReduceOp::Mean, &all)
    };
    let expected: Vec<T> = sums.iter().map(&mut mean).collect();
    let mut values = sums.to_vec();
    T::finish_mean(&mut values, ranks);
    assert_same(&values, &expected, "divided");
    for set in InstructionSet::all() {
        values.copy_from_slice(sums);
        let (combination, values) = (Mean { ranks }, &mut values[..]);
        set.run(Finish {
            combination,
            values,
        });
        assert_same(values, &expected, &format!("divided by {set:?}"));
    }
}

fn check_random<T: Reference>() {
    // Several blocks and an odd remainder, for each number of ranks that has a loop of its own.
    for ranks in 1..=7 {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        // Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
        let splitmix = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ (mixed >> 31)
        };
        check(&contributions::<T>(ranks, 2083, splitmix));
    }
    let shape = (1..8_usize, 0..200_usize).prop_flat_map(|(ranks, length)| {
        (Just((ranks, length)), numbers(ranks * (ranks + length)))
    });
    TestRunner::new(Config::with_cases(48))
        .run(&shape, |((ranks, length), numbers)| {
            let mut numbers = numbers.into_iter();
            check(&contributions::<T>(ranks, length, || {
                numbers.next().unwrap()
            }));
            Ok(())
        })
        .unwrap();
}

fn numbers(count: usize) -> impl Strategy<Value = Vec<u64>> {
    proptest::collection::vec(any::<u64>(), count)
}

macro_rules! every_type {
    ($($name:ident: $type:ty),*) => {$(
        #[test]
        fn $name() {
            check_random::<$type>();
        }
    )*};
}

every_type!(
    f32_is_reduced_as_by_the_reference: f32,
    f64_is_reduced_as_by_the_reference: f64,
    f16_is_reduced_as_by_the_reference: f16,
    bf16_is_reduced_as_by_the_reference: bf16,
    i32_is_reduced_as_by_the_reference: i32,
    i64_is_reduced_as_by_the_reference: i64,
    u8_is_reduced_as_by_the_reference: u8
);

#[test]
fn of_no_contributions_nothing_is_made() {
    for value in [f16::ONE, f16::NAN] {
        let mut result = [value];
        reduce_in_rank_order(ReduceOp::Sum, &[], &mut result);
        assert_eq!(result[0].to_bits(), value.to_bits());
    }
}
