//! The shapes of the digits: for each, several ways in which people write it.
//!
//! Coordinates are fractions of the digit's box: x to the right, y down, the middle at
//! (0.5, 0.5).

/// A stroke of the pen through its points.
pub(super) struct Stroke {
    pub(super) path: Path,
    pub(super) points: &'static [(f32, f32)],
}

/// How a stroke goes from point to point.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Path {
    /// Along a Catmull-Rom curve.
    Smooth,
    /// Straight, with corners.
    Straight,
}

/// One way to write a digit.
pub(super) type Style = &'static [Stroke];

const fn smooth(points: &'static [(f32, f32)]) -> Stroke {
    Stroke {
        path: Path::Smooth,
        points,
    }
}

const fn straight(points: &'static [(f32, f32)]) -> Stroke {
    Stroke {
        path: Path::Straight,
        points,
    }
}

/// The styles of digit `0..10`.
pub(super) fn styles(digit: u8) -> &'static [Style] {
    match digit {
        0 => ZERO,
        1 => ONE,
        2 => TWO,
        3 => THREE,
        4 => FOUR,
        5 => FIVE,
        6 => SIX,
        7 => SEVEN,
        8 => EIGHT,
        _ => NINE,
    }
}

#[rustfmt::skip]
const ZERO: &[Style] = &[
    // Round.
    &[smooth(&[(0.5, 0.05), (0.25, 0.2), (0.17, 0.5), (0.25, 0.8), (0.5, 0.95), (0.75, 0.8),
        (0.83, 0.5), (0.75, 0.2), (0.5, 0.05)])],
    // Narrow, its ends crossing.
    &[smooth(&[(0.62, 0.1), (0.4, 0.08), (0.27, 0.3), (0.25, 0.65), (0.4, 0.92), (0.6, 0.9),
        (0.74, 0.65), (0.72, 0.3), (0.56, 0.07), (0.42, 0.1)])],
    // Begun at the side.
    &[smooth(&[(0.3, 0.16), (0.2, 0.42), (0.26, 0.8), (0.52, 0.95), (0.77, 0.72), (0.76, 0.3),
        (0.55, 0.06), (0.3, 0.16)])],
];

#[rustfmt::skip]
const ONE: &[Style] = &[
    // A bar.
    &[straight(&[(0.5, 0.05), (0.5, 0.95)])],
    // With a flag.
    &[straight(&[(0.33, 0.26), (0.54, 0.06), (0.54, 0.95)])],
    // With flag and foot.
    &[straight(&[(0.34, 0.24), (0.53, 0.06), (0.53, 0.94)]),
      straight(&[(0.34, 0.94), (0.72, 0.94)])],
];

#[rustfmt::skip]
const TWO: &[Style] = &[
    // Arch and base.
    &[smooth(&[(0.22, 0.25), (0.36, 0.08), (0.6, 0.06), (0.76, 0.24), (0.67, 0.48), (0.42, 0.74),
        (0.2, 0.93)]),
      straight(&[(0.2, 0.93), (0.82, 0.93)])],
    // With a loop at the foot.
    &[smooth(&[(0.22, 0.2), (0.45, 0.05), (0.72, 0.17), (0.7, 0.42), (0.46, 0.72), (0.25, 0.92),
        (0.19, 0.8), (0.35, 0.76), (0.55, 0.9), (0.82, 0.87)])],
    // Flat arch.
    &[smooth(&[(0.2, 0.14), (0.5, 0.06), (0.78, 0.16), (0.68, 0.42), (0.24, 0.92)]),
      smooth(&[(0.24, 0.92), (0.5, 0.88), (0.8, 0.93)])],
];

#[rustfmt::skip]
const THREE: &[Style] = &[
    // Two bows that meet at a point.
    &[smooth(&[(0.22, 0.16), (0.45, 0.05), (0.72, 0.17), (0.67, 0.38), (0.42, 0.47)]),
      smooth(&[(0.42, 0.47), (0.72, 0.55), (0.79, 0.75), (0.55, 0.95), (0.2, 0.85)])],
    // Flat top.
    &[straight(&[(0.22, 0.07), (0.75, 0.07), (0.45, 0.41)]),
      smooth(&[(0.45, 0.41), (0.74, 0.52), (0.78, 0.76), (0.52, 0.95), (0.2, 0.83)])],
    // In one go, with a small loop in the middle.
    &[smooth(&[(0.24, 0.12), (0.55, 0.05), (0.74, 0.2), (0.6, 0.42), (0.42, 0.48), (0.6, 0.5),
        (0.78, 0.68), (0.66, 0.91), (0.4, 0.95), (0.2, 0.86)])],
];

#[rustfmt::skip]
const FOUR: &[Style] = &[
    // Open.
    &[straight(&[(0.3, 0.08), (0.2, 0.56), (0.83, 0.54)]),
      straight(&[(0.66, 0.12), (0.62, 0.95)])],
    // Closed, in one go.
    &[straight(&[(0.63, 0.95), (0.63, 0.05), (0.18, 0.66), (0.86, 0.66)])],
    // Cup and bar.
    &[smooth(&[(0.24, 0.08), (0.21, 0.36), (0.34, 0.53), (0.7, 0.46)]),
      straight(&[(0.72, 0.07), (0.64, 0.95)])],
];

