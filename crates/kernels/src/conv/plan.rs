//! What a convolution or its input gradient reads and writes, as lists of offsets.
//!
//! Both are sums over taps: `target[o][pixel] = sum over taps of weight[tap][o] *
//! source[window(pixel) + tap]`, where the source is padded with zeros. For the forward pass that
//! is the definition. For the input gradient, input row `i` receives output row `v` through kernel
//! row `k` if `i + padding - k * dilation = v * stride`; rows of equal `(i + padding) mod stride`
//! share their `k`, and among them `v` advances by one. So the gradient is `stride * stride` dense
//! sums, each over its part of the kernel.

use super::shape::Conv2dShape;
use super::tile::{CONVOLVE, Pixel, best_tile};
use crate::isa::InstructionSet;

/// About how many pixels are computed before they are transposed out: eight channels of as many
/// vectors fit the first-level cache or little more.
const BAND: usize = 112;

/// One sum over taps, for some of the target's pixels.
pub(crate) struct Pass {
    /// Each tap's distance from a window's start, in vectors, over all channels of a group.
    pub taps: Vec<u32>,
    /// `[group][block of channels][tap][tile's channels]`.
    pub weights: Vec<f32>,
    /// In the order of their targets.
    pub pixels: Vec<Pixel>,
}

/// All passes of a convolution or an input gradient.
pub(crate) struct Plan {
    pub batch: usize,
    pub groups: usize,
    /// Source and target channels of one group.
    pub channels: [usize; 2],
    /// For each source pixel, its place in a padded plane.
    pub places: Vec<u32>,
    /// Pixels of a padded plane.
    pub plane: usize,
    /// Pixels of a target plane.
    pub target_pixels: usize,
    pub passes: Vec<Pass>,
    /// Channels and pixels of a register tile.
    pub tile: [usize; 2],
}

impl Plan {
    /// The plan of the forward pass.
    pub(crate) fn forward(shape: &Conv2dShape, weight: &[f32], set: InstructionSet) -> Self {
        let [height, width] = shape.padded();
        let [rows, columns] = extents(shape);
        let mut plan = Self::empty(shape, shape.group_channels());
        plan.plane = height * width;
        plan.target_pixels = rows * columns;
        let [(top, _), (left, _)] = shape.padding;
        plan.places = places(shape.input, [top, left], width);
        let taps = dense_taps(shape);
        let pixels: Vec<Pixel> = (0..rows * columns)
            .map(|target| {
                let (y, x) = (target / columns, target % columns);
                let window = y * shape.stride[0] * width + x * shape.stride[1];
                pixel(window, target)
            })
            .collect();
        plan.tile = best_tile(
            &CONVOLVE,
            set.registers(),
            plan.channels[1],
            &[pixels.len()],
        );
        let weights = plan.pack(taps.len(), |group, o, tap| {
            weight[(group * plan.channels[1] + o) * taps.len() + tap]
        });
        plan.passes.push(Pass {
            taps,
            weights,
            pixels,
        });
        plan
    }

    /// The plan of the gradient with respect to the input.
    pub(crate) fn input_grad(shape: &Conv2dShape, weight: &[f32], set: InstructionSet) -> Self {
        let [c_in, c_out] = shape.group_channels();
        let mut plan = Self::empty(shape, [c_out, c_in]);
        let output = extents(shape);
        let axes = [0, 1].map(|axis| GradAxis::new(shape, axis, output[axis]));
        let width = axes[1].extent;
        plan.plane = axes[0].extent * width;
        plan.target_pixels = shape.input[0] * shape.input[1];
        plan.places = places(output, [axes[0].before, axes[1].before], width);

        let mut classes = Vec::new();
        for row_class in &axes[0].classes {
            for column_class in &axes[1].classes {
                let mut pixels = Vec::new();
                for &(y, base_y) in &row_class.pixels {
                    for &(x, base_x) in &column_class.pixels {
                        pixels.push(pixel(base_y * width + base_x, y * shape.input[1] + x));
                    }
                }
                if !pixels.is_empty() {
                    classes.push((row_class, column_class, pixels));
                }
            }
        }
        let windows: Vec<usize> = classes.iter().map(|(_, _, pixels)| pixels.len()).collect();
        plan.tile = best_tile(&CONVOLVE, set.registers(), plan.channels[1], &windows);
        for (row_class, column_class, pixels) in classes {
            let mut taps = Vec::new();
            // Which weight each tap takes, relative to its input channel's kernel.
            let mut kernel_at = Vec::new();
            for channel in 0..c_out {
                for &(ky, offset_y) in &row_class.taps {
                    for &(kx, offset_x) in &column_class.taps {
                        taps.push((channel * plan.plane + offset_y * width + offset_x) as u32);
                        let kernel = ky * shape.kernel[1] + kx;
                        kernel_at.push(channel * c_in * shape.taps() + kernel);
                    }
                }
            }
            let weights = plan.pack(taps.len(), |group, o, tap| {
                weight[(group * c_out * c_in + o) * shape.taps() + kernel_at[tap]]
            });
            plan.passes.push(Pass {
                taps,
                weights,
                pixels,
            });
        }
        plan
    }

