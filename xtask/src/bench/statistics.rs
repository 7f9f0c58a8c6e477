//! Medians of few values.

/// The middle of some measurements and how far they reach.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
}

impl Spread {
    /// `None` where nothing was measured.
    pub(super) fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len().is_multiple_of(2) {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        } else {
            sorted[middle]
        };
        Some(Self { median, min, max })
    }
}

/// The median of `ours[i] / theirs[i]`: what was measured in the same round is compared, so that a
/// slow minute of the machine falls on both. `None` where no round has both.
pub(super) fn median_ratio(ours: &[f64], theirs: &[f64]) -> Option<f64> {
    let ratios: Vec<_> = ours.iter().zip(theirs).map(|(a, b)| a / b).collect();
    Spread::of(&ratios).map(|spread| spread.median)
}

/// The mean of ratios: twice as much and half as much are as much. `None` where there is none.
pub(super) fn geometric_mean(ratios: &[f64]) -> Option<f64> {
    let logarithms: f64 = ratios.iter().map(|ratio| ratio.ln()).sum();
    (!ratios.is_empty()).then(|| (logarithms / ratios.len() as f64).exp())
}

/// The value below which the share `part` of `values` lies, between the two nearest of them. `None`
/// where there are none.
pub(super) fn percentile(values: &[f64], part: f64) -> Option<f64> {
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
    fn the_median_is_the_middle_or_between_the_two_middles() {
        let median = |values: &[f64]| Spread::of(values).map(|spread| spread.median);
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 9.0]), Some(3.0));
        let spread = Spread::of(&[9.0, 1.0, 2.0]).unwrap();
        assert_eq!((spread.min, spread.max), (1.0, 9.0));
    }

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