#[rustfmt::skip]
const FIVE: &[Style] = &[
    // Corners, then the bow.
    &[straight(&[(0.76, 0.07), (0.3, 0.07), (0.27, 0.46)]),
      smooth(&[(0.27, 0.46), (0.5, 0.38), (0.75, 0.52), (0.76, 0.76), (0.52, 0.95), (0.22, 0.86)])],
    // The roof written last.
    &[smooth(&[(0.32, 0.1), (0.26, 0.43), (0.55, 0.42), (0.77, 0.62), (0.66, 0.88), (0.42, 0.95),
        (0.2, 0.88)]),
      straight(&[(0.32, 0.1), (0.78, 0.06)])],
    // In one curve.
    &[smooth(&[(0.78, 0.08), (0.42, 0.1), (0.28, 0.4), (0.5, 0.44), (0.72, 0.6), (0.68, 0.86),
        (0.42, 0.95), (0.2, 0.82)])],
];

#[rustfmt::skip]
const SIX: &[Style] = &[
    // Curved stem.
    &[smooth(&[(0.68, 0.07), (0.42, 0.22), (0.25, 0.5), (0.25, 0.8), (0.47, 0.95), (0.72, 0.84),
        (0.73, 0.63), (0.53, 0.52), (0.33, 0.62), (0.26, 0.76)])],
    // Upright stem, small bowl.
    &[smooth(&[(0.45, 0.05), (0.3, 0.38), (0.23, 0.72), (0.38, 0.95), (0.64, 0.9), (0.7, 0.7),
        (0.52, 0.6), (0.3, 0.72)])],
    // Wide bowl.
    &[smooth(&[(0.74, 0.14), (0.5, 0.07), (0.26, 0.32), (0.19, 0.65), (0.4, 0.94), (0.72, 0.88),
        (0.8, 0.64), (0.58, 0.47), (0.32, 0.54), (0.2, 0.7)])],
];

#[rustfmt::skip]
const SEVEN: &[Style] = &[
    // Plain.
    &[straight(&[(0.2, 0.08), (0.8, 0.08), (0.42, 0.95)])],
    // With a bar.
    &[straight(&[(0.2, 0.09), (0.8, 0.07), (0.44, 0.95)]),
      straight(&[(0.36, 0.5), (0.74, 0.47)])],
    // With a serif and a bent stem.
    &[straight(&[(0.2, 0.22), (0.22, 0.09), (0.8, 0.08)]),
      smooth(&[(0.8, 0.08), (0.62, 0.38), (0.51, 0.68), (0.47, 0.95)])],
];

#[rustfmt::skip]
const EIGHT: &[Style] = &[
    // One crossing line.
    &[smooth(&[(0.7, 0.18), (0.5, 0.05), (0.3, 0.18), (0.36, 0.36), (0.52, 0.47), (0.7, 0.62),
        (0.74, 0.8), (0.5, 0.95), (0.26, 0.8), (0.32, 0.6), (0.5, 0.46), (0.66, 0.34),
        (0.7, 0.18)])],
    // Two rings.
    &[smooth(&[(0.5, 0.05), (0.31, 0.15), (0.31, 0.36), (0.5, 0.45), (0.69, 0.36), (0.69, 0.15),
        (0.5, 0.05)]),
      smooth(&[(0.5, 0.45), (0.26, 0.58), (0.25, 0.82), (0.5, 0.95), (0.75, 0.82), (0.74, 0.58),
        (0.5, 0.45)])],
    // Begun at the top right, its ends apart.
    &[smooth(&[(0.72, 0.12), (0.46, 0.06), (0.3, 0.22), (0.46, 0.42), (0.68, 0.6), (0.68, 0.86),
        (0.44, 0.95), (0.27, 0.78), (0.4, 0.56), (0.62, 0.36), (0.74, 0.14)])],
];

#[rustfmt::skip]
const NINE: &[Style] = &[
    // Ring and straight stem.
    &[smooth(&[(0.7, 0.24), (0.5, 0.06), (0.28, 0.19), (0.28, 0.4), (0.48, 0.52), (0.67, 0.41),
        (0.7, 0.24)]),
      straight(&[(0.71, 0.14), (0.66, 0.95)])],
    // Curled tail.
    &[smooth(&[(0.72, 0.2), (0.5, 0.05), (0.27, 0.22), (0.32, 0.45), (0.55, 0.49), (0.71, 0.33),
        (0.75, 0.14)]),
      smooth(&[(0.75, 0.14), (0.75, 0.5), (0.67, 0.8), (0.48, 0.95), (0.26, 0.88)])],
    // In one go, slanted.
    &[smooth(&[(0.68, 0.16), (0.44, 0.07), (0.26, 0.28), (0.4, 0.47), (0.64, 0.36), (0.72, 0.12),
        (0.66, 0.5), (0.54, 0.95)])],
];
