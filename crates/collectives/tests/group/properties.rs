//! For any sizes, lengths and values, all_reduce is the plain sum in rank order.

use everburn_collectives::group::{Algorithm, GroupOptions, ReduceOp};
use half::bf16;
use proptest::prelude::*;

use crate::harness::{Wire, on_all_ranks, options};

/// The same number of elements for each rank, of any bits: infinities, NaN and subnormals too.
fn contributions() -> impl Strategy<Value = Vec<Vec<f32>>> {
    (1usize..6, 0usize..70).prop_flat_map(|(size, length)| {
        prop::collection::vec(prop::collection::vec(prop::num::f32::ANY, length), size)
    })
}

/// Equal to the bit, but any NaN for any NaN: which payload an addition keeps is the processor's
/// choice and may differ between our loop and the test's.
fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..Default::default() })]

    #[test]
    fn all_reduce_is_the_sum_in_rank_order(values in contributions(), direct: bool, tcp: bool) {
        let algorithm = Some(if direct { Algorithm::Direct } else { Algorithm::Flat });
        let options = GroupOptions { algorithm, ..options() };
        let wire = if tcp { Wire::Tcp } else { Wire::Threads };
        let results = on_all_ranks(wire, values.len(), options, |group| {
            let mine = values[group.rank()].clone();
            let halves: Vec<bf16> = mine.iter().map(|x| bf16::from_f32(*x)).collect();
            let sum = group.all_reduce(mine, ReduceOp::Sum);
            let halves = group.all_reduce(halves, ReduceOp::Sum).wait().unwrap();
            (sum.wait().unwrap(), halves)
        });
        for index in 0..values[0].len() {
            let mut sum = values[0][index];
            let mut wide = bf16::from_f32(values[0][index]).to_f32();
            for rank in &values[1..] {
                sum += rank[index];
                wide += bf16::from_f32(rank[index]).to_f32();
            }
            let half = bf16::from_f32(wide);
            for (result, halves) in &results {
                prop_assert!(same(result[index], sum));
                prop_assert!(same(halves[index].to_f32(), half.to_f32()));
            }
        }
        let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        for (result, _) in &results {
            prop_assert_eq!(bits(result), bits(&results[0].0), "the same bits on all ranks");
        }
    }
}
