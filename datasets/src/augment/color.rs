//! What changes colours: as Pillow and torchvision define it.

use std::ops::Range;

/// A change that moves no pixel.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ColorChange {
    Brightness(f32),
    Contrast(f32),
    Saturation(f32),
    Sharpness(f32),
    /// How many bits are kept.
    Posterize(u32),
    /// Values from this one on are inverted.
    Solarize(u8),
    AutoContrast,
    Equalize,
    Erase {
        rows: Range<usize>,
        columns: Range<usize>,
    },
}

impl ColorChange {
    /// Changes the image `[channels, height, width]`.
    pub(super) fn apply(&self, pixels: &mut [u8], [channels, height, width]: [usize; 3]) {
        let plane = height * width;
        match self {
            Self::Brightness(factor) => each(pixels, |value| value * factor),
            Self::Contrast(factor) => {
                let greys = (0..plane).map(|at| grey(pixels, at, plane, channels));
                let mean = greys.sum::<f32>() / plane as f32;
                each(pixels, |value| mean + (value - mean) * factor);
            }
            Self::Saturation(factor) if channels == 3 => {
                for at in 0..plane {
                    let grey = grey(pixels, at, plane, channels);
                    for channel in 0..channels {
                        let value = &mut pixels[channel * plane + at];
                        *value = byte(grey + (f32::from(*value) - grey) * factor);
                    }
                }
            }
            Self::Saturation(_) => {}
            Self::Sharpness(factor) => {
                let planes = pixels.chunks_exact_mut(plane);
                planes.for_each(|plane| sharpen(plane, [height, width], *factor));
            }
            Self::Posterize(bits) => {
                let mask = u8::MAX << (8 - bits.min(&8));
                pixels.iter_mut().for_each(|value| *value &= mask);
            }
            Self::Solarize(threshold) => {
                let bright = pixels.iter_mut().filter(|value| **value >= *threshold);
                bright.for_each(|value| *value = 255 - *value);
            }
            Self::AutoContrast => pixels.chunks_exact_mut(plane).for_each(stretch),
            Self::Equalize => pixels.chunks_exact_mut(plane).for_each(equalize),
            Self::Erase { rows, columns } => {
                for plane in pixels.chunks_exact_mut(plane) {
                    let sum = plane.iter().map(|value| u64::from(*value)).sum::<u64>();
                    let mean = (sum / plane.len() as u64) as u8;
                    for row in rows.clone() {
                        plane[row * width..][columns.clone()].fill(mean);
                    }
                }
            }
        }
    }
}

fn byte(value: f32) -> u8 {
    value.round().clamp(0.0, 255.0) as u8
}

fn each(pixels: &mut [u8], change: impl Fn(f32) -> f32) {
    let table: [u8; 256] = std::array::from_fn(|value| byte(change(value as f32)));
    pixels
        .iter_mut()
        .for_each(|value| *value = table[usize::from(*value)]);
}

/// How bright a pixel is (ITU-R 601-2).
fn grey(pixels: &[u8], at: usize, plane: usize, channels: usize) -> f32 {
    let value = |channel: usize| f32::from(pixels[channel * plane + at]);
    match channels {
        3 => 0.299 * value(0) + 0.587 * value(1) + 0.114 * value(2),
        _ => value(0),
    }
}

/// Moves each pixel away from, or towards, a smoothed image; the outermost ones stay.
fn sharpen(plane: &mut [u8], [height, width]: [usize; 2], factor: f32) {
    let old = plane.to_vec();
    for row in 1..height.saturating_sub(1) {
        for column in 1..width.saturating_sub(1) {
            let value = |row: usize, column: usize| f32::from(old[row * width + column]);
            let around = (row - 1..=row + 1)
                .flat_map(|row| (column - 1..=column + 1).map(move |c| (row, c)));
            let sum = around.map(|(row, column)| value(row, column)).sum::<f32>();
            let own = value(row, column);
            let smooth = ((sum + 4.0 * own) / 13.0).round();
            plane[row * width + column] = byte(smooth + (own - smooth) * factor);
        }
    }
}

/// The darkest value becomes 0, and the brightest 255.
fn stretch(plane: &mut [u8]) {
    let (Some(&low), Some(&high)) = (plane.iter().min(), plane.iter().max()) else {
        return;
    };
    if low < high {
        let scale = 255.0 / f32::from(high - low);
        each(plane, |value| (value - f32::from(low)) * scale);
    }
}

/// Values become about equally frequent.
fn equalize(plane: &mut [u8]) {
    let mut counts = [0_usize; 256];
    for value in plane.iter() {
        counts[usize::from(*value)] += 1;
    }
    let last = counts.iter().rev().find(|count| **count > 0).copied();
    let step = (plane.len() - last.unwrap_or(0)) / 255;
    if step == 0 {
        return;
    }
    let mut below = step / 2;
    let table = counts.map(|count| {
        let value = (below / step).min(255) as u8;
        below += count;
        value
    });
    for value in plane.iter_mut() {
        *value = table[usize::from(*value)];
    }
}
