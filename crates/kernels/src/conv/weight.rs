//! The gradients with respect to weights and bias.

use pulp::{Simd, WithSimd};

use super::apply::{LANE_BLOCKS, gather_blocks};
use super::plan::{dense_taps, extents, places};
use super::shape::Conv2dShape;
use super::tile::{CORRELATE, Correlate, best_tile, with_tile};
use crate::isa::InstructionSet;
use crate::lanes::{load, sum_lanes};
use crate::parallel::{each_piece, each_task, multiply_adds};
use crate::scratch::with_scratch;

/// Into how many tasks the sums are cut, about.
const TASKS: usize = 32;

/// Vectors of gradient that stay in the first-level cache while all taps pass by: 16 KiB.
const GRADIENT_CHUNK: usize = 256;

/// What all tiles of one call share.
struct Correlation<'a> {
    shape: &'a Conv2dShape,
    tile: [usize; 2],
    taps: Vec<u32>,
    windows: Vec<u32>,
    /// Vectors of one block of images: input, gradient.
    blocks: [usize; 2],
}

impl<'a> Correlation<'a> {
    fn new(shape: &'a Conv2dShape, set: InstructionSet) -> Self {
        let [rows, columns] = extents(shape);
        let [height, width] = shape.padded();
        let [c_in, c_out] = shape.group_channels();
        let taps = dense_taps(shape);
        Self {
            shape,
            tile: best_tile(&CORRELATE, set.registers(), c_out, &[taps.len()]),
            windows: (0..rows * columns)
                .map(|pixel| {
                    let (y, x) = (pixel / columns, pixel % columns);
                    (y * shape.stride[0] * width + x * shape.stride[1]) as u32
                })
                .collect(),
            blocks: [
                shape.groups * c_in * height * width,
                shape.groups * c_out * rows * columns,
            ],
            taps,
        }
    }
}

/// Computes the weights' gradient: each lane sums over its images, and the lanes are added up at
/// the end.
pub(crate) fn weight_grad(
    shape: &Conv2dShape,
    set: InstructionSet,
    input: &[f32],
    gradient: &[f32],
    weight_grad: &mut [f32],
) {
    let lanes = set.lanes();
    let output = extents(shape);
    let [rows, columns] = output;
    let [height, width] = shape.padded();
    let [_, c_out] = shape.group_channels();
    if shape.batch == 0 || weight_grad.is_empty() || rows * columns == 0 {
        weight_grad.fill(0.0);
        return;
    }
    let [(top, _), (left, _)] = shape.padding;
    let input_places = places(shape.input, [top, left], width);
    let gradient_places = places(output, [0, 0], columns);
    let correlation = Correlation::new(shape, set);
    let tile = correlation.tile;
    let tap_tiles = correlation.taps.len().div_ceil(tile[1]);
    let tile_rows = shape.groups * c_out.div_ceil(tile[0]);
    let tile_length = tile[0] * tile[1] * lanes;
    let per_task = tap_tiles.div_ceil(TASKS.div_ceil(tile_rows));
    let [input_block, gradient_block] = correlation.blocks.map(|vectors| vectors * lanes);
    let blocks = (LANE_BLOCKS / (input_block + gradient_block)).max(1);
    let image = [input.len() / shape.batch, gradient.len() / shape.batch];

    with_scratch(tile_rows * tap_tiles * tile_length, |sums| {
        sums.fill(0.0);
        for first in (0..shape.batch).step_by(blocks * lanes) {
            let images = (blocks * lanes).min(shape.batch - first);
            let input = &input[first * image[0]..(first + images) * image[0]];
            let gradient = &gradient[first * image[1]..(first + images) * image[1]];
            let count = images.div_ceil(lanes);
            with_scratch(count * input_block, |inputs| {
                let plane = height * width;
                gather_blocks(set, input, images, &input_places, plane, inputs);
                with_scratch(count * gradient_block, |gradients| {
                    let plane = rows * columns;
                    gather_blocks(set, gradient, images, &gradient_places, plane, gradients);
                    let work = multiply_adds(images * plane * weight_grad.len());
                    let mut tasks = Vec::new();
                    for (row, sums) in sums.chunks_mut(tap_tiles * tile_length).enumerate() {
                        for (part, sums) in sums.chunks_mut(per_task * tile_length).enumerate() {
                            tasks.push(Tiles {
                                row,
                                first: part * per_task,
                                sums,
                            });
                        }
                    }
                    each_task(tasks, work, |mut tiles| {
                        set.run(Run {
                            correlation: &correlation,
                            inputs,
                            gradients,
                            tiles: &mut tiles,
                        });
                    });
                });
            });
        }
        let channels = shape.channels[1];
        each_piece(
            weight_grad,
            correlation.taps.len(),
            channels * correlation.taps.len() * lanes,
            |channel, row| {
                let (group, o) = (channel / c_out, channel % c_out);
                let tile_row = group * c_out.div_ceil(tile[0]) + o / tile[0];
                let sums = &sums[tile_row * tap_tiles * tile_length..];
                set.run(AddLanes {
                    sums,
                    tile,
                    row_in_tile: o % tile[0],
                    target: row,
                });
            },
        );
    });
}

