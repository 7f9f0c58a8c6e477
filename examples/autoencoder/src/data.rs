//! Drawings of circles, and batches of them.

use everburn::burn::data::dataloader::batcher::Batcher;
use everburn::burn::data::dataset::{Dataset, DatasetError};
use everburn::burn::prelude::*;

/// Drawings that are made when they are asked for: any `Dataset` of Burn will do.
pub struct Drawings {
    pub size: usize,
    pub numbers: std::ops::Range<usize>,
}

impl Dataset<Vec<f32>> for Drawings {
    fn get(&self, index: usize) -> Result<Vec<f32>, DatasetError> {
        // Radius and centre follow from the number, so every rank sees the same drawings.
        let (number, size) = (self.numbers.start + index, self.size as f32);
        let part = |step: usize| (number * step % 101) as f32 / 101.0;
        let (x, y, radius) =
            (size * (0.3 + 0.4 * part(37)), size * (0.3 + 0.4 * part(53)), size * (0.1 + 0.2 * part(71)));
        let pixel = |at: usize| ((at % self.size) as f32 - x).hypot((at / self.size) as f32 - y);
        Ok((0..self.size * self.size).map(|at| f32::from(u8::from(pixel(at) < radius))).collect())
    }

    fn len(&self) -> usize {
        self.numbers.len()
    }
}

/// Makes a batch `[B, 1, size, size]` of several drawings.
pub struct DrawingBatcher {
    pub size: usize,
}

impl Batcher<Vec<f32>, Tensor<4>> for DrawingBatcher {
    fn batch(&self, drawings: Vec<Vec<f32>>, device: &Device) -> Tensor<4> {
        let count = drawings.len();
        let pixels = drawings.concat();
        Tensor::<1>::from_floats(pixels.as_slice(), device).reshape([count, 1, self.size, self.size])
    }
}
