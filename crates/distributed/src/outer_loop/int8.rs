//! A sum over ranks of which each number travels as a byte.
//!
//! Each rank owns an equal part of the numbers, and
//!
//! 1. rounds its contribution to 8 bits, in blocks of 256 with a scale each, and sends to every other rank
//!    the part that this one owns;
//! 2. adds up what has come for its own part, rounds that to 8 bits too, and hands it out.
//!
//! So every number is sent twice, as by a reduce-scatter and an all-gather, and all ranks decode the same
//! bytes. With `P` numbers and `W` ranks, each rank sends `2 P (W - 1) / W` numbers of `1 + 4 / 256` bytes;
//! as `f32` they would be 3.9 times as many. This is the exchange of 1-bit Adam (Tang et al. 2021) with
//! 8 bits, and scales for blocks as Dettmers 2016 has them.
//!
//! A number is wrong by at most half a step of its block each time it is rounded: by `m / 254` where the
//! largest of the block is `m`. What a rank has rounded away, of its own contribution in 1 and of its part of
//! the sum in 2, it adds to its next contribution (error feedback, Karimireddy et al. 2019), so that nothing
//! is lost but delayed.

use everburn_collectives::group::{CollectiveError, ProcessGroup};

/// How many numbers have a scale of their own: 1.6 % of bytes more, for steps that follow a layer's size.
pub(super) const BLOCK: usize = 256;

/// The largest magnitude of 8 bits, with a sign.
const LARGEST: f32 = 127.0;

/// The bytes of a block: its scale and its numbers.
const BLOCK_BYTES: usize = size_of::<f32>() + BLOCK;

/// What came of a sum.
pub(super) struct Sum {
    /// The sum of all ranks' contributions, the same bits on all.
    pub(super) values: Vec<f32>,
    /// What this rank has rounded away.
    pub(super) residual: Vec<f32>,
    /// How many bytes this rank handed to collectives.
    pub(super) bytes: u64,
}

/// Adds up the contributions of all ranks; what all of them have rounded away together is what the result
/// lacks.
pub(super) fn sum(contribution: &[f32], group: &ProcessGroup) -> Result<Sum, CollectiveError> {
    let (rank, ranks) = (group.rank(), group.world_size());
    let length = contribution.len();
    let part = length.div_ceil(BLOCK).div_ceil(ranks) * BLOCK;
    let part_of = |rank: usize| (rank * part).min(length)..((rank + 1) * part).min(length);

    let mut residual = contribution.to_vec();
    let lists = (0..ranks).map(|owner| {
        let range = part_of(owner);
        let encoded = encode(&contribution[range.clone()]);
        subtract(&encoded, &mut residual[range]);
        encoded
    });
    let lists = lists.collect::<Vec<_>>();
    let mut bytes = lists.iter().map(Vec::len).sum::<usize>();
    let parts = group.all_to_all(lists).wait()?;

    let own = part_of(rank);
    let mut of_all = vec![0.0; own.len()];
    for encoded in &parts {
        add(encoded, &mut of_all);
    }
    let encoded = encode(&of_all);
    bytes += encoded.len();
    subtract(&encoded, &mut of_all);
    for (residual, error) in residual[own].iter_mut().zip(of_all) {
        *residual += error;
    }
    let mut values = vec![0.0; length];
    for (owner, encoded) in group.all_gather_varied(encoded).wait()?.iter().enumerate() {
        add(encoded, &mut values[part_of(owner)]);
    }
    Ok(Sum {
        values,
        residual,
        bytes: bytes as u64,
    })
}

/// Blocks of a scale and 8-bit numbers. A block with a number that is not finite becomes one of NaN, so that
/// a broken contribution breaks the sum.
fn encode(values: &[f32]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(values.len().div_ceil(BLOCK) * BLOCK_BYTES);
    for block in values.chunks(BLOCK) {
        let scale = scale_of(block);
        bytes.extend(scale.to_le_bytes());
        if scale == 0.0 || !scale.is_finite() {
            bytes.extend(std::iter::repeat_n(1, block.len()));
            continue;
        }
        let inverse = 1.0 / scale;
        let round = |value: &f32| (value * inverse).round().clamp(-LARGEST, LARGEST) as i8 as u8;
        bytes.extend(block.iter().map(round));
    }
    bytes
}

/// The step of a block; 0 where all is so small that its inverse could not be had.
fn scale_of(block: &[f32]) -> f32 {
    let mut largest = 0.0_f32;
    for value in block {
        if !value.is_finite() {
            return f32::NAN;
        }
        largest = largest.max(value.abs());
    }
    let scale = largest / LARGEST;
    match scale.is_normal() && (1.0 / scale).is_finite() {
        true => scale,
        false => 0.0,
    }
}

/// Adds what `bytes` stand for.
fn add(bytes: &[u8], values: &mut [f32]) {
    decode(bytes, values, |value, decoded| *value += decoded);
}

