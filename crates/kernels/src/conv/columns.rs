//! Convolution and its input gradient with pixels as lanes: for batches that do not fill a vector.
//!
//! The values under a band of windows are packed into a matrix, a row for each tap, whose columns
//! are pixels (im2col, a band at a time, so that it stays in the second-level cache); then the same
//! register tile as for lane blocks multiplies it by the weights. Packing costs some cycles a
//! vector and is shared by all output channels: worth it for many of them.

use pulp::{Simd, WithSimd};

use super::apply::{Part, convolve};
use super::plan::{GradAxis, extents, pack};
use super::shape::Conv2dShape;
use super::tile::{CONVOLVE, Pixel, best_tile, with_tile};
use crate::isa::InstructionSet;
use crate::parallel::{each_piece, multiply_adds};
use crate::scratch::with_scratch;

/// The most values of a packed band, unless its least number of vectors needs more: 512 KiB.
const PACKED: usize = 1 << 17;

/// The fewest and the most vectors of a band.
const BAND: [usize; 2] = [6, 24];

/// Where a tap reads, relative to a window's first pixel.
#[derive(Clone, Copy)]
pub(crate) struct Tap {
    pub channel: usize,
    pub offset: [isize; 2],
}

/// A grid of windows that share their taps.
struct View {
    windows: Windows,
    taps: Vec<Tap>,
    /// `[group][block of channels][tap][tile's channels]`.
    weights: Vec<f32>,
    /// For each window its pixel in the target; all in a row if absent.
    targets: Option<Vec<u32>>,
}

/// A grid of windows over a plane.
#[derive(Clone, Copy)]
pub(crate) struct Windows {
    /// Rows and columns of windows.
    pub grid: [usize; 2],
    /// From one window to the next in the source.
    pub step: [usize; 2],
    /// Height and width of the source.
    pub source: [usize; 2],
}

impl Windows {
    pub(crate) fn count(&self) -> usize {
        self.grid[0] * self.grid[1]
    }

    /// Packs the values under `count` windows from `first` on into rows of `stride`, a row for each
    /// tap.
    pub(crate) fn pack(
        &self,
        taps: &[Tap],
        source: &[f32],
        [first, count, stride]: [usize; 3],
        packed: &mut [f32],
    ) {
        let [height, width] = self.source;
        let windows = first..first + count;
        let columns = self.grid[1];
        for (tap, packed) in taps.iter().zip(packed.chunks_mut(stride)) {
            let plane = &source[tap.channel * height * width..][..height * width];
            let [down, right] = tap.offset;
            // Windows from `inside.0` to `inside.1` of a row read within the image.
            let bound = |x: isize| (x.max(0) as usize).div_ceil(self.step[1]).min(columns);
            let inside = (bound(-right), bound(width as isize - right));
            let mut at = windows.start;
            // From left to right: a copy may write a little past its end.
            while at < windows.end {
                let (row, column) = (at / columns, at % columns);
                let length = (columns - column).min(windows.end - at);
                let line = at - windows.start;
                at += length;
                let y = (row * self.step[0]) as isize + down;
                if y < 0 || y >= height as isize {
                    packed[line..line + length].fill(0.0);
                    continue;
                }
                let first = inside.0.clamp(column, column + length) - column;
                let end = inside.1.clamp(column + first, column + length) - column;
                packed[line..line + first].fill(0.0);
                if first < end {
                    let x = ((column + first) * self.step[1]) as isize + right;
                    let source = &plane[y as usize * width + x as usize..];
                    let target = &mut packed[line + first..];
                    if self.step[1] == 1 {
                        copy(source, target, end - first);
                    } else {
                        let sources = source.chunks(self.step[1]);
                        for (value, source) in target[..end - first].iter_mut().zip(sources) {
                            *value = source[0];
                        }
                    }
                }
                packed[line + end..line + length].fill(0.0);
            }
        }
    }
}

/// Copies `count` values, sixteen at a time; past them, what follows in `target` may change. Rows are
/// short, and a call to memcpy for each takes longer than the copy.
fn copy(source: &[f32], target: &mut [f32], count: usize) {
    let mut at = 0;
    while at < count {
        let to = target.get_mut(at..at + 16);
        match (to, source.get(at..at + 16)) {
            (Some(to), Some(from)) => to.copy_from_slice(from),
            _ => return target[at..count].copy_from_slice(&source[at..count]),
        }
        at += 16;
    }
}

