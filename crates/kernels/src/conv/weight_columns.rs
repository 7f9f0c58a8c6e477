//! The gradient with respect to the weights with taps as lanes: for batches that do not fill a
//! vector, and for many weights.
//!
//! The values under a band of windows are packed as for [`super::columns`], then transposed, so that
//! each pixel has its taps side by side. Each pixel adds an outer product: its gradient in every
//! output channel, times its taps.

use pulp::{Simd, WithSimd};

use super::columns::{Tap, Windows, dense_taps, flattened};
use super::plan::extents;
use super::shape::Conv2dShape;
use super::tile::{CONVOLVE, Outer, best_tile, with_tile};
use crate::isa::InstructionSet;
use crate::lanes::Interleave;
use crate::parallel::{each_piece, multiply_adds};
use crate::scratch::with_scratch;

/// Pixels of a band.
const BAND: usize = 256;

/// Vectors of taps that are packed at a time, about: with a band of pixels 128 KiB.
const VECTORS: usize = 8;

/// Into how many tasks a call is cut, at least, as long as there are channels.
const TASKS: usize = 8;

/// Channels of a task, at least, with some blocks of taps and without: each task packs its taps
/// itself, which costs as much as to multiply them by some sixteen channels.
const CHANNELS: [usize; 2] = [64, 32];

/// What all tasks share.
struct Sums<'a> {
    shape: Conv2dShape,
    windows: Windows,
    taps: Vec<Tap>,
    input: &'a [f32],
    gradient: &'a [f32],
    tile: [usize; 2],
    /// Vectors of one block of taps, and how many blocks there are.
    vectors: usize,
    tap_blocks: usize,
    /// Channels of one task, a multiple of the tile's, and how many tasks share a group's.
    channels: usize,
    parts: usize,
}

/// Computes the weights' gradient.
pub(crate) fn weight_grad(
    shape: &Conv2dShape,
    set: InstructionSet,
    input: &[f32],
    gradient: &[f32],
    weight_grad: &mut [f32],
) {
    let shape = flattened(shape);
    let [_, c_out] = shape.group_channels();
    let output = extents(&shape);
    let taps = dense_taps(&shape);
    if shape.batch == 0 || weight_grad.is_empty() || output.contains(&0) {
        weight_grad.fill(0.0);
        return;
    }
    let lanes = set.lanes();
    let needed = taps.len().div_ceil(lanes);
    let tile = best_tile(&CONVOLVE, set.registers(), c_out, &[needed]);
    let tiles = needed.div_ceil(tile[1]);
    let vectors = tiles.min((VECTORS / tile[1]).max(1)) * tile[1];
    let tap_blocks = needed.div_ceil(vectors);
    let channel_blocks = c_out.div_ceil(tile[0]);
    let few = usize::from(shape.groups * tap_blocks < TASKS / 2);
    let parts = TASKS
        .div_ceil(shape.groups * tap_blocks)
        .min(c_out.div_ceil(CHANNELS[few]));
    let channels = channel_blocks.div_ceil(parts) * tile[0];
    let sums = Sums {
        shape,
        windows: Windows {
            grid: output,
            step: shape.stride,
            source: shape.input,
        },
        taps,
        input,
        gradient,
        tile,
        vectors,
        tap_blocks,
        channels,
        parts: c_out.div_ceil(channels),
    };
    let piece = channels * vectors * lanes;
    let pieces = shape.groups * sums.parts * tap_blocks;
    let work = multiply_adds(shape.batch * sums.windows.count() * weight_grad.len());
    with_scratch(pieces * piece, |totals| {
        each_piece(totals, piece, work, |index, totals| {
            totals.fill(0.0);
            set.run(Task {
                sums: &sums,
                index,
                totals,
            });
        });
        let row = vectors * lanes;
        let count = sums.taps.len();
        for (o, target) in weight_grad.chunks_mut(count).enumerate() {
            let (group, o) = (o / c_out, o % c_out);
            let part = group * sums.parts + o / channels;
            for (block, target) in target.chunks_mut(row).enumerate() {
                let at = (part * tap_blocks + block) * piece + o % channels * row;
                target.copy_from_slice(&totals[at..at + target.len()]);
            }
        }
    });
}

