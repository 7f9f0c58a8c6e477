//! Runs a plan: transposes images into lanes, sums, transposes back.

use pulp::{Simd, WithSimd};

use super::plan::Plan;
use super::tile::{Convolve, Pixel, with_tile};
use crate::isa::InstructionSet;
use crate::lanes::{Gather, Scatter};
use crate::parallel::{each_piece, each_task, multiply_adds};
use crate::scratch::with_scratch;

/// The most values of lane blocks that exist at a time, unless one block needs more: 4 MiB.
pub(crate) const LANE_BLOCKS: usize = 1 << 20;

/// Into how many tasks a call is cut, about: enough for the threads of one rank.
const TASKS: usize = 16;

/// Computes `target` from `source` and, for each target channel, `bias`.
pub(crate) fn apply(
    plan: &Plan,
    set: InstructionSet,
    source: &[f32],
    bias: Option<&[f32]>,
    target: &mut [f32],
) {
    let lanes = set.lanes();
    let source_image = plan.groups * plan.channels[0] * plan.places.len();
    let target_image = plan.groups * plan.channels[1] * plan.target_pixels;
    if plan.batch == 0 || target_image == 0 {
        return;
    }
    let block = plan.groups * plan.channels[0] * plan.plane * lanes;
    let blocks = (LANE_BLOCKS / block.max(1)).max(1);
    let mut first = 0;
    for target in target.chunks_mut(blocks * lanes * target_image) {
        let images = target.len() / target_image;
        let source = &source[first * source_image..(first + images) * source_image];
        first += images;
        with_scratch(images.div_ceil(lanes) * block, |planes| {
            gather_blocks(set, source, images, &plan.places, plan.plane, planes);
            let tasks = tasks(plan, lanes, planes, target);
            each_task(tasks, multiply_adds(plan.work()), |mut task| {
                set.run(Run {
                    plan,
                    bias,
                    task: &mut task,
                });
            });
        });
    }
}

/// Transposes `images` images of `source` into `[block][channel][plane]` vectors.
pub(crate) fn gather_blocks(
    set: InstructionSet,
    source: &[f32],
    images: usize,
    places: &[u32],
    plane: usize,
    target: &mut [f32],
) {
    let lanes = set.lanes();
    let image_stride = source.len() / images.max(1);
    let channels = target.len() / (images.div_ceil(lanes) * plane * lanes).max(1);
    let work = target.len();
    each_piece(target, plane * lanes, work, |index, target| {
        let (block, channel) = (index / channels, index % channels);
        let first = block * lanes * image_stride + channel * places.len();
        set.run(Gather {
            source: source.get(first..).unwrap_or(&[]),
            images: (images - block * lanes).min(lanes),
            image_stride,
            places,
            target,
        });
    });
}

/// Some blocks of one group's target channels, of one block of images.
struct Task<'a> {
    group: usize,
    /// The first block of channels, in the group.
    first_block: usize,
    /// Target channels.
    channels: usize,
    /// The group's planes.
    source: &'a [f32],
    /// For each image the task's channels.
    target: Vec<&'a mut [f32]>,
}

fn tasks<'a>(plan: &Plan, lanes: usize, planes: &'a [f32], target: &'a mut [f32]) -> Vec<Task<'a>> {
    let image = plan.groups * plan.channels[1] * plan.target_pixels;
    let group_planes = plan.channels[0] * plan.plane * lanes;
    let blocks = target.len().div_ceil(lanes * image);
    let parts = TASKS.div_ceil(blocks * plan.groups);
    let blocks_per_task = plan.channel_blocks().div_ceil(parts).max(1);
    let channels_per_task = blocks_per_task * plan.tile[0];
    let mut tasks = Vec::new();
    for (block, images) in target.chunks_mut(lanes * image).enumerate() {
        let first = tasks.len();
        for group in 0..plan.groups {
            let source = &planes[(block * plan.groups + group) * group_planes..][..group_planes];
            for part in 0..plan.channels[1].div_ceil(channels_per_task) {
                tasks.push(Task {
                    group,
                    first_block: part * blocks_per_task,
                    channels: channels_per_task.min(plan.channels[1] - part * channels_per_task),
                    source,
                    target: Vec::with_capacity(lanes),
                });
            }
        }
        for mut image in images.chunks_mut(image) {
            for task in &mut tasks[first..] {
                let (mine, rest) = image.split_at_mut(task.channels * plan.target_pixels);
                task.target.push(mine);
                image = rest;
            }
        }
    }
    tasks
}

struct Run<'a, 'b> {
    plan: &'a Plan,
    bias: Option<&'a [f32]>,
    task: &'a mut Task<'b>,
}

impl WithSimd for Run<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { plan, bias, task } = self;
        let [block, _] = plan.tile;
        let band = plan.band();
        let mut passes: Vec<&[Pixel]> = plan.passes.iter().map(|pass| &pass.pixels[..]).collect();
        with_scratch(block * band * S::F32_LANES, |sums| {
            for first_target in (0..plan.target_pixels).step_by(band) {
                let end = (first_target + band).min(plan.target_pixels);
                let parts: Vec<&[Pixel]> = passes
                    .iter_mut()
                    .map(|pixels| {
                        let count = pixels.partition_point(|pixel| (pixel.target as usize) < end);
                        let (part, rest) = pixels.split_at(count);
                        *pixels = rest;
                        part
                    })
                    .collect();
                for first in (0..task.channels).step_by(block) {
                    let count = block.min(task.channels - first);
                    let channel = task.first_block * block + first;
                    for (pass, pixels) in plan.passes.iter().zip(&parts) {
                        let length = pass.taps.len() * block;
                        let at = task.group * plan.channel_blocks() + channel / block;
                        let part = Part {
                            input: task.source,
                            taps: &pass.taps,
                            weights: &pass.weights[at * length..][..length],
                            pixels,
                            bias: bias.map(|bias| {
                                let first = task.group * plan.channels[1] + channel;
                                &bias[first..first + count]
                            }),
                            first_target,
                            channel_stride: band,
                        };
                        with_tile!(plan.tile, convolve(simd, &part, sums));
                    }
                    for o in 0..count {
                        let from = o * band * S::F32_LANES;
                        let length = (end - first_target) * S::F32_LANES;
                        simd.vectorize(Scatter {
                            source: &sums[from..from + length],
                            images: &mut task.target,
                            first: (first + o) * plan.target_pixels + first_target,
                        });
                    }
                }
            }
        });
    }
}

/// [`Convolve`] before its tile is known to the compiler.
pub(crate) struct Part<'a> {
    pub input: &'a [f32],
    pub taps: &'a [u32],
    pub weights: &'a [f32],
    pub pixels: &'a [Pixel],
    pub bias: Option<&'a [f32]>,
    pub first_target: usize,
    pub channel_stride: usize,
}

#[inline(always)]
pub(crate) fn convolve<const O: usize, const P: usize>(
    simd: impl Simd,
    part: &Part<'_>,
    sums: &mut [f32],
) {
    let mut bias = [0.0; O];
    if let Some(given) = part.bias {
        bias[..given.len()].copy_from_slice(given);
    }
    simd.vectorize(Convolve::<O, P> {
        input: part.input,
        taps: part.taps,
        weights: part.weights,
        bias,
        pixels: part.pixels,
        first_target: part.first_target,
        channel_stride: part.channel_stride,
        output: sums,
    });
}
