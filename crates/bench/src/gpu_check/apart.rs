//! How far numbers are apart, and the losses that a training has recorded.

use std::fmt::Display;
use std::path::Path;

use everburn::train::{MetricKind, MetricLine};

use crate::failure::Failure;

/// The losses of the steps that a run has recorded.
pub(super) fn read(run: &Path) -> Result<Vec<f64>, Failure> {
    let path = run.join("metrics.jsonl");
    let refuse = |error: &dyn Display| Failure::usage(format!("{}: {error}", path.display()));
    let text = std::fs::read_to_string(&path).map_err(|error| refuse(&error))?;
    let lines = text.lines().map(serde_json::from_str::<MetricLine>);
    let lines = lines.collect::<Result<Vec<_>, _>>();
    let lines = lines.map_err(|error| refuse(&error))?.into_iter();
    let steps = lines.filter(|line| line.kind == MetricKind::Step);
    Ok(steps.map(|line| line.loss).collect())
}

/// The largest relative difference of two rows of losses, and the step at which it is, counted from 1; `None` if
/// they have different lengths or none.
pub(super) fn furthest(one: &[f64], other: &[f64]) -> Option<(f64, usize)> {
    if one.len() != other.len() {
        return None;
    }
    let apart = one.iter().zip(other).enumerate();
    let apart = apart.map(|(index, (a, b))| ((a - b).abs() / a.abs().max(b.abs()), index + 1));
    // What is not a number is further than any.
    apart.reduce(|worst, next| match worst.0.is_nan() || next.0 <= worst.0 {
        true => worst,
        false => next,
    })
}

/// The largest difference of two rows of numbers, as a part of the largest number on the processor.
pub(super) fn difference(here: &[f64], there: &[f64]) -> f64 {
    if here.len() != there.len() {
        return f64::NAN;
    }
    let largest = here.iter().fold(0.0_f64, |largest, x| largest.max(x.abs()));
    let mut apart = 0.0_f64;
    for (one, other) in here.iter().zip(there) {
        let between = (one - other).abs();
        if between.is_nan() {
            return f64::NAN;
        }
        apart = apart.max(between);
    }
    apart / largest.max(f64::MIN_POSITIVE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_furthest_step_is_named() {
        assert_eq!(
            furthest(&[2.0, 1.0, 4.0], &[2.0, 1.0, 3.0]),
            Some((0.25, 3))
        );
        assert_eq!(furthest(&[2.0], &[2.0, 1.0]), None);
        assert_eq!(furthest(&[], &[]), None);
        let (apart, step) = furthest(&[1.0, f64::NAN, 9.0], &[1.0, 1.0, 1.0]).unwrap();
        assert!(apart.is_nan() && step == 2, "{apart} {step}");
    }

    #[test]
    fn differences_are_parts_of_the_largest_number() {
        assert_eq!(difference(&[1.0, -4.0], &[1.0, -4.0]), 0.0);
        assert_eq!(difference(&[1.0, -4.0], &[1.5, -4.0]), 0.125);
        assert!(difference(&[1.0], &[f64::NAN]).is_nan());
        assert!(difference(&[1.0], &[1.0, 2.0]).is_nan());
    }
}
