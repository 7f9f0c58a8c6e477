//! Writing a digit: from strokes to ink on 28x28 pixels.

use super::glyphs::{self, Path, Stroke};
use super::random::Stream;
use crate::{IMAGE_HEIGHT, IMAGE_PIXELS, IMAGE_WIDTH};

/// Ink by pixel, 0 to 1, `[28, 28]`.
pub(super) type Ink = [f32; IMAGE_PIXELS];

/// Height and width of a digit's box in pixels, before scaling: MNIST's.
const BOX: f32 = 20.0;

/// Straight pieces that a curve between two points is drawn with.
const PIECES: usize = 6;

// How far hands differ. Tuned so that a linear classifier stays well below 92 % (held by
// `tests/difficulty.rs`) while a small convolutional network passes 97 % with ease.

/// Most that a control point is moved, in parts of the digit's box.
const JITTER: f32 = 0.08;
/// Most that a digit is turned, in radians.
const TURN: f32 = 0.55;
/// Most that its top leans to a side, in parts of half its height.
const SHEAR: f32 = 0.6;
/// Least and most that it is stretched, in each direction.
const SCALE: (f32, f32) = (0.68, 1.1);
/// Most that it is shifted, in pixels.
const SHIFT: f32 = 2.5;
/// Most that a point of it is moved by the bend, in pixels.
const BEND: f32 = 1.5;
/// Least and most radius of the pen, in pixels.
const RADIUS: (f32, f32) = (0.7, 1.6);

/// Writes `digit` with a random hand.
pub(super) fn write(digit: u8, random: &mut Stream) -> Ink {
    let styles = glyphs::styles(digit);
    let style = styles[random.below(styles.len())];
    let placement = Placement::random(random);
    let bend = Bend::random(random);
    let radius = random.between(RADIUS.0, RADIUS.1);
    let mut ink = [0.0; IMAGE_PIXELS];
    for stroke in style {
        // A hand presses unevenly: the line's width changes from its begin to its end.
        let (begin, end) = (
            radius * random.between(0.85, 1.15),
            radius * random.between(0.85, 1.15),
        );
        let line: Vec<Point> = flatten(stroke, random)
            .into_iter()
            .map(|point| bend.apply(placement.apply(point)))
            .collect();
        let count = line.len() as f32;
        for (step, ends) in line.windows(2).enumerate() {
            let radius = begin + (end - begin) * (step as f32 / count);
            draw_segment(&mut ink, ends[0], ends[1], radius);
        }
    }
    ink
}

#[derive(Clone, Copy)]
pub(super) struct Point {
    pub(super) x: f32,
    pub(super) y: f32,
}

/// The stroke as a line of straight pieces, its control points moved a little.
fn flatten(stroke: &Stroke, random: &mut Stream) -> Vec<Point> {
    let mut jittered = |&(x, y): &(f32, f32)| Point {
        x: x + JITTER * random.bell(),
        y: y + JITTER * random.bell(),
    };
    let points: Vec<Point> = stroke.points.iter().map(&mut jittered).collect();
    let last = points.len() - 1;
    let mut line = vec![points[0]];
    for from in 0..last {
        let (a, b) = (points[from], points[from + 1]);
        // The curve's ends continue straight.
        let (before, after) = (points[from.saturating_sub(1)], points[(from + 2).min(last)]);
        for piece in 1..=PIECES {
            let t = piece as f32 / PIECES as f32;
            line.push(match stroke.path {
                Path::Straight => Point {
                    x: a.x + (b.x - a.x) * t,
                    y: a.y + (b.y - a.y) * t,
                },
                Path::Smooth => Point {
                    x: catmull_rom(before.x, a.x, b.x, after.x, t),
                    y: catmull_rom(before.y, a.y, b.y, after.y, t),
                },
            });
        }
    }
    line
}

/// The cubic that passes through `a` (t = 0) and `b` (t = 1) with the slopes of its neighbours.
fn catmull_rom(before: f32, a: f32, b: f32, after: f32, t: f32) -> f32 {
    let linear = b - before;
    let square = 2.0 * before - 5.0 * a + 4.0 * b - after;
    let cube = 3.0 * (a - b) + after - before;
    a + 0.5 * t * (linear + t * (square + t * cube))
}

/// From the digit's box to pixels: scale, shear, rotation, shift.
struct Placement {
    // Row-major 2x2 matrix, then the middle's place.
    matrix: [f32; 4],
    middle: Point,
}