/// All views of a convolution or an input gradient.
pub(crate) struct Columns {
    groups: usize,
    /// Source and target channels of one group.
    channels: [usize; 2],
    /// Height and width of source and target.
    source: [usize; 2],
    target: [usize; 2],
    views: Vec<View>,
    /// Channels and vectors of pixels of a register tile.
    tile: [usize; 2],
    /// Vectors of a band.
    band: usize,
}

impl Columns {
    /// The forward pass.
    pub(crate) fn forward(shape: &Conv2dShape, weight: &[f32], set: InstructionSet) -> Self {
        let shape = &flattened(shape);
        let [c_in, c_out] = shape.group_channels();
        let taps = dense_taps(shape);
        let mut columns = Self::empty(shape, [c_in, c_out], [shape.input, extents(shape)]);
        columns.choose(set, taps.len(), [columns.target[0] * columns.target[1]]);
        let weights = pack(
            [shape.groups, c_out, columns.tile[0]],
            taps.len(),
            |group, o, tap| weight[(group * c_out + o) * taps.len() + tap],
        );
        columns.views.push(View {
            windows: Windows {
                grid: columns.target,
                step: shape.stride,
                source: columns.source,
            },
            taps,
            weights,
            targets: None,
        });
        columns
    }

    /// The gradient with respect to the input: a view for each class of input rows and columns (see
    /// [`super::plan`]).
    pub(crate) fn input_grad(shape: &Conv2dShape, weight: &[f32], set: InstructionSet) -> Self {
        let shape = &flattened(shape);
        let [c_in, c_out] = shape.group_channels();
        let output = extents(shape);
        let mut columns = Self::empty(shape, [c_out, c_in], [output, shape.input]);
        let axes = [0, 1].map(|axis| GradAxis::new(shape, axis, output[axis]));
        let mut classes = Vec::new();
        for rows in &axes[0].classes {
            for lines in &axes[1].classes {
                if !rows.pixels.is_empty() && !lines.pixels.is_empty() {
                    classes.push([rows, lines]);
                }
            }
        }
        let longest = classes
            .iter()
            .map(|[rows, lines]| c_out * rows.taps.len() * lines.taps.len());
        let windows: Vec<usize> = classes
            .iter()
            .map(|[rows, lines]| rows.pixels.len() * lines.pixels.len())
            .collect();
        columns.choose(set, longest.max().unwrap_or(0), windows);
        for class in classes {
            let [rows, lines] = class;
            // The class' first window begins here, in the gradient without padding.
            let start =
                [0, 1].map(|axis| class[axis].pixels[0].1 as isize - axes[axis].before as isize);
            let mut taps = Vec::new();
            let mut kernel_at = Vec::new();
            for channel in 0..c_out {
                for &(ky, y) in &rows.taps {
                    for &(kx, x) in &lines.taps {
                        let offset = [start[0] + y as isize, start[1] + x as isize];
                        taps.push(Tap { channel, offset });
                        let kernel = ky * shape.kernel[1] + kx;
                        kernel_at.push(channel * c_in * shape.taps() + kernel);
                    }
                }
            }
            let dims = [shape.groups, c_in, columns.tile[0]];
            let weights = pack(dims, taps.len(), |group, o, tap| {
                weight[(group * c_out * c_in + o) * shape.taps() + kernel_at[tap]]
            });
            let mut targets = Vec::new();
            for &(y, _) in &rows.pixels {
                for &(x, _) in &lines.pixels {
                    targets.push((y * shape.input[1] + x) as u32);
                }
            }
            columns.views.push(View {
                windows: Windows {
                    grid: [rows.pixels.len(), lines.pixels.len()],
                    step: [1, 1],
                    source: columns.source,
                },
                taps,
                weights,
                targets: (shape.stride != [1, 1]).then_some(targets),
            });
        }
        columns
    }

    fn empty(shape: &Conv2dShape, channels: [usize; 2], [source, target]: [[usize; 2]; 2]) -> Self {
        Self {
            groups: shape.groups,
            channels,
            source,
            target,
            views: Vec::new(),
            tile: [1, 8],
            band: 1,
        }
    }

    /// Chooses tile and band for views of this many taps and windows.
    fn choose(&mut self, set: InstructionSet, taps: usize, windows: impl AsRef<[usize]>) {
        let lanes = set.lanes();
        let fits = (PACKED / (taps * lanes).max(1)).clamp(BAND[0], BAND[1]);
        // As even bands as possible: the last one should not be a remnant.
        let most = windows
            .as_ref()
            .iter()
            .max()
            .map_or(0, |windows| windows.div_ceil(lanes));
        self.band = most.div_ceil(most.div_ceil(fits).max(1)).max(1);
        self.tile = best_tile(&CONVOLVE, set.registers(), self.channels[1], &[self.band]);
    }

