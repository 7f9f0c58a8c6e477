//! The numbers of an axis.

use crate::units;

/// Numbers beyond this cannot be subtracted from each other any more.
const LARGEST: f64 = 1e300;

/// How the numbers of an axis are written.
///
/// ```
/// use everburn_record::svg::{Axis, Labels};
///
/// let axis = Axis::between(0.0, 2e6, Labels::Steps);
/// assert_eq!(axis.ticks[1], (500_000.0, "500,000".to_owned()));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Labels {
    /// As they are.
    Numbers,
    /// Steps: `12,000`, `3M`.
    Steps,
    /// Seconds: `30 s`, `5 min`, `2 h`.
    Durations,
}

/// An axis: what is at its two ends, and where it has numbers.
///
/// ```
/// use everburn_record::svg::Axis;
///
/// let axis = Axis::around(0.13, 2.31);
/// assert_eq!((axis.low, axis.high, axis.place(1.25)), (0.0, 2.5, 0.5));
/// let labels: Vec<&str> = axis.ticks.iter().map(|(_, label)| label.as_str()).collect();
/// assert_eq!(labels, ["0", "0.5", "1.0", "1.5", "2.0", "2.5"]);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    /// What is at its beginning.
    pub low: f64,
    /// What is at its end.
    pub high: f64,
    /// Equal distances are equal factors.
    pub logarithmic: bool,
    /// Values and what is written there.
    pub ticks: Vec<(f64, String)>,
}

impl Axis {
    /// A linear axis of time from 0 to this many seconds, with about `count` numbers, all in one unit.
    pub fn of_seconds(high: f64, count: f64) -> Self {
        // Of more seconds than that nobody wants the unit.
        let high = if high > 0.0 { high.min(1e12) } else { 0.0 };
        let step = round_step(high / count);
        // A quotient of two such numbers may be a little less than it should.
        let last = (high / step + 1e-9).floor().clamp(0.0, 1000.0) as u32;
        let ticks = (0..=last).map(|number| {
            let value = f64::from(number) * step;
            (value, units::seconds_beside(value, high))
        });
        Self {
            low: 0.0,
            high,
            logarithmic: false,
            ticks: ticks.collect(),
        }
    }

    /// A linear axis from one round number to another, around `low` and `high`.
    pub fn around(low: f64, high: f64) -> Self {
        let (low, high) = ordered(low, high);
        let step = round_step((high - low) / 5.0);
        let (first, last) = ((low / step).floor(), (high / step).ceil());
        let count = (last - first).clamp(1.0, 20.0) as u32;
        let ticks = (0..=count).map(|number| {
            let value = (first + f64::from(number)) * step;
            (value, number_label(value, step))
        });
        Self {
            low: first * step,
            high: (first + f64::from(count)) * step,
            logarithmic: false,
            ticks: ticks.collect(),
        }
    }

    /// A linear axis that ends where the values do, with round numbers between.
    pub fn between(low: f64, high: f64, labels: Labels) -> Self {
        let (low, high) = match low < high {
            true => (low.max(-LARGEST), high.min(LARGEST)),
            // One point is in the middle.
            false => (low - 1.0, low + 1.0),
        };
        let step = match labels {
            Labels::Numbers => round_step((high - low) / 5.0),
            Labels::Steps => round_step((high - low) / 5.0).max(1.0),
            Labels::Durations => duration_step((high - low) / 5.0),
        };
        let first = (low / step).ceil();
        let last = (high / step).floor();
        let count = if last >= first {
            (last - first).min(20.0) as u32 + 1
        } else {
            0
        };
        let ticks = (0..count).map(|number| {
            let value = (first + f64::from(number)) * step;
            let label = match labels {
                Labels::Numbers => number_label(value, step),
                Labels::Steps => step_label(value),
                Labels::Durations => duration_label(value),
            };
            (value, label)
        });
        Self {
            low,
            high,
            logarithmic: false,
            ticks: ticks.collect(),
        }
    }

