//! A sum over ranks of which each number travels as 8, 4 or 2 bits.
//!
//! Each rank owns an equal part of the numbers, and
//!
//! 1. rounds its contribution, in blocks of 256 with a scale each, and sends to every other rank the part that this one
//!    owns;
//! 2. adds up what has come for its own part, rounds that too, and hands it out.
//!
//! So every number is sent twice, as by a reduce-scatter and an all-gather, and all ranks decode the same
//! bytes. With `P` numbers and `W` ranks, each rank sends `2 P (W - 1) / W` numbers of `bits / 8 + 4 / 256` bytes;
//! as `f32` they would be 3.9, 7.8 or 15 times as many. This is the exchange of 1-bit Adam (Tang et al. 2021) with
//! more bits, and scales for blocks as Dettmers 2016 has them.
//!
//! With 8 and 4 bits a number is wrong by at most half a step of its block each time it is rounded: by `m / 254` or `m / 14`
//! where the largest of the block is `m`. With 2 bits a number becomes one of -3, -1, 1 and 3 half steps. The step is at
//! first that which suits a normal distribution best (Max 1960, table II); then the scale is fitted to the block by least
//! squares. So what is rounded away is always shorter than the block, as error feedback demands.
//!
//! What a rank has rounded away, of its own contribution in 1 and of its part of the sum in 2, it adds to its next
//! contribution (error feedback, Karimireddy et al. 2019), so that nothing is lost but delayed.

use everburn_collectives::group::{CollectiveError, ProcessGroup};

/// How many numbers have a scale of their own, so that steps follow a layer's size.
pub(super) const BLOCK: usize = 256;

/// The best step of four equally spaced levels for numbers of a normal distribution with a deviation of 1.
const STEP_OF_NORMAL: f32 = 0.9957;

/// How many bits a number has on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bits {
    Eight,
    Four,
    Two,
}

impl Bits {
    const fn count(self) -> usize {
        match self {
            Self::Eight => 8,
            Self::Four => 4,
            Self::Two => 2,
        }
    }

    /// How many bytes `numbers` have, without their scale.
    const fn bytes(self, numbers: usize) -> usize {
        (numbers * self.count()).div_ceil(8)
    }

    /// The bytes of a whole block: its scale and its numbers.
    const fn block_bytes(self) -> usize {
        size_of::<f32>() + self.bytes(BLOCK)
    }

    /// The largest magnitude, in units of the scale.
    const fn largest(self) -> f32 {
        match self {
            Self::Eight => 127.0,
            Self::Four => 7.0,
            Self::Two => 3.0,
        }
    }

    /// The code of a number, given in units of the scale.
    fn code(self, number: f32) -> u8 {
        match self {
            Self::Eight => number.round().clamp(-127.0, 127.0) as i8 as u8,
            Self::Four => (number.round().clamp(-7.0, 7.0) + 8.0) as u8,
            Self::Two => ((number / 2.0).floor().clamp(-2.0, 1.0) + 2.0) as u8,
        }
    }

    /// What a code stands for, in units of the scale.
    fn level(self, code: u8) -> f32 {
        match self {
            Self::Eight => f32::from(code as i8),
            Self::Four => f32::from(code) - 8.0,
            Self::Two => 2.0 * f32::from(code) - 3.0,
        }
    }

    /// The scale of a block; 0 where all is so small that its inverse could not be had.
    fn scale_of(self, block: &[f32]) -> f32 {
        if block.iter().any(|value| !value.is_finite()) {
            return f32::NAN;
        }
        let scale = match self {
            Self::Eight | Self::Four => {
                let largest = block
                    .iter()
                    .fold(0.0_f32, |largest, it| largest.max(it.abs()));
                largest / self.largest()
            }
            Self::Two => fitted_scale(block),
        };
        match scale.is_normal() && (1.0 / scale).is_finite() {
            true => scale,
            false => 0.0,
        }
    }
}

