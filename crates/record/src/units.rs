//! Numbers with their units, as a person reads them.
//!
//! Three digits are enough: `12.3 ms`, `1.5 GiB`, `27.3 %`. Bytes have binary units, times the unit that suits them.

/// Bytes in the largest binary unit of which there is one.
///
/// ```
/// use everburn_record::units::bytes;
///
/// assert_eq!([812, 1536 << 20, 25 << 20].map(bytes), ["812 B", "1.5 GiB", "25 MiB"]);
/// ```
pub fn bytes(bytes: u64) -> String {
    let mut scaled = bytes as f64;
    let mut unit = "B";
    for larger in ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"] {
        // What is rounded to 1024 is 1 of the next.
        if scaled < 1023.5 {
            break;
        }
        scaled /= 1024.0;
        unit = larger;
    }
    format!("{} {unit}", three_digits(scaled))
}

/// A time in seconds: in the unit that suits it below 100 seconds, then in minutes, hours or days.
///
/// ```
/// use everburn_record::units::seconds;
///
/// assert_eq!([12.34e-6, 0.00125, 55.5].map(seconds), ["12.3 µs", "1.25 ms", "55.5 s"]);
/// assert_eq!([723.0, 11_100.0, 1e6].map(seconds), ["12 min 3 s", "3 h 5 min", "11 d 13 h"]);
/// assert_eq!(seconds(f64::NAN), "unknown");
/// ```
pub fn seconds(seconds: f64) -> String {
    if !seconds.is_finite() {
        return "unknown".to_owned();
    }
    // What is rounded to 100 s is 1 min 40 s.
    if seconds.abs() < 99.95 {
        return seconds_beside(seconds, seconds);
    }
    let sign = if seconds < 0.0 { "-" } else { "" };
    let whole = seconds.abs().round().min(1e15) as u64;
    let (minutes, hours, days) = (whole / 60, whole / 3600, whole / 86_400);
    match (hours, days) {
        (0, _) => format!("{sign}{minutes} min {} s", whole % 60),
        (_, 0) => format!("{sign}{hours} h {} min", minutes % 60),
        _ => format!("{sign}{days} d {} h", hours % 24),
    }
}

/// A time in seconds, in the unit that suits `longest`: for times that stand beside each other.
///
/// ```
/// use everburn_record::units::seconds_beside;
///
/// assert_eq!([0.5, 3.0].map(|time| seconds_beside(time, 3.0)), ["0.5 s", "3 s"]);
/// ```
pub fn seconds_beside(seconds: f64, longest: f64) -> String {
    let (factor, unit) = match longest.abs() {
        long if long >= 0.9995 || long == 0.0 => (1.0, "s"),
        long if long >= 0.9995e-3 => (1e3, "ms"),
        long if long >= 0.9995e-6 => (1e6, "µs"),
        _ => (1e9, "ns"),
    };
    format!("{} {unit}", three_digits(seconds * factor))
}

/// A time in seconds as a clock shows it: for times that are drawn again and again.
///
/// ```
/// use everburn_record::units::clock;
///
/// assert_eq!([5.2, 3661.0, 187_200.0].map(clock), ["0:05", "1:01:01", "2 d 4 h"]);
/// ```
pub fn clock(seconds: f64) -> String {
    let all = seconds.clamp(0.0, 1e9).round() as u64;
    let (hours, minutes, seconds) = (all / 3600, all / 60 % 60, all % 60);
    match hours {
        0 => format!("{minutes}:{seconds:02}"),
        1..48 => format!("{hours}:{minutes:02}:{seconds:02}"),
        _ => format!("{} d {} h", hours / 24, hours % 24),
    }
}

/// How long something is still waited for at `now_ms`, in whole seconds: a deadline may have passed before anybody looks.
/// Both times are in milliseconds since 1970.
///
/// ```
/// use everburn_record::units::left;
///
/// assert_eq!(left(300_000, 50_000), "250 s more");
/// assert_eq!(left(300_000, 305_400), "the time was over 5 s ago");
/// ```
pub fn left(until_ms: u64, now_ms: u64) -> String {
    match until_ms.checked_sub(now_ms) {
        Some(left) => format!("{} s more", left / 1000),
        None => format!("the time was over {} s ago", (now_ms - until_ms) / 1000),
    }
}