    /// Computes `target` from `source` and, for each target channel, `bias`; a task for each image.
    pub(crate) fn apply(
        &self,
        set: InstructionSet,
        source: &[f32],
        bias: Option<&[f32]>,
        target: &mut [f32],
    ) {
        let source_image = self.groups * self.channels[0] * self.source[0] * self.source[1];
        let target_image = self.groups * self.channels[1] * self.target[0] * self.target[1];
        let work = self
            .views
            .iter()
            .map(|view| view.windows.count() * view.taps.len() * self.channels[1] * self.groups)
            .sum();
        each_piece(
            target,
            target_image,
            multiply_adds(work),
            |image, target| {
                set.run(Image {
                    columns: self,
                    source: &source[image * source_image..][..source_image],
                    bias,
                    target,
                });
            },
        );
    }
}

/// The taps of a dense kernel, in the order of the weights.
pub(crate) fn dense_taps(shape: &Conv2dShape) -> Vec<Tap> {
    let channels = shape.group_channels()[0];
    let mut taps = Vec::with_capacity(channels * shape.taps());
    for channel in 0..channels {
        for y in 0..shape.kernel[0] {
            for x in 0..shape.kernel[1] {
                let offset = [(y, 0), (x, 1)].map(|(k, axis)| {
                    (k * shape.dilation[axis]) as isize - shape.padding[axis].0 as isize
                });
                taps.push(Tap { channel, offset });
            }
        }
    }
    taps
}

/// A pointwise convolution sees its image as one row.
pub(crate) fn flattened(shape: &Conv2dShape) -> Conv2dShape {
    let pointwise = shape.kernel == [1, 1] && shape.stride == [1, 1];
    if pointwise && shape.padding == [(0, 0), (0, 0)] {
        return Conv2dShape {
            input: [1, shape.input[0] * shape.input[1]],
            ..*shape
        };
    }
    *shape
}

struct Image<'a> {
    columns: &'a Columns,
    source: &'a [f32],
    bias: Option<&'a [f32]>,
    target: &'a mut [f32],
}

impl WithSimd for Image<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self {
            columns,
            source,
            bias,
            target,
        } = self;
        let [block, _] = columns.tile;
        let [c_source, c_target] = columns.channels;
        let source_group = c_source * columns.source[0] * columns.source[1];
        let target_plane = columns.target[0] * columns.target[1];
        let blocks = c_target.div_ceil(block);
        let stride = columns.band * S::F32_LANES;
        let longest = columns.views.iter().map(|view| view.taps.len()).max();
        let pixels: Vec<Pixel> = (0..columns.band as u32)
            .map(|vector| Pixel {
                window: vector,
                target: vector,
            })
            .collect();
        let rows: Vec<u32> = (0..longest.unwrap_or(0))
            .map(|tap| (tap * columns.band) as u32)
            .collect();
        with_scratch(rows.len() * stride, |packed| {
            with_scratch(block * stride, |sums| {
                for group in 0..columns.groups {
                    let source = &source[group * source_group..][..source_group];
                    for view in &columns.views {
                        for first in (0..view.windows.count()).step_by(stride) {
                            let count = stride.min(view.windows.count() - first);
                            view.windows
                                .pack(&view.taps, source, [first, count, stride], packed);
                            for at in 0..blocks {
                                let channel = group * c_target + at * block;
                                let channels = block.min(c_target - at * block);
                                let length = view.taps.len() * block;
                                let part = Part {
                                    input: packed,
                                    taps: &rows[..view.taps.len()],
                                    weights: &view.weights[(group * blocks + at) * length..]
                                        [..length],
                                    pixels: &pixels[..count.div_ceil(S::F32_LANES)],
                                    bias: bias.map(|bias| &bias[channel..channel + channels]),
                                    first_target: 0,
                                    channel_stride: columns.band,
                                };
                                with_tile!(columns.tile, convolve(simd, &part, sums));
                                for o in 0..channels {
                                    let plane =
                                        &mut target[(channel + o) * target_plane..][..target_plane];
                                    let sums = &sums[o * stride..][..count];
                                    view.store(first, sums, plane);
                                }
                            }
                        }
                    }
                }
            });
        });
    }
}

impl View {
    /// Stores the sums of windows from `first` on into a target plane.
    fn store(&self, first: usize, sums: &[f32], plane: &mut [f32]) {
        match &self.targets {
            None => plane[first..first + sums.len()].copy_from_slice(sums),
            Some(targets) => {
                for (&target, &sum) in targets[first..].iter().zip(sums) {
                    plane[target as usize] = sum;
                }
            }
        }
    }
}
