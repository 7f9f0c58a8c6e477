//! Images side by side: sixteen (or eight, or four) images become the lanes of one vector.
//!
//! Tensors are `[B, C, H, W]`. A *lane block* holds as many images as a vector has lanes, with the
//! images innermost: `[C, H, W, lane]`. A sum over a window is then the same sum in every lane,
//! whatever stride, padding and dilation are: no lane ever needs its neighbour's value, rows of any
//! width fill all lanes, and a weight is one broadcast. The price is a transposition at either end,
//! a few shuffles for each vector.

use std::any::Any;

use pulp::{Simd, WithSimd};

/// Where a source pixel that nobody reads goes.
pub(crate) const DROPPED: u32 = u32::MAX;

/// How many values are added up in `f32`: such sums are added in `f64`, so that a long row's is as
/// good as a short one's.
const SUMMED: usize = 1 << 10;

/// The most lanes of any instruction set.
pub(crate) const MAX_LANES: usize = 16;

/// Copies one channel of a block of images into a lane block.
pub(crate) struct Gather<'a> {
    /// From the block's first image, at the channel's first pixel, to the end of the tensor.
    pub source: &'a [f32],
    /// How many images the block has; further lanes get zeros.
    pub images: usize,
    /// From one image to the next in `source`.
    pub image_stride: usize,
    /// For each source pixel, which vector of `target` it becomes, or [`DROPPED`].
    pub places: &'a [u32],
    /// The channel's plane; what no pixel is copied to becomes zero.
    pub target: &'a mut [f32],
}

impl WithSimd for Gather<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (target, _) = S::as_mut_simd_f32s(self.target);
        let zero = simd.splat_f32s(0.0);
        if target.len() > self.places.len() {
            target.fill(zero);
        }
        let mut block = [zero; MAX_LANES];
        for (chunk, places) in self.places.chunks(S::F32_LANES).enumerate() {
            let first = chunk * S::F32_LANES;
            for (lane, row) in block[..S::F32_LANES].iter_mut().enumerate() {
                *row = zero;
                if lane < self.images {
                    let start = lane * self.image_stride + first;
                    *row = load(simd, &self.source[start..start + places.len()]);
                }
            }
            transpose(simd, &mut block);
            for (&place, &pixel) in places.iter().zip(&block) {
                if place != DROPPED {
                    target[place as usize] = pixel;
                }
            }
        }
    }
}

/// Copies one channel of a lane block out to the images.
pub(crate) struct Scatter<'a, 'b> {
    /// The pixels, a vector each.
    pub source: &'a [f32],
    /// One slice an image.
    pub images: &'a mut [&'b mut [f32]],
    /// Where in each image's slice the first pixel goes.
    pub first: usize,
}

impl WithSimd for Scatter<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (source, _) = S::as_simd_f32s(self.source);
        let mut block = [simd.splat_f32s(0.0); MAX_LANES];
        for (chunk, pixels) in source.chunks(S::F32_LANES).enumerate() {
            let start = self.first + chunk * S::F32_LANES;
            if pixels.len() == S::F32_LANES {
                // By registers: a call to memcpy would store halves of what is then loaded whole.
                #[expect(clippy::manual_memcpy, reason = "that is the call to memcpy")]
                for lane in 0..S::F32_LANES {
                    block[lane] = pixels[lane];
                }
            } else {
                block[..pixels.len()].copy_from_slice(pixels);
            }
            transpose(simd, &mut block);
            for (image, &row) in self.images.iter_mut().zip(&block) {
                store(simd, &mut image[start..start + pixels.len()], row);
            }
        }
    }
}

/// Turns rows into lanes: a matrix of `rows` by `columns` becomes `columns` times as many vectors as
/// its rows fill, with zeros in the last one's further lanes.
pub(crate) struct Interleave<'a> {
    /// The matrix, whose next row is `stride` further; the last one may end after its columns.
    pub source: &'a [f32],
    pub stride: usize,
    pub columns: usize,
    /// `[column][target_stride]` vectors.
    pub target: &'a mut [f32],
    pub target_stride: usize,
}

impl WithSimd for Interleave<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (target, _) = S::as_mut_simd_f32s(self.target);
        let zero = simd.splat_f32s(0.0);
        let mut block = [zero; MAX_LANES];
        for (vector, rows) in self.source.chunks(S::F32_LANES * self.stride).enumerate() {
            let count = rows.len().div_ceil(self.stride);
            for first in (0..self.columns).step_by(S::F32_LANES) {
                let length = S::F32_LANES.min(self.columns - first);
                for (lane, row) in block[..S::F32_LANES].iter_mut().enumerate() {
                    *row = zero;
                    if lane < count {
                        *row = load(simd, &rows[lane * self.stride + first..][..length]);
                    }
                }
                transpose(simd, &mut block);
                for (column, &value) in block[..length].iter().enumerate() {
                    target[(first + column) * self.target_stride + vector] = value;
                }
            }
        }
    }
}

