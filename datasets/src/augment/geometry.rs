//! What moves pixels.

/// A map from where a pixel of the result is to where it comes from. Coordinates are in pixels from the image's centre,
/// to the right and down.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Affine {
    /// `x' = a x + b y + c`
    x: [f32; 3],
    /// `y' = a x + b y + c`
    y: [f32; 3],
}

impl Affine {
    /// Left and right exchanged.
    pub(super) fn flip() -> Self {
        Self {
            x: [-1.0, 0.0, 0.0],
            y: [0.0, 1.0, 0.0],
        }
    }

    /// The image turned by this angle.
    pub(super) fn rotation(degrees: f32) -> Self {
        // By f64: its last bit may differ between machines, and is rounded away.
        let (sin, cos) = f64::from(degrees).to_radians().sin_cos();
        let (sin, cos) = (sin as f32, cos as f32);
        Self {
            x: [cos, sin, 0.0],
            y: [-sin, cos, 0.0],
        }
    }

    /// The image moved to the right and down, in pixels.
    pub(super) fn shift(across: f32, down: f32) -> Self {
        Self {
            x: [1.0, 0.0, -across],
            y: [0.0, 1.0, -down],
        }
    }

    /// Each row moved by `along` times its distance from the centre, each column by `aslant` times its own.
    pub(super) fn shear(along: f32, aslant: f32) -> Self {
        Self {
            x: [1.0, along, 0.0],
            y: [aslant, 1.0, 0.0],
        }
    }

    /// A part of the image, of these shares of its width and height, whose centre is this many pixels from the image's.
    pub(super) fn part(width: f32, height: f32, across: f32, down: f32) -> Self {
        Self {
            x: [width, 0.0, across],
            y: [0.0, height, down],
        }
    }

    /// This map of what `next` yields: the image is changed by this one first, and then by `next`.
    pub(super) fn of(self, next: Self) -> Self {
        let row = |[a, b, c]: [f32; 3]| {
            [
                a * next.x[0] + b * next.y[0],
                a * next.x[1] + b * next.y[1],
                a * next.x[2] + b * next.y[2] + c,
            ]
        };
        Self {
            x: row(self.x),
            y: row(self.y),
        }
    }

    /// The image `[channels, height, width]` with pixels from where the map says, by bilinear interpolation.
    pub(super) fn resample(&self, pixels: &[u8], [channels, height, width]: [usize; 3]) -> Vec<u8> {
        let plane = height * width;
        let mut result = vec![0; channels * plane];
        let (middle_x, middle_y) = (width as f32 / 2.0, height as f32 / 2.0);
        for row in 0..height {
            let y = row as f32 + 0.5 - middle_y;
            for column in 0..width {
                let x = column as f32 + 0.5 - middle_x;
                let at = |map: [f32; 3]| map[0] * x + map[1] * y + map[2];
                let from_x = at(self.x) + middle_x;
                let from_y = at(self.y) + middle_y;
                let is_inside =
                    (0.0..width as f32).contains(&from_x) && (0.0..height as f32).contains(&from_y);
                if !is_inside {
                    continue;
                }
                let (left, right, across) = neighbours(from_x, width);
                let (above, below, down) = neighbours(from_y, height);
                for channel in 0..channels {
                    let plane = &pixels[channel * plane..][..plane];
                    let value = |row: usize, column: usize| f32::from(plane[row * width + column]);
                    let mix = |a: f32, b: f32, share: f32| a + (b - a) * share;
                    let upper = mix(value(above, left), value(above, right), across);
                    let lower = mix(value(below, left), value(below, right), across);
                    let mixed = mix(upper, lower, down).round() as u8;
                    result[channel * height * width + row * width + column] = mixed;
                }
            }
        }
        result
    }
}

/// The pixels on both sides of a coordinate, and the second one's share. Beyond the outermost centres there is one.
fn neighbours(at: f32, side: usize) -> (usize, usize, f32) {
    let at = (at - 0.5).clamp(0.0, (side - 1) as f32);
    let first = at as usize;
    (first, (first + 1).min(side - 1), at.fract())
}
