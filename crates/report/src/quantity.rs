//! Numbers with their units, as people read them.

/// Bytes as `1.5 GiB`.
pub(crate) fn bytes(bytes: f64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024.0 {
        return format!("{bytes:.0} B");
    }
    let mut scaled = bytes / 1024.0;
    let mut unit = 0;
    // 1023.95 would be rounded to 1024.0.
    while scaled >= 1023.95 && unit + 1 < UNITS.len() {
        scaled /= 1024.0;
        unit += 1;
    }
    let digits = if scaled < 99.95 { 1 } else { 0 };
    format!("{scaled:.digits$} {}", UNITS[unit])
}

/// Seconds as `12.3 ms`, `55.5 s`, `12 min 3 s` or `3 h 5 min`.
pub(crate) fn seconds(seconds: f64) -> String {
    if !seconds.is_finite() {
        return "unknown".to_owned();
    }
    let small = seconds.abs();
    if small < 1.0 {
        return format!("{} ms", significant(1e3 * seconds, 3));
    }
    if small < 99.95 {
        return format!("{seconds:.1} s");
    }
    let whole = seconds.round().min(1e15) as u64;
    let (minutes, hours, days) = (whole / 60, whole / 3600, whole / 86_400);
    match (hours, days) {
        (0, _) => format!("{minutes} min {} s", whole % 60),
        (_, 0) => format!("{hours} h {} min", minutes % 60),
        _ => format!("{days} d {} h", hours % 24),
    }
}

/// A count as `12,345`.
pub(crate) fn count(count: u64) -> String {
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

/// A share as `98.42 %`.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.2} %", 100.0 * share)
}

/// A number with so many significant digits at most, without zeros at its end.
pub(crate) fn significant(value: f64, digits: usize) -> String {
    if value == 0.0 || !value.is_finite() {
        return if value == 0.0 {
            "0".to_owned()
        } else {
            "unknown".to_owned()
        };
    }
    let rounded = format!("{value:.*e}", digits.saturating_sub(1));
    let Ok(value) = rounded.parse::<f64>() else {
        return rounded;
    };
    match value.abs() {
        1e-4..1e7 => format!("{value}"),
        _ => format!("{value:e}"),
    }
}

/// By how much `value` is more than `first`, as `+3.1 %`; nothing where that says nothing, or where there is no more of it.
pub(crate) fn change(first: f64, value: f64) -> Option<String> {
    let change = 100.0 * (value / first - 1.0);
    if !change.is_finite() || first <= 0.0 {
        return None;
    }
    match change.abs() {
        ..0.05 => None,
        ..1000.0 => Some(format!("{change:+.1} %")),
        _ => Some(format!("×{}", significant(value / first, 3))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_their_units() {
        assert_eq!(bytes(1023.0), "1023 B");
        assert_eq!(bytes(1024.0 * 1023.97), "1.0 MiB");
        assert_eq!(bytes(328_136.0), "320 KiB");
        assert_eq!(bytes(1e30), "867361737988 EiB");
        assert_eq!(seconds(0.012_345), "12.3 ms");
        assert_eq!(seconds(99.9), "99.9 s");
        assert_eq!(seconds(723.0), "12 min 3 s");
        assert_eq!(seconds(3.0 * 3600.0 + 301.0), "3 h 5 min");
        assert_eq!(seconds(1e6), "11 d 13 h");
        assert_eq!(seconds(f64::NAN), "unknown");
        assert_eq!(count(0), "0");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(percent(0.984_2), "98.42 %");
        assert_eq!(significant(2.345_678, 4), "2.346");
        assert_eq!(significant(0.000_012_345, 3), "1.23e-5");
        assert_eq!(significant(-1500.0, 2), "-1500");
        assert_eq!(change(2.0, 3.0).unwrap(), "+50.0 %");
        assert_eq!(change(1e-3, 3e1).unwrap(), "×30000");
        assert_eq!(change(2.0, 2.0001), None);
        assert_eq!(change(0.0, 3.0), None);
        assert_eq!(change(2.0, f64::NAN), None);
    }
}
