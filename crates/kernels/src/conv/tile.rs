//! The three register tiles that all convolutions are made of.
//!
//! Loops over channels and pixels count up to a constant and index arrays: that is what the compiler
//! unrolls into registers.
#![allow(clippy::needless_range_loop)]

use pulp::{Simd, WithSimd};

/// Register tiles that a kernel is compiled for: how many output channels and how many pixels (or
/// taps) one tile holds. `O * P` accumulators, `P` values and one weight must fit the registers, and
/// at least eight accumulators hide the latency of a fused multiply-add.
pub(crate) struct Tiles {
    /// With 32 vector registers.
    of_32: &'static [[usize; 2]],
    /// With 16.
    of_16: &'static [[usize; 2]],
}

pub(crate) const CONVOLVE: Tiles = Tiles {
    of_32: &[
        [8, 3],
        [7, 3],
        [6, 4],
        [5, 5],
        [4, 6],
        [3, 8],
        [2, 8],
        [1, 12],
    ],
    of_16: &[[6, 2], [5, 2], [4, 3], [3, 3], [2, 4], [1, 8]],
};

/// Without the tiles of many channels: each channel needs a pointer.
pub(crate) const CORRELATE: Tiles = Tiles {
    of_32: &[[6, 4], [5, 5], [4, 6], [3, 8], [2, 8], [1, 12]],
    of_16: &[[5, 2], [4, 3], [3, 3], [2, 4], [1, 8]],
};

/// Calls the generic function `$function::<O, P>` for the tile that `$tile` names.
macro_rules! with_tile {
    ($tile:expr, $function:ident($($argument:expr),* $(,)?)) => {
        match $tile {
            [8, 3] => $function::<8, 3>($($argument),*),
            [7, 3] => $function::<7, 3>($($argument),*),
            [6, 4] => $function::<6, 4>($($argument),*),
            [5, 5] => $function::<5, 5>($($argument),*),
            [4, 6] => $function::<4, 6>($($argument),*),
            [3, 8] => $function::<3, 8>($($argument),*),
            [2, 8] => $function::<2, 8>($($argument),*),
            [1, 12] => $function::<1, 12>($($argument),*),
            [6, 2] => $function::<6, 2>($($argument),*),
            [5, 2] => $function::<5, 2>($($argument),*),
            [4, 3] => $function::<4, 3>($($argument),*),
            [3, 3] => $function::<3, 3>($($argument),*),
            [2, 4] => $function::<2, 4>($($argument),*),
            _ => $function::<1, 8>($($argument),*),
        }
    };
}
pub(crate) use with_tile;

/// The tile that needs the fewest cycles for `outputs` channels and, in each of `parts`, this many
/// pixels or taps.
pub(crate) fn best_tile(
    tiles: &Tiles,
    registers: usize,
    outputs: usize,
    parts: &[usize],
) -> [usize; 2] {
    let cost = |[o, p]: [usize; 2]| {
        // Two multiply-adds or two loads a cycle; a store and the loop cost a little.
        let cycles = (o * p).max(o + p) + 1;
        let tiles: usize = parts.iter().map(|part| part.div_ceil(p)).sum();
        outputs.div_ceil(o) * tiles * cycles
    };
    let tiles = if registers >= 32 {
        tiles.of_32
    } else {
        tiles.of_16
    };
    let best = tiles.iter().min_by_key(|&&tile| cost(tile));
    best.copied().unwrap_or([1, 8])
}

/// An output pixel: where its window begins in the input, and which pixel it is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pixel {
    /// Vector index of the window's first tap in the first channel's plane.
    pub window: u32,
    /// The pixel's index in the output plane.
    pub target: u32,
}

/// `out[o][pixel] = bias[o] + sum over taps of weight[tap][o] * input[window(pixel) + tap]`, for
/// `O` output channels and any number of pixels, `P` at a time.
pub(crate) struct Convolve<'a, const O: usize, const P: usize> {
    /// Lane block of the input channels.
    pub input: &'a [f32],
    /// Each tap's distance from a window's start, in vectors.
    pub taps: &'a [u32],
    /// `[tap][O]`.
    pub weights: &'a [f32],
    /// What each sum starts from.
    pub bias: [f32; O],
    /// The pixels, in the order of their targets.
    pub pixels: &'a [Pixel],
    /// The target of `output`'s first vector.
    pub first_target: usize,
    /// Vectors between two channels of `output`.
    pub channel_stride: usize,
    /// `[O][channel_stride]` vectors.
    pub output: &'a mut [f32],
}