/// Loads a vector, or as much of one as `from` holds and zeros after it.
#[inline(always)]
pub(crate) fn load<S: Simd>(simd: S, from: &[f32]) -> S::f32s {
    match S::as_simd_f32s(from).0.first() {
        Some(&full) => full,
        None => simd.partial_load_f32s(from),
    }
}

/// Stores a vector, or as much of one as `to` holds.
#[inline(always)]
pub(crate) fn store<S: Simd>(simd: S, to: &mut [f32], value: S::f32s) {
    if to.len() >= S::F32_LANES {
        S::as_mut_simd_f32s(to).0[0] = value;
    } else {
        simd.partial_store_f32s(to, value);
    }
}

/// Writes `term` of each place of `from` to that of `to`, a vector at a time. All are of one length.
#[inline(always)]
pub(crate) fn map<S: Simd, const N: usize>(
    simd: S,
    from: [&[f32]; N],
    to: &mut [f32],
    term: impl Fn([S::f32s; N]) -> S::f32s,
) {
    let (to, to_rest) = S::as_mut_simd_f32s(to);
    let mut vectors: [&[S::f32s]; N] = [&[]; N];
    let mut rests: [&[f32]; N] = [&[]; N];
    for (of, from) in from.into_iter().enumerate() {
        (vectors[of], rests[of]) = S::as_simd_f32s(from);
        vectors[of] = &vectors[of][..to.len()];
    }
    let mut values = [simd.splat_f32s(0.0); N];
    for (at, to) in to.iter_mut().enumerate() {
        for (value, vectors) in values.iter_mut().zip(&vectors) {
            *value = vectors[at];
        }
        *to = term(values);
    }
    if !to_rest.is_empty() {
        for (value, rest) in values.iter_mut().zip(&rests) {
            *value = load(simd, rest);
        }
        store(simd, to_rest, term(values));
    }
}

/// Puts `term` of each value in its place, a vector at a time.
#[inline(always)]
pub(crate) fn change<S: Simd>(simd: S, values: &mut [f32], term: impl Fn(S::f32s) -> S::f32s) {
    let (vectors, rest) = S::as_mut_simd_f32s(values);
    for value in vectors {
        *value = term(*value);
    }
    if !rest.is_empty() {
        let value = term(load(simd, rest));
        store(simd, rest, value);
    }
}

/// Puts `term` of each place of `from` and each value in that value's place. Both are of one length.
#[inline(always)]
pub(crate) fn change_by<S: Simd>(
    simd: S,
    from: &[f32],
    values: &mut [f32],
    term: impl Fn(S::f32s, S::f32s) -> S::f32s,
) {
    let (vectors, rest) = S::as_mut_simd_f32s(values);
    let (from_vectors, from_rest) = S::as_simd_f32s(from);
    for (value, &from) in vectors.iter_mut().zip(from_vectors) {
        *value = term(from, *value);
    }
    if !rest.is_empty() {
        let value = term(load(simd, from_rest), load(simd, rest));
        store(simd, rest, value);
    }
}

/// The first `count` lanes of `value`; `filler` in the others.
#[inline(always)]
pub(crate) fn keep<S: Simd>(simd: S, value: S::f32s, count: usize, filler: f32) -> S::f32s {
    let mask = simd.mask_between_m32s(0, count as u32).mask();
    simd.select_f32s(mask, value, simd.splat_f32s(filler))
}

/// Adds up `term` of each place of `from`; what `term` makes of places after the end is left out.
#[inline(always)]
pub(crate) fn sum<S: Simd, const N: usize>(
    simd: S,
    from: [&[f32]; N],
    term: impl Fn([S::f32s; N]) -> S::f32s,
) -> f64 {
    let mut total = 0.0;
    let length = from[0].len();
    for start in (0..length).step_by(SUMMED) {
        let end = length.min(start + SUMMED);
        let mut sums = [simd.splat_f32s(0.0); 2];
        let mut values = [simd.splat_f32s(0.0); N];
        for (chunk, at) in (start..end).step_by(S::F32_LANES).enumerate() {
            let count = S::F32_LANES.min(end - at);
            for (value, from) in values.iter_mut().zip(&from) {
                *value = load(simd, &from[at..at + count]);
            }
            let mut value = term(values);
            if count < S::F32_LANES {
                value = keep(simd, value, count, 0.0);
            }
            sums[chunk % 2] = simd.add_f32s(sums[chunk % 2], value);
        }
        total += f64::from(simd.reduce_sum_f32s(simd.add_f32s(sums[0], sums[1])));
    }
    total
}