/// A count with commas.
///
/// ```
/// assert_eq!(everburn_record::units::count(1_234_567), "1,234,567");
/// ```
pub fn count(count: u64) -> String {
    let digits = count.to_string();
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// How many things of a name there are: `1 rank`, `2 ranks`.
///
/// ```
/// use everburn_record::units::counted;
///
/// assert_eq!([0, 1, 2].map(|count| counted(count, "rank")), ["0 ranks", "1 rank", "2 ranks"]);
/// assert_eq!(["batch", "epoch", "class"].map(|noun| counted(3, noun)), ["3 batches", "3 epochs", "3 classes"]);
/// ```
pub fn counted(count: usize, noun: &str) -> String {
    let hisses = ["ss", "x", "tch", "sh"];
    let ending = match count {
        1 => "",
        _ if hisses.iter().any(|end| noun.ends_with(end)) => "es",
        _ => "s",
    };
    format!("{count} {noun}{ending}")
}

/// How many of something there are per second: a whole number with commas from 100 on, thousands and millions with
/// three digits from 10,000 on.
///
/// ```
/// use everburn_record::units::rate;
///
/// assert_eq!([7.0, 1234.4, 26_109.0, 2e7].map(rate), ["7.0", "1,234", "26.1 k", "20 M"]);
/// ```
pub fn rate(per_second: f64) -> String {
    match per_second {
        ..99.95 => format!("{per_second:.1}"),
        ..9_999.5 => count(per_second.round() as u64),
        // What is rounded to 1000 k is 1 M.
        ..999_500.0 => format!("{} k", three_digits(per_second / 1e3)),
        ..1e12 => format!("{} M", three_digits(per_second / 1e6)),
        _ => significant(per_second, 3),
    }
}

/// A part of 1 in percent, with `digits` after the point.
///
/// ```
/// use everburn_record::units::percent;
///
/// assert_eq!(percent(0.2727, 1), "27.3 %");
/// assert_eq!(percent(0.9842, 2), "98.42 %");
/// ```
pub fn percent(share: f64, digits: usize) -> String {
    format!("{:.digits$} %", 100.0 * share)
}

/// A number without a unit, with at most `digits` significant digits, without zeros at its end.
///
/// ```
/// use everburn_record::units::significant;
///
/// assert_eq!(significant(2.345_678, 4), "2.346");
/// assert_eq!(significant(0.000_012_345, 3), "1.23e-5");
/// ```
pub fn significant(value: f64, digits: usize) -> String {
    if !value.is_finite() {
        return "unknown".to_owned();
    }
    let rounded = format!("{value:.*e}", digits.saturating_sub(1));
    let Ok(value) = rounded.parse::<f64>() else {
        return rounded;
    };
    match value.abs() {
        0.0 => "0".to_owned(),
        1e-4..1e7 => format!("{value}"),
        _ => format!("{value:e}"),
    }
}

/// From here on digits say less than how many there are.
const LARGE: f64 = 1e6;

/// A number without a unit, such as a loss, with `digits` after the point; a large one by its power of ten.
///
/// ```
/// use everburn_record::units::fixed;
///
/// assert_eq!([0.5, 2.345_678].map(|value| fixed(value, 4)), ["0.5000", "2.3457"]);
/// assert_eq!([2.061_565e29, -1e6].map(|value| fixed(value, 4)), ["2.06e29", "-1.00e6"]);
/// ```
pub fn fixed(value: f64, digits: usize) -> String {
    match value.abs() >= LARGE {
        true => format!("{value:.2e}"),
        false => format!("{value:.digits$}"),
    }
}

/// The mean of a loss or a metric: with 4 digits after the point, or 3 significant ones where it is below 0.001.
///
/// ```
/// use everburn_record::units::metric;
///
/// assert_eq!([0.5, 0.000_254_3, f64::NAN].map(metric), ["0.5000", "0.000254", "NaN"]);
/// ```
pub fn metric(value: f64) -> String {
    match value.abs() < 1e-3 {
        true => significant(value, 3),
        false => fixed(value, 4),
    }
}

/// Three significant digits, without zeros at the end; more before the point, if there are more.
fn three_digits(value: f64) -> String {
    let digits_after = match value.abs() {
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        _ => 2,
    };
    let text = format!("{value:.digits_after$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_three_digits() {
        let sizes = [0, 1023, 1024, 328_136, (1 << 20) - 1, u64::MAX];
        let texts = ["0 B", "1023 B", "1 KiB", "320 KiB", "1 MiB", "16 EiB"];
        assert_eq!(sizes.map(bytes), texts);
    }

    #[test]
    fn times_have_the_unit_that_suits_them() {
        let times = [0.0, 5e-9, 0.012_345, 0.999_9, 9.999, 99.96, -0.5, -300.0];
        let texts = [
            "0 s",
            "5 ns",
            "12.3 ms",
            "1 s",
            "10 s",
            "1 min 40 s",
            "-500 ms",
            "-5 min 0 s",
        ];
        assert_eq!(times.map(seconds), texts);
        assert_eq!(seconds(f64::INFINITY), "unknown");
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!([0, 999, 1000].map(count), ["0", "999", "1,000"]);
        assert_eq!([99.96, 0.04].map(rate), ["100", "0.0"]);
        assert_eq!([9_999.6, 999_600.0].map(rate), ["10 k", "1 M"]);
        assert_eq!([2e12, f64::INFINITY].map(rate), ["2e12", "unknown"]);
        assert_eq!(significant(-1500.0, 2), "-1500");
        assert_eq!(significant(-0.0, 2), "0");
        assert_eq!(significant(f64::NAN, 2), "unknown");
    }
}
