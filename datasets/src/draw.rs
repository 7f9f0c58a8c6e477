//! Random numbers by conversions of our own, so that no release of a library changes pixels.

use rand_chacha::rand_core::Rng;

/// Numbers that are drawn from a generator.
pub(crate) struct Draw<R>(pub(crate) R);

impl<R: Rng> Draw<R> {
    /// Uniform in `0..1`, a multiple of 2^-24 and therefore exact.
    pub(crate) fn unit(&mut self) -> f32 {
        (self.0.next_u32() >> 8) as f32 / 16_777_216.0
    }

    /// Uniform in `low..high`.
    pub(crate) fn between(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * self.unit()
    }

    /// Uniform among `0..count`; the bias, `count` / 2^32, is of no consequence here.
    pub(crate) fn below(&mut self, count: usize) -> usize {
        ((u64::from(self.0.next_u32()) * count as u64) >> 32) as usize
    }
}
