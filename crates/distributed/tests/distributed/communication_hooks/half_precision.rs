//! The hooks that round to 16 bits.

use super::ranks::{Bucket, Reduced, WORLD_SIZES, bits, random, reduce_all, sum_over};

/// Reduces `values(rank, step)` for this many steps.
fn reduce_steps(
    world_size: usize,
    hook: &str,
    steps: usize,
    values: impl Fn(usize, usize) -> Vec<f32> + Sync,
) -> Vec<Reduced> {
    reduce_all(world_size, hook, |rank| {
        let bucket = |step| {
            let values = values(rank, step);
            Bucket::of_one("weight", &[values.len()], values)
        };
        (0..steps).map(bucket).collect()
    })
}

fn scaled(scale: f32, values: &[f32]) -> Vec<f32> {
    values.iter().map(|x| x * scale).collect()
}

/// Asserts that `found` is within the rounding of each contribution and of the sum.
fn assert_rounded(contributions: &[Vec<f32>], found: &[f32], half_unit: f64, least: f64) {
    let expected = sum_over(contributions.iter().map(Vec::as_slice));
    assert_eq!(expected.len(), found.len());
    for (i, (expected, found)) in expected.iter().zip(found).enumerate() {
        let magnitude: f64 = contributions.iter().map(|x| f64::from(x[i].abs())).sum();
        let bound = 2.02 * half_unit * magnitude + least;
        let difference = (expected - f64::from(*found)).abs();
        assert!(
            difference <= bound,
            "{i}: {found} for {expected}, bound {bound}"
        );
    }
}

#[test]
fn sums_are_within_the_rounding_of_the_type() {
    for world_size in WORLD_SIZES {
        for (hook, half_unit) in [("fp16", 2f64.powi(-11)), ("bf16", 2f64.powi(-8))] {
            for scale in [1.0, 1e-15, 1e12] {
                let values = |rank, step| scaled(scale, &random(&[rank, step], 4097));
                let reduced = reduce_steps(world_size, hook, 4, values);
                for (step, reduced) in reduced.iter().enumerate() {
                    let inputs: Vec<_> = (0..world_size).map(|rank| values(rank, step)).collect();
                    // Of the largest, what the subnormal numbers of f16 resolve.
                    let least = f64::from(scale) * 2f64.powi(-29);
                    assert_rounded(&inputs, &reduced.values, half_unit, least);
                }
                let bytes: Vec<u64> = reduced.iter().map(|reduced| reduced.bytes / 4097).collect();
                let expected = if hook == "fp16" { [4, 2, 2, 2] } else { [2; 4] };
                assert_eq!(bytes, expected);
            }
        }
    }
}

#[test]
fn fp16_sums_again_what_has_left_its_range() {
    // In powers of two, so that nothing is rounded and the sums of f32 are exact.
    let growth = [
        1.0,
        1.0,
        2f32.powi(20),
        2f32.powi(21),
        2f32.powi(-60),
        2f32.powi(-61),
    ];
    for world_size in WORLD_SIZES {
        let values = |rank: usize, step: usize| {
            let numbers = (0..50).map(|i| (i + rank) as f32 * growth[step]);
            numbers.collect::<Vec<f32>>()
        };
        let reduced = reduce_steps(world_size, "fp16", growth.len(), values);
        for (step, reduced) in reduced.iter().enumerate() {
            let inputs: Vec<_> = (0..world_size).map(|rank| values(rank, step)).collect();
            let expected = sum_over(inputs.iter().map(Vec::as_slice));
            let found: Vec<f64> = reduced.values.iter().map(|x| f64::from(*x)).collect();
            assert_eq!(found, expected, "step {step}");
        }
        // Found, used, too large, used, too small, used.
        let bytes: Vec<u64> = reduced.iter().map(|reduced| reduced.bytes / 50).collect();
        assert_eq!(bytes, [4, 2, 6, 2, 6, 2]);
    }
}

#[test]
fn overflows_that_cancel_leave_the_true_sum() {
    let huge = f32::MAX;
    for hook in ["fp16", "bf16"] {
        let reduced = reduce_steps(2, hook, 3, |rank, step| {
            let large = if step == 0 { 1.0 } else { huge };
            vec![if rank == 0 { large } else { -large }, 0.25, 1.0]
        });
        for reduced in &reduced {
            assert_eq!(reduced.values, [0.0, 0.5, 2.0], "{hook}");
        }
    }
}

#[test]
fn what_is_not_finite_stays_where_it_is_and_what_it_is() {
    for hook in ["none", "fp16", "bf16"] {
        let reduced = reduce_steps(3, hook, 4, |rank, step| match (rank, step) {
            (1, 2) => vec![f32::NAN, f32::NEG_INFINITY, 1.5, 0.0],
            _ => vec![1.0, 2.0, 1.5, 4.0],
        });
        let expected = [f32::NAN, f32::NEG_INFINITY, 4.5, 8.0];
        assert_eq!(bits(&reduced[2].values), bits(&expected), "{hook}");
        // And nothing of it is left afterwards.
        for step in [1, 3] {
            assert_eq!(reduced[step].values, [3.0, 6.0, 4.5, 12.0], "{hook}");
        }
    }
}

#[test]
fn zeros_are_zeros_and_empty_buckets_are_empty() {
    for hook in ["fp16", "bf16"] {
        for reduced in reduce_steps(2, hook, 3, |_, _| vec![0.0; 9]) {
            assert_eq!(bits(&reduced.values), bits(&[0.0; 9]));
        }
        for reduced in reduce_steps(2, hook, 2, |_, _| Vec::new()) {
            assert!(reduced.values.is_empty());
            assert_eq!(reduced.bytes, 0);
        }
    }
}

#[test]
fn each_bucket_has_a_scale_of_its_own() {
    let buckets = |rank: usize| {
        let bucket = |i: usize| {
            let scale = [1e-10, 1e4][i % 2];
            let values = scaled(scale, &random(&[rank, i], 100));
            Bucket {
                index: i % 2,
                ..Bucket::of_one("weight", &[100], values)
            }
        };
        (0..6).map(bucket).collect::<Vec<_>>()
    };
    let reduced = reduce_all(2, "fp16", buckets);
    let bytes: Vec<u64> = reduced.iter().map(|reduced| reduced.bytes).collect();
    assert_eq!(bytes, [400, 400, 200, 200, 200, 200]);
}