/// Half a step of two bits: that of a normal distribution, then least squares over the levels that the numbers get by it.
fn fitted_scale(block: &[f32]) -> f32 {
    let squares: f64 = block.iter().map(|value| f64::from(*value).powi(2)).sum();
    let deviation = (squares / block.len() as f64).sqrt() as f32;
    let first = deviation * STEP_OF_NORMAL / 2.0;
    if !first.is_normal() || !(1.0 / first).is_finite() {
        return 0.0;
    }
    let (mut products, mut lengths) = (0.0, 0.0);
    for value in block {
        let level = f64::from(Bits::Two.level(Bits::Two.code(value / first)));
        products += f64::from(*value) * level;
        lengths += level * level;
    }
    (products / lengths) as f32
}

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
pub(super) fn sum(
    contribution: &[f32],
    bits: Bits,
    group: &ProcessGroup,
) -> Result<Sum, CollectiveError> {
    let (rank, ranks) = (group.rank(), group.world_size());
    let length = contribution.len();
    let part = length.div_ceil(BLOCK).div_ceil(ranks) * BLOCK;
    let part_of = |rank: usize| (rank * part).min(length)..((rank + 1) * part).min(length);

    let mut residual = contribution.to_vec();
    let lists = (0..ranks).map(|owner| {
        let range = part_of(owner);
        let encoded = encode(&contribution[range.clone()], bits);
        subtract(&encoded, bits, &mut residual[range]);
        encoded
    });
    let lists = lists.collect::<Vec<_>>();
    let mut bytes = lists.iter().map(Vec::len).sum::<usize>();
    let parts = group.all_to_all(lists).wait()?;

    let own = part_of(rank);
    let mut of_all = vec![0.0; own.len()];
    for encoded in &parts {
        add(encoded, bits, &mut of_all);
    }
    let encoded = encode(&of_all, bits);
    bytes += encoded.len();
    subtract(&encoded, bits, &mut of_all);
    for (residual, error) in residual[own].iter_mut().zip(of_all) {
        *residual += error;
    }
    let mut values = vec![0.0; length];
    for (owner, encoded) in group.all_gather_varied(encoded).wait()?.iter().enumerate() {
        add(encoded, bits, &mut values[part_of(owner)]);
    }
    Ok(Sum {
        values,
        residual,
        bytes: bytes as u64,
    })
}

/// Blocks of a scale and codes, the first in the lowest bits of a byte. A block with a number that is not finite becomes
/// one of NaN, so that a broken contribution breaks the sum.
fn encode(values: &[f32], bits: Bits) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(values.len().div_ceil(BLOCK) * bits.block_bytes());
    let in_a_byte = 8 / bits.count();
    for block in values.chunks(BLOCK) {
        let scale = bits.scale_of(block);
        bytes.extend(scale.to_le_bytes());
        if scale == 0.0 || !scale.is_finite() {
            // A level that is not zero, which NaN needs.
            bytes.extend(std::iter::repeat_n(1, bits.bytes(block.len())));
            continue;
        }
        let inverse = 1.0 / scale;
        bytes.extend(block.chunks(in_a_byte).map(|numbers| {
            let codes = numbers.iter().zip((0..8).step_by(bits.count()));
            codes.fold(0, |byte, (number, shift)| {
                byte | bits.code(number * inverse) << shift
            })
        }));
    }
    bytes
}

fn add(bytes: &[u8], bits: Bits, values: &mut [f32]) {
    decode(bytes, bits, values, |value, decoded| *value += decoded);
}

/// Leaves of `values` what `bytes` lack.
fn subtract(bytes: &[u8], bits: Bits, values: &mut [f32]) {
    decode(bytes, bits, values, |value, decoded| *value -= decoded);
}

fn decode(bytes: &[u8], bits: Bits, values: &mut [f32], take: impl Fn(&mut f32, f32)) {
    let in_a_byte = 8 / bits.count();
    let mask = (0xff_u16 >> (8 - bits.count())) as u8;
    for (block, values) in bytes
        .chunks(bits.block_bytes())
        .zip(values.chunks_mut(BLOCK))
    {
        let Some((scale, codes)) = block.split_first_chunk() else {
            continue;
        };
        let scale = f32::from_le_bytes(*scale);
        for (numbers, byte) in values.chunks_mut(in_a_byte).zip(codes) {
            for (value, shift) in numbers.iter_mut().zip((0..8).step_by(bits.count())) {
                take(value, scale * bits.level((byte >> shift) & mask));
            }
        }
    }
}

#[cfg(test)]
mod tests;