/// Some tiles of one row of channels.
struct Tiles<'a> {
    /// The row, over all groups.
    row: usize,
    /// The first tile of the row.
    first: usize,
    sums: &'a mut [f32],
}

/// Adds all blocks of images to some tiles.
struct Run<'a, 'b> {
    correlation: &'a Correlation<'a>,
    inputs: &'a [f32],
    gradients: &'a [f32],
    tiles: &'a mut Tiles<'b>,
}

impl WithSimd for Run<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let correlation = self.correlation;
        let [o, t] = correlation.tile;
        let [input_block, gradient_block] =
            correlation.blocks.map(|vectors| vectors * S::F32_LANES);
        let chunk = GRADIENT_CHUNK / o;
        for (input, gradient) in self
            .inputs
            .chunks(input_block)
            .zip(self.gradients.chunks(gradient_block))
        {
            for first in (0..correlation.windows.len()).step_by(chunk) {
                let part = Part {
                    input,
                    gradient: &gradient[first * S::F32_LANES..],
                    first,
                    chunk,
                };
                let tiles = self.tiles.sums.chunks_mut(o * t * S::F32_LANES);
                for (index, sums) in tiles.enumerate() {
                    let at = [self.tiles.row, self.tiles.first + index];
                    with_tile!(
                        correlation.tile,
                        correlate(simd, correlation, at, part, sums)
                    );
                }
            }
        }
    }
}

/// Some pixels of one block of images.
#[derive(Clone, Copy)]
struct Part<'a> {
    input: &'a [f32],
    /// From the first pixel on.
    gradient: &'a [f32],
    first: usize,
    chunk: usize,
}

#[inline(always)]
fn correlate<const O: usize, const T: usize>(
    simd: impl Simd,
    correlation: &Correlation<'_>,
    [row, tile]: [usize; 2],
    part: Part<'_>,
    sums: &mut [f32],
) {
    let shape = correlation.shape;
    let [c_in, c_out] = shape.group_channels();
    let [height, width] = shape.padded();
    let channel_tiles = c_out.div_ceil(O);
    let (group, channel) = (row / channel_tiles, row % channel_tiles * O);
    // A tile that is not full computes its last tap and channel more than once.
    let mut taps = [0; T];
    for (t, offset) in taps.iter_mut().enumerate() {
        let first = (group * c_in * height * width) as u32;
        *offset = first + correlation.taps[(tile * T + t).min(correlation.taps.len() - 1)];
    }
    let mut channels = [0; O];
    for (o, offset) in channels.iter_mut().enumerate() {
        let channel = group * c_out + (channel + o).min(c_out - 1);
        *offset = (channel * correlation.windows.len()) as u32;
    }
    let end = (part.first + part.chunk).min(correlation.windows.len());
    simd.vectorize(Correlate::<O, T> {
        input: part.input,
        gradient: part.gradient,
        taps,
        channels,
        windows: &correlation.windows[part.first..end],
        sums,
    });
}

/// Adds up the lanes of one output channel's sums.
struct AddLanes<'a> {
    /// From the channel's row of tiles on.
    sums: &'a [f32],
    tile: [usize; 2],
    row_in_tile: usize,
    target: &'a mut [f32],
}

impl WithSimd for AddLanes<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (sums, _) = S::as_simd_f32s(self.sums);
        let [o, t] = self.tile;
        for (tile, target) in self.target.chunks_mut(t).enumerate() {
            let sums = &sums[(tile * o + self.row_in_tile) * t..][..target.len()];
            sum_lanes(simd, sums, target);
        }
    }
}

/// Computes the bias' gradient: the sum of each channel's gradient over images and pixels.
pub(crate) fn bias_grad(
    shape: &Conv2dShape,
    set: InstructionSet,
    gradient: &[f32],
    bias_grad: &mut [f32],
) {
    let [rows, columns] = extents(shape);
    let pixels = rows * columns;
    let channels = shape.channels[1];
    let tasks: Vec<(usize, &mut f32)> = bias_grad.iter_mut().enumerate().collect();
    each_task(tasks, gradient.len(), |(channel, sum)| {
        let mut total = 0.0;
        for image in 0..shape.batch {
            let first = (image * channels + channel) * pixels;
            total += f64::from(set.run(Sum(&gradient[first..first + pixels])));
        }
        *sum = total as f32;
    });
}

/// The sum of all values, in four vectors side by side.
pub(crate) struct Sum<'a>(pub &'a [f32]);

impl WithSimd for Sum<'_> {
    type Output = f32;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> f32 {
        let zero = simd.splat_f32s(0.0);
        let (vectors, rest) = S::as_simd_f32s(self.0);
        let (fours, single) = vectors.as_chunks::<4>();
        let mut sums = [zero; 4];
        for four in fours {
            for (sum, &value) in sums.iter_mut().zip(four) {
                *sum = simd.add_f32s(*sum, value);
            }
        }
        for (sum, &value) in sums.iter_mut().zip(single) {
            *sum = simd.add_f32s(*sum, value);
        }
        if !rest.is_empty() {
            sums[3] = simd.add_f32s(sums[3], load(simd, rest));
        }
        let left = simd.add_f32s(sums[0], sums[1]);
        let right = simd.add_f32s(sums[2], sums[3]);
        simd.reduce_sum_f32s(simd.add_f32s(left, right))
    }
}