/// Adds up the lanes of each vector: transposed, so that all of them are added at once.
#[inline(always)]
pub(crate) fn sum_lanes<S: Simd>(simd: S, vectors: &[S::f32s], sums: &mut [f32]) {
    let mut block = [simd.splat_f32s(0.0); MAX_LANES];
    for (vectors, sums) in vectors
        .chunks(S::F32_LANES)
        .zip(sums.chunks_mut(S::F32_LANES))
    {
        block[..vectors.len()].copy_from_slice(vectors);
        transpose(simd, &mut block);
        let mut sum = block[0];
        for &lane in &block[1..S::F32_LANES] {
            sum = simd.add_f32s(sum, lane);
        }
        store(simd, sums, sum);
    }
}

/// Transposes the square of the first `S::F32_LANES` rows.
#[inline(always)]
fn transpose<S: Simd>(simd: S, rows: &mut [S::f32s; MAX_LANES]) {
    #[cfg(target_arch = "x86_64")]
    {
        let simd: &dyn Any = &simd;
        if let Some(&simd) = simd.downcast_ref::<pulp::x86::V4>() {
            return transpose_16(simd, bytemuck::cast_slice_mut(rows));
        }
        if let Some(&simd) = simd.downcast_ref::<pulp::x86::V3>() {
            return transpose_8(simd, bytemuck::cast_slice_mut(rows));
        }
    }
    let _: &dyn Any = &simd;
    let lanes = S::F32_LANES;
    let values: &mut [f32] = bytemuck::cast_slice_mut(rows);
    for row in 0..lanes {
        for column in 0..row {
            values.swap(row * lanes + column, column * lanes + row);
        }
    }
}

/// Four rounds of sixteen shuffles: pairs, quadruples, then 128-bit quarters twice.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn transpose_16(simd: pulp::x86::V4, rows: &mut [pulp::f32x16]) {
    use bytemuck::cast;
    let simd = simd.avx512f;
    let mut a = [simd._mm512_setzero_ps(); 16];
    let mut b = a;
    for i in 0..8 {
        let (low, high) = (cast(rows[2 * i]), cast(rows[2 * i + 1]));
        a[2 * i] = simd._mm512_unpacklo_ps(low, high);
        a[2 * i + 1] = simd._mm512_unpackhi_ps(low, high);
    }
    for i in 0..4 {
        for half in 0..2 {
            let (low, high) = (cast(a[4 * i + half]), cast(a[4 * i + 2 + half]));
            b[4 * i + 2 * half] = cast(simd._mm512_unpacklo_pd(low, high));
            b[4 * i + 2 * half + 1] = cast(simd._mm512_unpackhi_pd(low, high));
        }
    }
    for j in 0..4 {
        let even_low = simd._mm512_shuffle_f32x4::<0x88>(b[j], b[4 + j]);
        let odd_low = simd._mm512_shuffle_f32x4::<0xdd>(b[j], b[4 + j]);
        let even_high = simd._mm512_shuffle_f32x4::<0x88>(b[8 + j], b[12 + j]);
        let odd_high = simd._mm512_shuffle_f32x4::<0xdd>(b[8 + j], b[12 + j]);
        rows[j] = cast(simd._mm512_shuffle_f32x4::<0x88>(even_low, even_high));
        rows[8 + j] = cast(simd._mm512_shuffle_f32x4::<0xdd>(even_low, even_high));
        rows[4 + j] = cast(simd._mm512_shuffle_f32x4::<0x88>(odd_low, odd_high));
        rows[12 + j] = cast(simd._mm512_shuffle_f32x4::<0xdd>(odd_low, odd_high));
    }
}

/// As [`transpose_16`], with one round of halves in place of two of quarters.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn transpose_8(simd: pulp::x86::V3, rows: &mut [pulp::f32x8]) {
    use bytemuck::cast;
    let simd = simd.avx;
    let mut a = [simd._mm256_setzero_ps(); 8];
    let mut b = a;
    for i in 0..4 {
        let (low, high) = (cast(rows[2 * i]), cast(rows[2 * i + 1]));
        a[2 * i] = simd._mm256_unpacklo_ps(low, high);
        a[2 * i + 1] = simd._mm256_unpackhi_ps(low, high);
    }
    for i in 0..2 {
        for half in 0..2 {
            let (low, high) = (cast(a[4 * i + half]), cast(a[4 * i + 2 + half]));
            b[4 * i + 2 * half] = cast(simd._mm256_unpacklo_pd(low, high));
            b[4 * i + 2 * half + 1] = cast(simd._mm256_unpackhi_pd(low, high));
        }
    }
    for j in 0..4 {
        rows[j] = cast(simd._mm256_permute2f128_ps::<0x20>(b[j], b[4 + j]));
        rows[4 + j] = cast(simd._mm256_permute2f128_ps::<0x31>(b[j], b[4 + j]));
    }
}

#[cfg(test)]
mod tests;