impl Placement {
    fn random(random: &mut Stream) -> Self {
        let scale_x = BOX * random.between(SCALE.0, SCALE.1);
        let scale_y = BOX * random.between(SCALE.0, SCALE.1);
        let shear = SHEAR * random.bell();
        // By the half angle's tangent, a rotation needs neither sine nor cosine.
        let half = 0.5 * TURN * random.bell();
        let (cos, sin) = (
            (1.0 - half * half) / (1.0 + half * half),
            2.0 * half / (1.0 + half * half),
        );
        // Rotation * shear * scale.
        let matrix = [
            cos * scale_x,
            (cos * shear - sin) * scale_y,
            sin * scale_x,
            (sin * shear + cos) * scale_y,
        ];
        let middle = Point {
            x: (IMAGE_WIDTH - 1) as f32 / 2.0 + SHIFT * random.signed(),
            y: (IMAGE_HEIGHT - 1) as f32 / 2.0 + SHIFT * random.signed(),
        };
        Self { matrix, middle }
    }

    fn apply(&self, point: Point) -> Point {
        let (x, y) = (point.x - 0.5, point.y - 0.5);
        let [xx, xy, yx, yy] = self.matrix;
        Point {
            x: self.middle.x + xx * x + xy * y,
            y: self.middle.y + yx * x + yy * y,
        }
    }
}

/// A smooth random field that moves every point by a pixel or so: paper is not a grid of pixels.
struct Bend {
    moves: [[Point; Self::KNOTS]; Self::KNOTS],
}

impl Bend {
    const KNOTS: usize = 5;
    /// Pixels from knot to knot.
    const PITCH: f32 = 7.0;

    fn random(random: &mut Stream) -> Self {
        let strength = BEND * random.unit();
        let mut knot = || Point {
            x: strength * random.signed(),
            y: strength * random.signed(),
        };
        Self {
            moves: std::array::from_fn(|_| std::array::from_fn(|_| knot())),
        }
    }

    fn apply(&self, point: Point) -> Point {
        let (column, across) = Self::cell(point.x);
        let (row, down) = Self::cell(point.y);
        let mix = |of: fn(&Point) -> f32| {
            let along = |row: &[Point; Self::KNOTS]| {
                let (left, right) = (of(&row[column]), of(&row[column + 1]));
                left + (right - left) * across
            };
            let (above, below) = (along(&self.moves[row]), along(&self.moves[row + 1]));
            above + (below - above) * down
        };
        Point {
            x: point.x + mix(|knot| knot.x),
            y: point.y + mix(|knot| knot.y),
        }
    }

    /// The knot before `coordinate`, and how far it is to the next one, eased.
    fn cell(coordinate: f32) -> (usize, f32) {
        let place = (coordinate / Self::PITCH).clamp(0.0, (Self::KNOTS - 1) as f32);
        let knot = (place as usize).min(Self::KNOTS - 2);
        let t = place - knot as f32;
        (knot, t * t * (3.0 - 2.0 * t))
    }
}

/// Inks what is within `radius` of the segment from `a` to `b`, with an edge of one pixel.
pub(super) fn draw_segment(ink: &mut Ink, a: Point, b: Point, radius: f32) {
    let reach = radius + 0.5;
    let pixels = |low: f32, high: f32, size: usize| {
        // A negative number becomes 0 in `as`.
        let (first, end) = (
            (low - reach).ceil() as usize,
            (high + reach + 1.0).floor() as usize,
        );
        first..end.min(size)
    };
    let rows = pixels(a.y.min(b.y), a.y.max(b.y), IMAGE_HEIGHT);
    let columns = pixels(a.x.min(b.x), a.x.max(b.x), IMAGE_WIDTH);
    let (dx, dy) = (b.x - a.x, b.y - a.y);
    let square = (dx * dx + dy * dy).max(1e-9);
    for row in rows {
        for column in columns.clone() {
            let (x, y) = (column as f32 - a.x, row as f32 - a.y);
            let along = ((x * dx + y * dy) / square).clamp(0.0, 1.0);
            let (off_x, off_y) = (x - along * dx, y - along * dy);
            let distance = (off_x * off_x + off_y * off_y).sqrt();
            let covered = (reach - distance).clamp(0.0, 1.0);
            let pixel = &mut ink[row * IMAGE_WIDTH + column];
            *pixel = pixel.max(covered);
        }
    }
}
