//! What is not the digit: clutter, blur, contrast and noise. Nothing here uses the label.

use super::pen::{Ink, Point, draw_segment};
use super::random::Stream;
use crate::{IMAGE_HEIGHT, IMAGE_PIXELS, IMAGE_WIDTH};

/// Most strokes of clutter.
const CLUTTER_STROKES: usize = 3;
/// Most that such a stroke is long in each direction, in pixels.
const CLUTTER_LENGTH: f32 = 5.0;
/// Least and most ink of such a stroke; a digit's is 1.
const CLUTTER_INK: (f32, f32) = (0.2, 0.65);
/// Least and most brightness of full ink, where 1 is 255.
const CONTRAST: (f32, f32) = (0.55, 1.0);
/// Most blur: 0 none, 1 the mean of 3x3 pixels.
const BLUR: f32 = 0.6;
/// Most that noise changes a pixel, of 255.
const NOISE: f32 = 50.0;

/// The photograph of a digit: `digit` over clutter, out of focus, under- or overexposed, noisy.
pub(super) fn develop(digit: &Ink, random: &mut Stream) -> [u8; IMAGE_PIXELS] {
    let mut ink = clutter(random);
    for (below, &above) in ink.iter_mut().zip(digit) {
        *below = below.max(above);
    }
    let ink = blur(&ink, BLUR * random.unit());
    let white = 255.0 * random.between(CONTRAST.0, CONTRAST.1);
    let noise = NOISE * random.unit();
    let mut grain = [0; 2 * IMAGE_PIXELS];
    random.fill(&mut grain);
    let (grain, _) = grain.as_chunks::<2>();
    std::array::from_fn(|pixel| {
        // The sum of two uniform bytes: a triangle around 255.
        let [a, b] = grain[pixel].map(f32::from);
        let value = white * ink[pixel] + noise * ((a + b) / 255.0 - 1.0);
        rounded(value)
    })
}

/// A few short, faint strokes anywhere.
fn clutter(random: &mut Stream) -> Ink {
    let mut all: Ink = [0.0; IMAGE_PIXELS];
    for _ in 0..random.below(CLUTTER_STROKES + 1) {
        let from = Point {
            x: random.between(0.0, (IMAGE_WIDTH - 1) as f32),
            y: random.between(0.0, (IMAGE_HEIGHT - 1) as f32),
        };
        let to = Point {
            x: from.x + CLUTTER_LENGTH * random.signed(),
            y: from.y + CLUTTER_LENGTH * random.signed(),
        };
        let radius = random.between(0.4, 1.1);
        let strength = random.between(CLUTTER_INK.0, CLUTTER_INK.1);
        let mut one: Ink = [0.0; IMAGE_PIXELS];
        draw_segment(&mut one, from, to, radius);
        for (sum, covered) in all.iter_mut().zip(one) {
            *sum = sum.max(strength * covered);
        }
    }
    all
}

/// Mixes every pixel with the mean of its 3x3 neighbourhood, by `strength` 0 to 1. Outside the
/// frame there is no ink.
fn blur(ink: &Ink, strength: f32) -> Ink {
    const FRAMED: usize = IMAGE_WIDTH + 2;
    let mut framed = [0.0; FRAMED * (IMAGE_HEIGHT + 2)];
    let (rows, _) = ink.as_chunks::<IMAGE_WIDTH>();
    for (row, pixels) in rows.iter().enumerate() {
        framed[(row + 1) * FRAMED + 1..][..IMAGE_WIDTH].copy_from_slice(pixels);
    }
    let mut blurred = [0.0; IMAGE_PIXELS];
    let (lines, _) = blurred.as_chunks_mut::<IMAGE_WIDTH>();
    for (row, (line, pixels)) in lines.iter_mut().zip(rows).enumerate() {
        let mut sums = [0.0; IMAGE_WIDTH];
        for down in 0..3 {
            for across in 0..3 {
                let neighbours = &framed[(row + down) * FRAMED + across..][..IMAGE_WIDTH];
                for (sum, neighbour) in sums.iter_mut().zip(neighbours) {
                    *sum += neighbour;
                }
            }
        }
        for ((blurred, sum), pixel) in line.iter_mut().zip(sums).zip(pixels) {
            *blurred = pixel + strength * (sum / 9.0 - pixel);
        }
    }
    blurred
}

/// `value` rounded to the nearest whole number, halves up, and at least 0 and at most 255: as `round` has it, which is a call
/// per pixel.
fn rounded(value: f32) -> u8 {
    // Cut off, 0 below it and 255 above; the rest is exact.
    let whole = value as u8;
    whole.saturating_add(u8::from(value - f32::from(whole) >= 0.5))
}

#[cfg(test)]
mod tests {
    use super::rounded;

    #[test]
    fn rounding_is_that_of_the_language() {
        let near = |value: f32| [value.next_down(), value, value.next_up()];
        let halves = (-600..=1200).flat_map(|half| near(half as f32 / 2.0));
        let others = [f32::NAN, f32::INFINITY, -f32::INFINITY, f32::MAX, f32::MIN];
        for value in halves.chain(others) {
            assert_eq!(rounded(value), value.round() as u8, "{value}");
        }
    }
}
