//! The passes over the planes of a channel: sums, and what is made of each value.

use pulp::{Simd, WithSimd};

use super::BatchNormShape;
use crate::lanes::{keep, load, store};

/// The planes of one channel.
#[derive(Clone, Copy)]
pub(super) struct Planes<'a> {
    pub(super) values: &'a [f32],
    pub(super) stride: usize,
    pub(super) pixels: usize,
}

impl<'a> Planes<'a> {
    pub(super) fn of(shape: &BatchNormShape, channel: usize, values: &'a [f32]) -> Self {
        Self {
            values: values.get(channel * shape.pixels..).unwrap_or(&[]),
            stride: (shape.channels * shape.pixels).max(1),
            pixels: shape.pixels,
        }
    }

    #[inline(always)]
    pub(super) fn each(self) -> impl Iterator<Item = &'a [f32]> {
        // The last sample is followed by less than a stride.
        self.values
            .chunks(self.stride)
            .map(move |sample| &sample[..self.pixels])
    }
}

/// Sums `term` over a plane in four vectors side by side.
#[inline(always)]
fn sum_plane<S: Simd>(
    simd: S,
    [first, second]: [&[f32]; 2],
    term: impl Fn(S::f32s, S::f32s) -> [S::f32s; 2],
    rest_mask: impl Fn(S::f32s, usize) -> S::f32s,
) -> [f64; 2] {
    let zero = simd.splat_f32s(0.0);
    let (first, first_rest) = S::as_simd_f32s(first);
    let (second, second_rest) = S::as_simd_f32s(second);
    let mut sums = [[zero; 4]; 2];
    let (a, a_single) = first.as_chunks::<4>();
    let (b, b_single) = second.as_chunks::<4>();
    for (a, b) in a.iter().zip(b) {
        for lane in 0..4 {
            let [x, y] = term(a[lane], b[lane]);
            sums[0][lane] = simd.add_f32s(sums[0][lane], x);
            sums[1][lane] = simd.add_f32s(sums[1][lane], y);
        }
    }
    for (lane, (&a, &b)) in a_single.iter().zip(b_single).enumerate() {
        let [x, y] = term(a, b);
        sums[0][lane] = simd.add_f32s(sums[0][lane], x);
        sums[1][lane] = simd.add_f32s(sums[1][lane], y);
    }
    if !first_rest.is_empty() {
        let [x, y] = term(load(simd, first_rest), load(simd, second_rest));
        sums[0][3] = simd.add_f32s(sums[0][3], rest_mask(x, first_rest.len()));
        sums[1][3] = simd.add_f32s(sums[1][3], rest_mask(y, first_rest.len()));
    }
    let mut totals = [0.0; 2];
    for (total, [a, b, c, d]) in totals.iter_mut().zip(sums) {
        let sum = simd.add_f32s(simd.add_f32s(a, b), simd.add_f32s(c, d));
        *total = f64::from(simd.reduce_sum_f32s(sum));
    }
    totals
}

/// Mean and variance of a channel.
pub(super) struct Moments<'a> {
    pub(super) planes: Planes<'a>,
}

impl WithSimd for Moments<'_> {
    type Output = [f32; 2];

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> [f32; 2] {
        let mut sum = 0.0;
        let mut count = 0;
        for plane in self.planes.each() {
            let same = |a, _| [a, a];
            sum += sum_plane(simd, [plane, plane], same, |value, _| value)[0];
            count += plane.len();
        }
        let mean = sum / count as f64;
        let center = simd.splat_f32s(mean as f32);
        let mut squares = 0.0;
        let mut distances = 0.0;
        for plane in self.planes.each() {
            let term = |value, _| {
                let distance = simd.sub_f32s(value, center);
                [distance, simd.mul_f32s(distance, distance)]
            };
            let kept = |value, count| keep(simd, value, count, 0.0);
            let [distance, square] = sum_plane(simd, [plane, plane], term, kept);
            distances += distance;
            squares += square;
        }
        // The mean was rounded to `f32`: what that shifts is known, and taken back.
        let shift = distances / count as f64;
        let variance = (squares / count as f64 - shift * shift).max(0.0);
        let variance = if count == 0 { f64::NAN } else { variance };
        [mean as f32, variance as f32]
    }
}

