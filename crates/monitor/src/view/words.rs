//! Numbers and text as they are shown.

use everburn_report::is_unruly;

/// Text from a run's files or a server as one line: what would command a terminal is escaped.
pub(super) fn plain(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' | '\r' | '\t' => line.push(' '),
            unruly if is_unruly(unruly) => line.extend(unruly.escape_unicode()),
            plain => line.push(plain),
        }
    }
    line
}

/// Seconds as `0:05`, `1:02:03` or `2 d 4 h`.
pub(super) fn duration(seconds: f64) -> String {
    let all = seconds.clamp(0.0, 1e9).round() as u64;
    let (hours, minutes, seconds) = (all / 3600, all / 60 % 60, all % 60);
    match hours {
        0 => format!("{minutes}:{seconds:02}"),
        1..48 => format!("{hours}:{minutes:02}:{seconds:02}"),
        _ => format!("{} d {} h", hours / 24, hours % 24),
    }
}

/// Seconds with three digits: `12.3 ms`.
pub(super) fn short_time(seconds: f64) -> String {
    let (value, unit) = match seconds {
        s if s >= 1.0 => (s, "s"),
        s if s >= 1e-3 => (s * 1e3, "ms"),
        s => (s * 1e6, "µs"),
    };
    match value {
        v if v >= LARGE => format!("{v:.1e} {unit}"),
        v if v >= 99.95 => format!("{v:.0} {unit}"),
        v if v >= 9.995 => format!("{v:.1} {unit}"),
        v => format!("{v:.2} {unit}"),
    }
}

/// From here on digits say less than how many there are.
const LARGE: f64 = 1e6;

/// A number with so many digits behind the point.
pub(super) fn number(value: f64, digits: usize) -> String {
    match value.abs() >= LARGE {
        true => format!("{value:.2e}"),
        false => format!("{value:.digits$}"),
    }
}

/// A number with three digits or whole, and commas.
pub(super) fn count(value: f64) -> String {
    if value >= 1e12 {
        return format!("{value:.2e}");
    }
    if value < 100.0 {
        return format!("{value:.1}");
    }
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Bytes as `149 MiB`.
pub(super) fn bytes(bytes: u64) -> String {
    let mebibytes = bytes as f64 / f64::from(1 << 20);
    match mebibytes {
        m if m >= 10_240.0 => format!("{:.0} GiB", m / 1024.0),
        m if m >= 1024.0 => format!("{:.1} GiB", m / 1024.0),
        m => format!("{m:.0} MiB"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!(
            ["0:05", "1:01:01", "2 d 4 h"],
            [5.2, 3661.0, 187_200.0].map(duration).as_slice()
        );
        assert_eq!(
            ["1.50 s", "12.3 ms", "999 µs"],
            [1.5, 0.0123, 0.000_999].map(short_time).as_slice()
        );
        assert_eq!(
            ["7.0", "1,234", "1,234,567"],
            [7.0, 1234.4, 1_234_567.0].map(count).as_slice()
        );
        assert_eq!(
            ["149 MiB", "1.5 GiB"],
            [149 << 20, 1536 << 20].map(bytes).as_slice()
        );
        assert_eq!(plain("a\x1b[2J\nb"), "a\\u{1b}[2J b");
        assert_eq!(plain("\u{9b}2J\u{202e}ü"), "\\u{9b}2J\\u{202e}ü");
    }
}