impl<const O: usize, const P: usize> WithSimd for Convolve<'_, O, P> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (input, _) = S::as_simd_f32s(self.input);
        let (output, _) = S::as_mut_simd_f32s(self.output);
        let (weights, _) = self.weights.as_chunks::<O>();
        for pixels in self.pixels.chunks(P) {
            // A tile that is not full computes its last pixel more than once.
            let mut tile = [pixels[pixels.len() - 1]; P];
            tile[..pixels.len()].copy_from_slice(pixels);
            let furthest = tile.iter().map(|pixel| pixel.window).max().unwrap_or(0);
            // One length for all windows is one check for all loads of a tap. Without channels
            // there are no taps, and nothing to read.
            let reach = input.len().saturating_sub(furthest as usize);
            let mut windows: [&[S::f32s]; P] = [&[]; P];
            for p in 0..P {
                let first = (tile[p].window as usize).min(input.len() - reach);
                windows[p] = &input[first..][..reach];
            }
            let mut sums = [[simd.splat_f32s(0.0); P]; O];
            for o in 0..O {
                sums[o] = [simd.splat_f32s(self.bias[o]); P];
            }
            for (&tap, weights) in self.taps.iter().zip(weights) {
                let tap = tap as usize;
                let mut values = [simd.splat_f32s(0.0); P];
                for p in 0..P {
                    values[p] = windows[p][tap];
                }
                for o in 0..O {
                    let weight = simd.splat_f32s(weights[o]);
                    for p in 0..P {
                        sums[o][p] = simd.mul_add_e_f32s(weight, values[p], sums[o][p]);
                    }
                }
            }
            for p in 0..P {
                let target = tile[p].target as usize - self.first_target;
                for o in 0..O {
                    output[o * self.channel_stride + target] = sums[o][p];
                }
            }
        }
    }
}

/// `sums[o][tap] += sum over pixels of gradient[o][pixel] * input[window(pixel) + tap]`, each lane
/// on its own, for `O` output channels and `T` taps.
pub(crate) struct Correlate<'a, const O: usize, const T: usize> {
    /// Lane block of the input channels.
    pub input: &'a [f32],
    /// Lane block of the output's gradient, from the first pixel on.
    pub gradient: &'a [f32],
    /// Where each tap begins in `input`, in vectors.
    pub taps: [u32; T],
    /// Where each channel begins in `gradient`, in vectors.
    pub channels: [u32; O],
    /// Where each pixel's window begins, in vectors from a tap.
    pub windows: &'a [u32],
    /// `[O][T]` vectors.
    pub sums: &'a mut [f32],
}

impl<const O: usize, const T: usize> WithSimd for Correlate<'_, O, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (input, _) = S::as_simd_f32s(self.input);
        let (gradient, _) = S::as_simd_f32s(self.gradient);
        let (stored, _) = S::as_mut_simd_f32s(self.sums);
        let (stored, _) = stored.as_chunks_mut::<T>();
        let furthest = self.taps.iter().max().copied().unwrap_or(0);
        let reach = input.len() - furthest as usize;
        let mut taps: [&[S::f32s]; T] = [&[]; T];
        for t in 0..T {
            taps[t] = &input[self.taps[t] as usize..][..reach];
        }
        let pixels = self.windows.len();
        let mut channels: [&[S::f32s]; O] = [&[]; O];
        for o in 0..O {
            channels[o] = &gradient[self.channels[o] as usize..][..pixels];
        }
        let mut sums = [[simd.splat_f32s(0.0); T]; O];
        sums.copy_from_slice(&stored[..O]);
        for (pixel, &window) in self.windows.iter().enumerate() {
            let window = window as usize;
            let mut values = [simd.splat_f32s(0.0); T];
            for t in 0..T {
                values[t] = taps[t][window];
            }
            for o in 0..O {
                let slope = channels[o][pixel];
                for t in 0..T {
                    sums[o][t] = simd.mul_add_e_f32s(slope, values[t], sums[o][t]);
                }
            }
        }
        stored[..O].copy_from_slice(&sums);
    }
}

/// `sums[o][v] += sum over pixels of gradient[o][pixel] * input[pixel][v]`, for `O` output channels
/// and `V` vectors of taps.
pub(crate) struct Outer<'a, const O: usize, const V: usize> {
    /// For each channel its pixels' gradient.
    pub gradient: [&'a [f32]; O],
    /// For each pixel `stride` vectors, from the first of `V` on.
    pub input: &'a [f32],
    /// Vectors from pixel to pixel.
    pub stride: usize,
    /// For each channel `stride` vectors, from the first of `V` on.
    pub sums: &'a mut [f32],
}

impl<const O: usize, const V: usize> WithSimd for Outer<'_, O, V> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (input, _) = S::as_simd_f32s(self.input);
        let (stored, _) = S::as_mut_simd_f32s(self.sums);
        let pixels = self.gradient[0].len();
        let mut gradient: [&[f32]; O] = [&[]; O];
        for o in 0..O {
            gradient[o] = &self.gradient[o][..pixels];
        }
        // From zero for each band of pixels: the shorter a chain of additions, the less it rounds.
        let mut sums = [[simd.splat_f32s(0.0); V]; O];
        for (pixel, input) in input.chunks(self.stride).take(pixels).enumerate() {
            let input = &input[..V];
            let mut values = [simd.splat_f32s(0.0); V];
            values.copy_from_slice(input);
            for o in 0..O {
                let slope = simd.splat_f32s(gradient[o][pixel]);
                for v in 0..V {
                    sums[o][v] = simd.mul_add_e_f32s(slope, values[v], sums[o][v]);
                }
            }
        }
        for o in 0..O {
            for v in 0..V {
                let stored = &mut stored[o * self.stride + v];
                *stored = simd.add_f32s(*stored, sums[o][v]);
            }
        }
    }
}
