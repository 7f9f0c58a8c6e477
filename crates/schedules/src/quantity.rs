//! Times, shares and bytes, as people read them: in drawings, and in tables of those who use this crate.

/// `seconds` with three digits and the unit that suits it.
///
/// ```
/// use everburn_schedules::quantity::time;
///
/// assert_eq!([33.0, 0.00125, 12.34e-6].map(time), ["33 s", "1.25 ms", "12.3 µs"]);
/// ```
#[must_use]
pub fn time(seconds: f64) -> String {
    time_beside(seconds, seconds)
}

/// `seconds` in the unit that suits `longest`: for numbers that stand beside each other.
pub(crate) fn time_beside(seconds: f64, longest: f64) -> String {
    let (factor, unit) = match longest.abs() {
        long if long >= 1.0 || long == 0.0 => (1.0, "s"),
        long if long >= 1e-3 => (1e3, "ms"),
        long if long >= 1e-6 => (1e6, "µs"),
        _ => (1e9, "ns"),
    };
    format!("{} {unit}", three_digits(seconds * factor))
}

/// A part of 1 in percent.
///
/// ```
/// assert_eq!(everburn_schedules::quantity::share(0.2727), "27.3 %");
/// ```
#[must_use]
pub fn share(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// `bytes` in the largest binary unit of which there is one.
///
/// ```
/// assert_eq!(everburn_schedules::quantity::bytes(1536 << 20), "1.5 GiB");
/// ```
#[must_use]
pub fn bytes(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = bytes as f64;
    let mut name = "B";
    for unit in units {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        name = unit;
    }
    format!("{} {name}", three_digits(value))
}

/// Three significant digits, without zeros at the end; more before the point, if there are more.
fn three_digits(value: f64) -> String {
    let digits_after = match value.abs() {
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        _ => 2,
    };
    let text = format!("{value:.digits_after$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_and_a_unit() {
        let times = [0.0, 33.0, 1.0, 0.001_25, 12.34e-6, 9.999, 1234.0, 5e-9];
        let texts = [
            "0 s", "33 s", "1 s", "1.25 ms", "12.3 µs", "10 s", "1234 s", "5 ns",
        ];
        assert_eq!(times.map(time), texts);
        assert_eq!(time_beside(0.5, 3.0), "0.5 s");
        let sizes = [0, 1023, 1024, 1536 << 20, 25 << 20];
        let texts = ["0 B", "1023 B", "1 KiB", "1.5 GiB", "25 MiB"];
        assert_eq!(sizes.map(bytes), texts);
        assert_eq!(share(3.0 / 11.0), "27.3 %");
    }
}