/// The sum of a channel's gradient, and of its products with the distances from the mean.
pub(super) struct Products<'a> {
    pub(super) input: Planes<'a>,
    pub(super) gradient: Planes<'a>,
    pub(super) mean: f32,
}

impl WithSimd for Products<'_> {
    type Output = [f64; 2];

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> [f64; 2] {
        let mean = simd.splat_f32s(self.mean);
        let mut totals = [0.0; 2];
        for (input, gradient) in self.input.each().zip(self.gradient.each()) {
            let term = |value, slope| [slope, simd.mul_f32s(slope, simd.sub_f32s(value, mean))];
            // Where there is no gradient, the product is zero.
            let sums = sum_plane(simd, [input, gradient], term, |value, _| value);
            totals[0] += sums[0];
            totals[1] += sums[1];
        }
        totals
    }
}

/// Normalises some planes.
pub(super) struct Normalise<'a> {
    pub(super) pixels: usize,
    pub(super) first_plane: usize,
    /// Mean, scale, shift of each channel.
    pub(super) affine: &'a [[f32; 3]],
    pub(super) input: &'a [f32],
    pub(super) output: &'a mut [f32],
}

impl WithSimd for Normalise<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let mut channel = self.first_plane % self.affine.len();
        let planes = self.input.chunks(self.pixels);
        for (input, output) in planes.zip(self.output.chunks_mut(self.pixels)) {
            let [mean, scale, shift] = self.affine[channel].map(|value| simd.splat_f32s(value));
            channel = if channel + 1 == self.affine.len() {
                0
            } else {
                channel + 1
            };
            let term = |value| {
                let distance = simd.sub_f32s(value, mean);
                simd.mul_add_e_f32s(distance, scale, shift)
            };
            let (input, input_rest) = S::as_simd_f32s(input);
            let (output, output_rest) = S::as_mut_simd_f32s(output);
            for (output, &input) in output.iter_mut().zip(input) {
                *output = term(input);
            }
            if !input_rest.is_empty() {
                store(simd, output_rest, term(load(simd, input_rest)));
            }
        }
    }
}

/// `gradient * slope.gradient + (input - mean) * slope.input + constant`.
#[derive(Clone, Copy, Default)]
pub(super) struct Slope {
    pub(super) mean: f32,
    pub(super) gradient: f32,
    pub(super) input: f32,
    pub(super) constant: f32,
}

/// The input's gradient of a plane.
pub(super) struct Spread<'a> {
    pub(super) slope: Slope,
    pub(super) input: &'a [f32],
    pub(super) gradient: &'a [f32],
    pub(super) output: &'a mut [f32],
}

impl WithSimd for Spread<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let slope = self.slope;
        let mean = simd.splat_f32s(slope.mean);
        let by_gradient = simd.splat_f32s(slope.gradient);
        let by_input = simd.splat_f32s(slope.input);
        let constant = simd.splat_f32s(slope.constant);
        let term = |value, gradient| {
            let distance = simd.sub_f32s(value, mean);
            let from_input = simd.mul_add_e_f32s(distance, by_input, constant);
            simd.mul_add_e_f32s(gradient, by_gradient, from_input)
        };
        let (input, input_rest) = S::as_simd_f32s(self.input);
        let (gradient, gradient_rest) = S::as_simd_f32s(self.gradient);
        let (output, output_rest) = S::as_mut_simd_f32s(self.output);
        for ((output, &input), &gradient) in output.iter_mut().zip(input).zip(gradient) {
            *output = term(input, gradient);
        }
        if !input_rest.is_empty() {
            let value = term(load(simd, input_rest), load(simd, gradient_rest));
            store(simd, output_rest, value);
        }
    }
}