    fn empty(shape: &Conv2dShape, channels: [usize; 2]) -> Self {
        Self {
            batch: shape.batch,
            groups: shape.groups,
            channels,
            places: Vec::new(),
            plane: 0,
            target_pixels: 0,
            passes: Vec::new(),
            tile: [1, 8],
        }
    }

    /// Blocks of target channels in one group.
    pub(crate) fn channel_blocks(&self) -> usize {
        self.channels[1].div_ceil(self.tile[0])
    }

    /// Target pixels that are computed before they are transposed out.
    pub(crate) fn band(&self) -> usize {
        let bands = self.target_pixels.div_ceil(BAND).max(1);
        self.target_pixels.div_ceil(bands).next_multiple_of(16)
    }

    /// About how many multiply-adds all passes take.
    pub(crate) fn work(&self) -> usize {
        let each = |pass: &Pass| pass.taps.len() * pass.pixels.len();
        let pixels: usize = self.passes.iter().map(each).sum();
        pixels * self.channels[1] * self.groups * self.batch
    }

    fn pack(&self, taps: usize, weight: impl Fn(usize, usize, usize) -> f32) -> Vec<f32> {
        pack([self.groups, self.channels[1], self.tile[0]], taps, weight)
    }
}

/// The weights `(group, channel, tap)` in the order in which tiles of `block` channels read them;
/// channels that fill up a block get zeros.
pub(crate) fn pack(
    [groups, channels, block]: [usize; 3],
    taps: usize,
    weight: impl Fn(usize, usize, usize) -> f32,
) -> Vec<f32> {
    let blocks = channels.div_ceil(block);
    let mut packed = vec![0.0; groups * blocks * taps * block];
    if taps == 0 {
        return packed;
    }
    for (index, part) in packed.chunks_mut(taps * block).enumerate() {
        let (group, first) = (index / blocks, index % blocks * block);
        for o in 0..block.min(channels - first) {
            for (tap, weights) in part.chunks_mut(block).enumerate() {
                weights[o] = weight(group, first + o, tap);
            }
        }
    }
    packed
}

/// Offsets of a dense kernel's taps in padded planes, in the order of the weights.
pub(crate) fn dense_taps(shape: &Conv2dShape) -> Vec<u32> {
    let [height, width] = shape.padded();
    let [rows, columns] = shape.kernel;
    let mut taps = Vec::with_capacity(shape.group_channels()[0] * shape.taps());
    for channel in 0..shape.group_channels()[0] {
        for y in 0..rows {
            for x in 0..columns {
                let in_plane = y * shape.dilation[0] * width + x * shape.dilation[1];
                taps.push((channel * height * width + in_plane) as u32);
            }
        }
    }
    taps
}

/// Height and width of the output of a shape that has been checked.
pub(crate) fn extents(shape: &Conv2dShape) -> [usize; 2] {
    shape.output().unwrap_or([0, 0])
}

/// Where each pixel of an image is in a plane of rows of `width`, `before` rows and columns in.
pub(crate) fn places(image: [usize; 2], before: [usize; 2], width: usize) -> Vec<u32> {
    let mut places = Vec::with_capacity(image[0] * image[1]);
    for y in 0..image[0] {
        let row = (y + before[0]) * width + before[1];
        places.extend((row..row + image[1]).map(|place| place as u32));
    }
    places
}

fn pixel(window: usize, target: usize) -> Pixel {
    Pixel {
        window: window as u32,
        target: target as u32,
    }
}

/// One axis of an input gradient.
pub(crate) struct GradAxis {
    /// Extent of the padded gradient.
    extent: usize,
    /// Zeros before the gradient's first row.
    pub before: usize,
    /// By residue of `i + padding`.
    pub classes: Vec<GradClass>,
}

/// Input rows that share their kernel rows.
#[derive(Clone, Default)]
pub(crate) struct GradClass {
    /// Input row, and where its window begins in the padded gradient.
    pub pixels: Vec<(usize, usize)>,
    /// Kernel row, and its distance from a window's beginning.
    pub taps: Vec<(usize, usize)>,
}

impl GradAxis {
    pub(crate) fn new(shape: &Conv2dShape, axis: usize, output: usize) -> Self {
        let stride = shape.stride[axis];
        let dilation = shape.dilation[axis];
        let padding = shape.padding[axis].0;
        let input = shape.input[axis];
        // With `i + padding = stride * q + r` and `k * dilation = stride * m + r`, `v = q - m`.
        let furthest = (shape.kernel[axis] - 1) * dilation / stride;
        let before = furthest.saturating_sub(padding / stride);
        let last = (input.saturating_sub(1) + padding) / stride;
        let mut classes = vec![GradClass::default(); stride.min(input + padding + 1)];
        for i in 0..input {
            let (q, r) = ((i + padding) / stride, (i + padding) % stride);
            classes[r].pixels.push((i, q + before - furthest));
        }
        for k in 0..shape.kernel[axis] {
            let (m, r) = (k * dilation / stride, k * dilation % stride);
            if let Some(class) = classes.get_mut(r) {
                class.taps.push((k, furthest - m));
            }
        }
        Self {
            extent: last.max(output.saturating_sub(1)) + before + 1,
            before,
            classes,
        }
    }
}