/// One block of taps with some of a group's output channels.
struct Task<'a> {
    sums: &'a Sums<'a>,
    /// `(group * parts + part) * tap_blocks + block`.
    index: usize,
    /// `[channels][vectors]` vectors.
    totals: &'a mut [f32],
}

impl WithSimd for Task<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let sums = self.sums;
        let [c_in, c_out] = sums.shape.group_channels();
        let (part, block) = (self.index / sums.tap_blocks, self.index % sums.tap_blocks);
        let (group, part) = (part / sums.parts, part % sums.parts);
        let row = sums.vectors * S::F32_LANES;
        let taps = &sums.taps[block * row..];
        let taps = &taps[..row.min(taps.len())];
        let channels = part * sums.channels..(part * sums.channels + sums.channels).min(c_out);
        let input_plane = sums.shape.input[0] * sums.shape.input[1];
        let output_plane = sums.windows.count();
        let band = BAND.min(output_plane);
        with_scratch(taps.len() * band, |packed| {
            with_scratch(band * row, |pixels| {
                pixels.fill(0.0);
                for image in 0..sums.shape.batch {
                    let input = image * sums.shape.channels[0] + group * c_in;
                    let input = &sums.input[input * input_plane..][..c_in * input_plane];
                    let gradient = image * sums.shape.channels[1] + group * c_out;
                    let gradient = &sums.gradient[gradient * output_plane..];
                    for first in (0..output_plane).step_by(band) {
                        let count = band.min(output_plane - first);
                        sums.windows.pack(taps, input, [first, count, band], packed);
                        // What runs inside a closure is not compiled for `S` unless it asks for it.
                        simd.vectorize(Interleave {
                            source: packed,
                            stride: band,
                            columns: count,
                            target: pixels,
                            target_stride: sums.vectors,
                        });
                        let part = Part {
                            gradient,
                            plane: output_plane,
                            channels: channels.clone(),
                            pixels: first..first + count,
                            input: pixels,
                            vectors: sums.vectors,
                        };
                        with_tile!(sums.tile, outer(simd, &part, self.totals));
                    }
                }
            });
        });
    }
}

/// Some pixels of one image.
struct Part<'a> {
    /// The group's gradient.
    gradient: &'a [f32],
    plane: usize,
    channels: std::ops::Range<usize>,
    pixels: std::ops::Range<usize>,
    /// `[pixel][vectors]` vectors of taps.
    input: &'a [f32],
    vectors: usize,
}

#[inline(always)]
fn outer<const O: usize, const V: usize>(simd: impl Simd, part: &Part<'_>, totals: &mut [f32]) {
    let lanes = totals_lanes(simd);
    let row = part.vectors * lanes;
    for (index, totals) in totals.chunks_mut(O * row).enumerate() {
        let first = part.channels.start + index * O;
        if first >= part.channels.end {
            break;
        }
        let mut gradient: [&[f32]; O] = [&[]; O];
        for (o, gradient) in gradient.iter_mut().enumerate() {
            // A tile that is not full computes its last channel more than once.
            let plane = (first + o).min(part.channels.end - 1) * part.plane;
            *gradient = &part.gradient[plane + part.pixels.start..plane + part.pixels.end];
        }
        for vector in (0..part.vectors).step_by(V) {
            simd.vectorize(Outer::<O, V> {
                gradient,
                input: &part.input[vector * lanes..],
                stride: part.vectors,
                sums: &mut totals[vector * lanes..],
            });
        }
    }
}

fn totals_lanes<S: Simd>(_simd: S) -> usize {
    S::F32_LANES
}
