//! Tests of `quantized`.

use super::*;
use crate::test_ranks::on_ranks;

/// Of very different magnitudes from block to block.
fn contribution(rank: usize, length: usize) -> Vec<f32> {
    let value = |index: usize| {
        let magnitude = 10f32.powi((index / BLOCK % 5) as i32 - 2);
        magnitude * ((index * 7 + rank * 13) as f32).sin()
    };
    (0..length).map(value).collect()
}

const ALL: [Bits; 3] = [Bits::Eight, Bits::Four, Bits::Two];

#[test]
fn a_sum_is_the_same_on_all_ranks_and_wrong_by_no_more_than_its_steps() {
    let sizes = [
        (1, 1),
        (2, 1000),
        (3, 255),
        (4, 5 * BLOCK),
        (7, 3000),
        (3, 0),
    ];
    for (bits, (ranks, length)) in ALL.into_iter().flat_map(|bits| sizes.map(|it| (bits, it))) {
        let results = on_ranks(ranks, |group| {
            let own = contribution(group.rank(), length);
            sum(&own, bits, &group).unwrap()
        });
        let as_bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        for result in &results {
            assert_eq!(as_bits(&result.values), as_bits(&results[0].values));
        }
        let all = (0..ranks)
            .map(|rank| contribution(rank, length))
            .collect::<Vec<_>>();
        let exact = |index: usize| all.iter().map(|own| f64::from(own[index])).sum::<f64>();
        for index in 0..length {
            let found = f64::from(results[0].values[index]);
            // Nothing is lost: what the sum lacks, the ranks have kept.
            let kept = results
                .iter()
                .map(|result| f64::from(result.residual[index]));
            let lacking = exact(index) - found - kept.sum::<f64>();
            assert!(
                lacking.abs() <= 1e-5 * (1.0 + exact(index).abs()),
                "{lacking:e}"
            );
            if bits == Bits::Two {
                continue;
            }
            let block = index / BLOCK * BLOCK..(index / BLOCK * BLOCK + BLOCK).min(length);
            let largest = |values: &dyn Fn(usize) -> f64| {
                block.clone().map(|at| values(at).abs()).fold(0.0, f64::max)
            };
            let steps = all
                .iter()
                .map(|own| largest(&|at| f64::from(own[at])))
                .chain([largest(&exact)]);
            let half_a_step = |largest| largest / f64::from(2.0 * bits.largest());
            // The sum that is rounded is not the exact one: it may have another largest number.
            let bound = 1.3 * steps.map(half_a_step).sum::<f64>();
            let error = (found - exact(index)).abs();
            assert!(
                error <= bound,
                "{bits:?}, {index} of {length}: {error:e} above {bound:e}"
            );
        }
    }
}

#[test]
fn what_is_rounded_away_is_shorter_than_what_was_given() {
    let squares = |values: &[f32]| values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>();
    // One number far above the others, about equal ones, all zero but one.
    let outlier = (0..BLOCK).map(|at| if at == 7 { 100.0 } else { (at as f32).cos() });
    let lonely = (0..BLOCK).map(|at| if at == 200 { -3.0 } else { 0.0 });
    let blocks = [
        outlier.collect(),
        contribution(0, BLOCK),
        lonely.collect::<Vec<f32>>(),
    ];
    for (bits, block) in ALL
        .into_iter()
        .flat_map(|bits| blocks.iter().map(move |it| (bits, it)))
    {
        let mut left = block.clone();
        subtract(&encode(block, bits), bits, &mut left);
        let (left, given) = (squares(&left), squares(block));
        assert!(left < given, "{bits:?}: {left} of {given}");
    }
    // About an eighth of the power of numbers that are spread evenly.
    let mut left = contribution(0, BLOCK);
    subtract(&encode(&left.clone(), Bits::Two), Bits::Two, &mut left);
    assert!(squares(&left) < 0.15 * squares(&contribution(0, BLOCK)));
}

#[test]
fn what_two_bits_have_rounded_away_comes_with_later_sums() {
    let length = 3 * BLOCK;
    let rounds = 200;
    let results = on_ranks(2, |group| {
        let own = contribution(group.rank(), length);
        let mut owed = vec![0.0; length];
        let mut total = vec![0.0; length];
        for _ in 0..rounds {
            let given = own.iter().zip(&owed).map(|(own, owed)| own + owed);
            let sum = sum(&given.collect::<Vec<_>>(), Bits::Two, &group).unwrap();
            owed = sum.residual;
            total
                .iter_mut()
                .zip(&sum.values)
                .for_each(|(total, value)| *total += value);
        }
        total
    });
    let [first, second] = [contribution(0, length), contribution(1, length)];
    for block in 0..3 {
        let range = block * BLOCK..(block + 1) * BLOCK;
        let largest = range
            .clone()
            .map(|at| (first[at] + second[at]).abs())
            .fold(0.0, f32::max);
        for at in range {
            let mean = results[0][at] / rounds as f32;
            let error = (mean - first[at] - second[at]).abs();
            assert!(error < 0.03 * largest, "{at}: {error:e} of {largest:e}");
        }
    }
}

#[test]
fn bytes_are_about_a_quarter_an_eighth_and_a_fifteenth() {
    let length = 100 * BLOCK;
    for (bits, block_bytes) in [(Bits::Eight, 260), (Bits::Four, 132), (Bits::Two, 68)] {
        let results = on_ranks(4, |group| {
            let own = contribution(group.rank(), length);
            sum(&own, bits, &group).unwrap().bytes
        });
        // A contribution and a part of the sum.
        assert_eq!(results, [(100 + 25) * block_bytes; 4], "{bits:?}");
    }
}

#[test]
fn what_is_no_number_breaks_its_block_on_all_ranks() {
    let broken = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
    for (bits, broken) in ALL.into_iter().flat_map(|bits| broken.map(|it| (bits, it))) {
        let results = on_ranks(2, |group| {
            let mut own = contribution(group.rank(), 2 * BLOCK);
            if group.rank() == 1 {
                own[BLOCK + 3] = broken;
            }
            sum(&own, bits, &group).unwrap().values
        });
        for values in results {
            assert!(values[..BLOCK].iter().all(|value| value.is_finite()));
            assert!(values[BLOCK..].iter().all(|value| value.is_nan()));
        }
    }
}

#[test]
fn numbers_too_small_for_a_scale_wait_in_the_residual() {
    for bits in ALL {
        let results = on_ranks(2, |group| {
            let own = vec![f32::MIN_POSITIVE; 3];
            sum(&own, bits, &group).unwrap()
        });
        for result in results {
            assert_eq!(result.values, [0.0; 3]);
            assert_eq!(result.residual[..1], [f32::MIN_POSITIVE]);
        }
    }
}