    /// A logarithmic axis around `low` and `high`, which are positive.
    pub fn logarithmic(low: f64, high: f64) -> Self {
        let (low, high) = (low.clamp(1e-300, LARGEST), high.clamp(1e-300, LARGEST));
        let (low, high) = match low < high {
            true => (low, high),
            false => (low / 2.0, low * 2.0),
        };
        let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
        let decades = last - first;
        if high / low < 5.0 {
            // Less than a decade has few powers in it: round numbers of a linear axis do better.
            let linear = Self::between(low, high, Labels::Numbers);
            return Self {
                logarithmic: true,
                ..linear
            };
        }
        let digits: &[f64] = if decades <= 3 {
            &[1.0, 2.0, 5.0]
        } else {
            &[1.0]
        };
        let every = (decades / 8).max(1);
        let exponents = (first..=last).step_by(every as usize);
        let values = exponents.flat_map(|exponent| {
            digits
                .iter()
                .map(move |digit| digit * 10_f64.powi(exponent))
        });
        let inside = values.filter(|value| (low * 0.999..=high * 1.001).contains(value));
        Self {
            low,
            high,
            logarithmic: true,
            ticks: inside
                .map(|value| (value, units::significant(value, 1)))
                .collect(),
        }
    }

    /// Where a value is, from 0 to 1.
    pub fn place(&self, value: f64) -> f64 {
        let place = match self.logarithmic {
            true => (value.max(1e-300) / self.low).ln() / (self.high / self.low).ln(),
            false => (value - self.low) / (self.high - self.low),
        };
        if place.is_finite() {
            place.clamp(0.0, 1.0)
        } else {
            0.0
        }
    }
}

/// Two ends that can be told apart.
fn ordered(low: f64, high: f64) -> (f64, f64) {
    if !(low.is_finite() && high.is_finite() && low <= high) {
        return (0.0, 1.0);
    }
    let (low, high) = (low.max(-LARGEST), high.min(LARGEST));
    // So close to each other that the numbers of the axis would be the same.
    let apart = (high - low) > 1e-9 * high.abs().max(low.abs());
    match (apart, low == 0.0) {
        (true, _) => (low, high),
        (false, true) => (0.0, 1.0),
        (false, false) => (low - 0.1 * low.abs(), low + 0.1 * low.abs()),
    }
}

/// The next of 1, 2, 5, 10, 20, ... that is no less.
fn round_step(least: f64) -> f64 {
    let power = 10_f64.powf(least.max(1e-290).log10().floor());
    let digit = [1.0, 2.0, 5.0]
        .into_iter()
        .find(|digit| digit * power >= least * 0.999_999);
    digit.unwrap_or(10.0) * power
}

fn duration_step(least: f64) -> f64 {
    const MINUTE: f64 = 60.0;
    const HOUR: f64 = 3600.0;
    const DAY: f64 = 86_400.0;
    if least <= 30.0 {
        return [15.0, 30.0]
            .into_iter()
            .find(|step| least > 10.0 && *step >= least)
            .unwrap_or_else(|| round_step(least));
    }
    let minutes = [1.0, 2.0, 5.0, 10.0, 15.0, 30.0].map(|minutes| minutes * MINUTE);
    let hours = [1.0, 2.0, 3.0, 6.0, 12.0].map(|hours| hours * HOUR);
    let short = minutes.into_iter().chain(hours).find(|step| *step >= least);
    short.unwrap_or_else(|| round_step(least / DAY) * DAY)
}

fn number_label(value: f64, step: f64) -> String {
    // What is left of a difference of two numbers is none.
    if value.abs() < step * 1e-6 {
        return "0".to_owned();
    }
    let digits = -(step * 1.000_001).log10().floor();
    match value.abs() {
        large if large >= 1e6 || step < 1e-5 => {
            let digits = (large.log10().floor() + digits).clamp(0.0, 8.0) as usize + 1;
            units::significant(value, digits)
        }
        1000.0.. if digits <= 0.0 => {
            let sign = if value < 0.0 { "-" } else { "" };
            format!("{sign}{}", units::count(value.abs().round() as u64))
        }
        _ => format!("{value:.*}", digits.max(0.0) as usize),
    }
}