/// Leaves of `values` what `bytes` lack.
fn subtract(bytes: &[u8], values: &mut [f32]) {
    decode(bytes, values, |value, decoded| *value -= decoded);
}

fn decode(bytes: &[u8], values: &mut [f32], take: impl Fn(&mut f32, f32)) {
    for (block, values) in bytes.chunks(BLOCK_BYTES).zip(values.chunks_mut(BLOCK)) {
        let Some((scale, numbers)) = block.split_first_chunk() else {
            continue;
        };
        let scale = f32::from_le_bytes(*scale);
        for (value, number) in values.iter_mut().zip(numbers) {
            take(value, scale * f32::from(*number as i8));
        }
    }
}

#[cfg(test)]
mod tests {
    use everburn_collectives::group::GroupOptions;

    use super::*;

    /// Of very different magnitudes from block to block.
    fn contribution(rank: usize, length: usize) -> Vec<f32> {
        let value = |index: usize| {
            let magnitude = 10f32.powi((index / BLOCK % 5) as i32 - 2);
            magnitude * ((index * 7 + rank * 13) as f32).sin()
        };
        (0..length).map(value).collect()
    }

    fn over_ranks<T: Send>(ranks: usize, run: impl Fn(ProcessGroup) -> T + Sync) -> Vec<T> {
        let groups = ProcessGroup::over_threads(ranks, GroupOptions::default());
        let run = &run;
        std::thread::scope(|scope| {
            let ranks = groups
                .into_iter()
                .map(|group| scope.spawn(move || run(group)));
            let ranks = ranks.collect::<Vec<_>>();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    #[test]
    fn a_sum_is_the_same_on_all_ranks_and_wrong_by_no_more_than_its_steps() {
        for (ranks, length) in [
            (1, 1),
            (2, 1000),
            (3, 255),
            (4, 5 * BLOCK),
            (7, 3000),
            (3, 0),
        ] {
            let results = over_ranks(ranks, |group| {
                let own = contribution(group.rank(), length);
                sum(&own, &group).unwrap()
            });
            let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            for result in &results {
                assert_eq!(bits(&result.values), bits(&results[0].values));
            }
            let all = (0..ranks)
                .map(|rank| contribution(rank, length))
                .collect::<Vec<_>>();
            let exact = |index: usize| all.iter().map(|own| f64::from(own[index])).sum::<f64>();
            for index in 0..length {
                let block = index / BLOCK * BLOCK..(index / BLOCK * BLOCK + BLOCK).min(length);
                let largest = |values: &dyn Fn(usize) -> f64| {
                    block.clone().map(|at| values(at).abs()).fold(0.0, f64::max)
                };
                let steps = all
                    .iter()
                    .map(|own| largest(&|at| f64::from(own[at])))
                    .chain([largest(&exact)]);
                // The sum that is rounded is not the exact one: it may have another largest number.
                let bound = 1.02 * steps.map(|largest| largest / 254.0).sum::<f64>();
                let found = f64::from(results[0].values[index]);
                let error = (found - exact(index)).abs();
                assert!(
                    error <= bound,
                    "{index} of {length}: {error:e} above {bound:e}"
                );
                // Nothing is lost: what the sum lacks, the ranks have kept.
                let kept = results
                    .iter()
                    .map(|result| f64::from(result.residual[index]));
                let lacking = exact(index) - found - kept.sum::<f64>();
                assert!(
                    lacking.abs() <= 1e-5 * (1.0 + exact(index).abs()),
                    "{lacking:e}"
                );
            }
        }
    }

    #[test]
    fn bytes_are_about_a_quarter() {
        let length = 100 * BLOCK;
        let results = over_ranks(4, |group| {
            let own = contribution(group.rank(), length);
            sum(&own, &group).unwrap().bytes
        });
        // A contribution and a part of the sum.
        let expected = (100 * BLOCK_BYTES + 25 * BLOCK_BYTES) as u64;
        assert_eq!(results, [expected; 4]);
        assert!(expected * 3 < 4 * length as u64);
    }

    #[test]
    fn what_is_no_number_breaks_its_block_on_all_ranks() {
        for broken in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let results = over_ranks(2, |group| {
                let mut own = contribution(group.rank(), 2 * BLOCK);
                if group.rank() == 1 {
                    own[BLOCK + 3] = broken;
                }
                sum(&own, &group).unwrap().values
            });
            for values in results {
                assert!(values[..BLOCK].iter().all(|value| value.is_finite()));
                assert!(values[BLOCK..].iter().all(|value| value.is_nan()));
            }
        }
    }

    #[test]
    fn numbers_too_small_for_a_scale_wait_in_the_residual() {
        let results = over_ranks(2, |group| {
            let own = vec![f32::MIN_POSITIVE; 3];
            sum(&own, &group).unwrap()
        });
        for result in results {
            assert_eq!(result.values, [0.0; 3]);
            assert_eq!(result.residual[..1], [f32::MIN_POSITIVE]);
        }
    }
}
