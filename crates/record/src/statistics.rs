//! Medians, percentiles and means of few values.

use serde::Serialize;

/// How far apart values that should be alike may be, before their median is not to be quoted.
const STEADY: f64 = 1.25;

/// The middle of some values and how far they reach.
///
/// ```
/// use everburn_record::statistics::Spread;
///
/// let spread = Spread::of(&[9.0, 1.0, 2.0]).unwrap();
/// assert_eq!((spread.median, spread.min, spread.max), (2.0, 1.0, 9.0));
/// assert!(!spread.is_steady());
/// assert_eq!(Spread::of(&[]), None);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    /// The middle one, or what is between the two middle ones.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// `None` where there are no values.
    pub fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        let middle = sorted.len() / 2;
        let median = match sorted.len() % 2 {
            0 => f64::midpoint(sorted[middle - 1], sorted[middle]),
            _ => sorted[middle],
        };
        Some(Self { median, min, max })
    }

    /// Whether the largest is no more than a quarter above the smallest.
    pub fn is_steady(&self) -> bool {
        self.max <= self.min * STEADY
    }
}

/// The middle of `values`, or what is between the two middle ones. `None` where there are none.
///
/// ```
/// use everburn_record::statistics::median;
///
/// assert_eq!(median(&[4.0, 1.0, 2.0, 9.0]), Some(3.0));
/// assert_eq!(median(&[]), None);
/// ```
pub fn median(values: &[f64]) -> Option<f64> {
    Spread::of(values).map(|spread| spread.median)
}

/// The median of `ours[i] / theirs[i]`: what was measured in the same round is compared, so that a
/// slow minute of the machine falls on both. `None` where no round has both.
pub fn median_ratio(ours: &[f64], theirs: &[f64]) -> Option<f64> {
    let ratios: Vec<_> = ours.iter().zip(theirs).map(|(a, b)| a / b).collect();
    median(&ratios)
}

/// The mean of ratios: twice as much and half as much are as much. `None` where there is none.
pub fn geometric_mean(ratios: &[f64]) -> Option<f64> {
    let logarithms: f64 = ratios.iter().map(|ratio| ratio.ln()).sum();
    (!ratios.is_empty()).then(|| (logarithms / ratios.len() as f64).exp())
}

/// The value below which the share `part` of `values` is, between the two nearest of them. `None`
/// where there are none.
pub fn percentile(values: &[f64], part: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = part.clamp(0.0, 1.0) * sorted.len().checked_sub(1)? as f64;
    let (below, above) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    Some(below + (above - below) * at.fract())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twice_and_half_as_much_are_as_much() {
        let mean = geometric_mean(&[2.0, 0.5, 8.0]).unwrap();
        assert!((mean - 2.0).abs() < 1e-12, "{mean}");
        assert_eq!(geometric_mean(&[]), None);
    }

    #[test]
    fn percentiles_lie_between_their_neighbours() {
        let values = [5.0, 1.0, 3.0, 2.0, 4.0];
        let parts = [0.0, 0.1, 0.5, 0.9, 1.0].map(|part| percentile(&values, part));
        assert_eq!(parts, [1.0, 1.4, 3.0, 4.6, 5.0].map(Some));
        assert_eq!(percentile(&[], 0.5), None);
    }

    #[test]
    fn ratios_are_taken_round_by_round() {
        // The second round was slow for both; the ratio of the medians would be 2 / 3.
        let ratio = median_ratio(&[4.0, 2.0, 1.0], &[2.0, 1.0, 4.0]);
        assert_eq!(ratio, Some(2.0));
        assert_eq!(median_ratio(&[1.0, 2.0], &[4.0]), Some(0.25));
        assert_eq!(median_ratio(&[1.0], &[]), None);
    }
}