fn step_label(value: f64) -> String {
    let whole = value.max(0.0) as u64;
    match whole {
        1_000_000.. if whole.is_multiple_of(100_000) => format!("{}M", value / 1e6),
        _ => units::count(whole),
    }
}

fn duration_label(seconds: f64) -> String {
    let (minutes, hours, days) = (seconds / 60.0, seconds / 3600.0, seconds / 86_400.0);
    match seconds.abs() {
        0.0 => "0".to_owned(),
        ..60.0 => format!("{} s", units::significant(seconds, 3)),
        ..3600.0 if minutes.fract() == 0.0 => format!("{minutes} min"),
        ..3600.0 => format!("{} min {} s", minutes.floor(), (seconds % 60.0).round()),
        ..172_800.0 if hours.fract() == 0.0 => format!("{hours} h"),
        ..172_800.0 => format!("{} h {} min", hours.floor(), (minutes % 60.0).round()),
        _ => format!("{} d", units::significant(days, 4)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shown(axis: &Axis) -> String {
        let labels = axis.ticks.iter().map(|(_, label)| label.as_str());
        labels.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn numbers_are_round() {
        for (axis, expected) in [
            (Axis::around(0.0, 0.0031), "0 0.001 0.002 0.003 0.004"),
            (Axis::around(98.0, 98.0), "85 90 95 100 105 110"),
            (Axis::between(10.0, 2580.0, Labels::Steps), "1,000 2,000"),
            (Axis::between(0.0, 5e6, Labels::Steps), "0 1M 2M 3M 4M 5M"),
            (
                Axis::between(0.0, 1000.0, Labels::Durations),
                "0 5 min 10 min 15 min",
            ),
            (Axis::logarithmic(0.013, 2.3), "0.02 0.05 0.1 0.2 0.5 1 2"),
            (Axis::logarithmic(2.0, 3.0), "2.0 2.2 2.4 2.6 2.8 3.0"),
        ] {
            assert_eq!(shown(&axis), expected);
        }
    }

    #[test]
    fn an_axis_of_time_has_round_numbers_in_one_unit() {
        let shown_of = |high, count| shown(&Axis::of_seconds(high, count));
        assert_eq!(shown_of(33.0, 10.0), "0 s 5 s 10 s 15 s 20 s 25 s 30 s");
        assert_eq!(shown_of(0.0123, 6.0), "0 ms 5 ms 10 ms");
        assert_eq!(shown_of(0.3, 3.0), "0 ms 100 ms 200 ms 300 ms");
        assert_eq!(shown_of(0.0, 10.0), "0 s");
    }

    #[test]
    fn places_lie_between_the_ends() {
        let axis = Axis::logarithmic(0.01, 100.0);
        assert!((axis.place(1.0) - 0.5).abs() < 1e-12);
        assert_eq!((axis.place(0.0), axis.place(f64::INFINITY)), (0.0, 0.0));
        let axis = Axis::around(0.0, 10.0);
        assert_eq!((axis.place(-1.0), axis.place(11.0)), (0.0, 1.0));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn any_numbers_have_an_axis(low in any::<f64>(), high in any::<f64>()) {
            let axes = [
                Axis::around(low, high),
                Axis::between(low.abs(), high.abs(), Labels::Durations),
                Axis::between(low, high, Labels::Steps),
                Axis::logarithmic(low.abs(), high.abs()),
                Axis::of_seconds(high, 10.0),
            ];
            for axis in axes {
                prop_assert!(axis.ticks.len() <= 40, "{axis:?}");
                for value in [low, high, axis.low, axis.high] {
                    prop_assert!((0.0..=1.0).contains(&axis.place(value)));
                }
                prop_assert!(axis.ticks.iter().all(|(_, label)| label.len() < 30), "{axis:?}");
            }
        }
    }
}
