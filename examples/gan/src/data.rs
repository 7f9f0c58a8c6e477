//! What the models see: points around a ring (eight heaps, each a small Gaussian), and noise.

use std::error::Error;
use std::fs;
use std::path::Path;

use everburn::burn::prelude::*;
use everburn::burn::tensor::Distribution;

/// Of how many random numbers the generator makes a point.
pub const NOISE: usize = 8;

/// How many points there are to learn from.
pub const POINTS: usize = 1_000;

/// Makes a batch `[B, 2]` of the points of these numbers.
pub fn points(numbers: &[usize], device: &Device) -> Tensor<2> {
    let coordinates = numbers.iter().flat_map(|&number| point(number)).collect::<Vec<f32>>();
    Tensor::<1>::from_floats(coordinates.as_slice(), device).reshape([numbers.len(), 2])
}

/// Draws noise `[B, NOISE]` for `count` points, by the device's own generator of random numbers.
pub fn noise(count: usize, device: &Device) -> Tensor<2> {
    Tensor::random([count, NOISE], Distribution::Normal(0.0, 1.0), device)
}

/// Where a point is follows from its number, so every rank sees the same points.
fn point(number: usize) -> [f32; 2] {
    let angle = (number % 8) as f32 * std::f32::consts::FRAC_PI_4;
    // Box and Muller make a Gaussian of two even numbers between 0 and 1.
    let even = |step: usize| ((number * step + 1) % 1_009) as f32 / 1_009.0;
    let (length, turn) = (0.05 * (-2.0 * even(37).max(1e-3).ln()).sqrt(), even(53) * std::f32::consts::TAU);
    [angle.cos() + length * turn.cos(), angle.sin() + length * turn.sin()]
}

/// Writes points `[B, 2]`, one a line.
pub fn write(path: &Path, points: Tensor<2>) -> Result<(), Box<dyn Error>> {
    let coordinates = points.into_data().try_into_vec::<f32>()?;
    let lines = coordinates.chunks_exact(2).map(|point| format!("{},{}\n", point[0], point[1]));
    Ok(fs::write(path, lines.collect::<String>())?)
}
