//! Times of day, in UTC: as logs write them, and as people read them.

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Milliseconds since 1970 as `2026-11-21 22:40:55`; nothing for a time beyond the year 9999.
pub(crate) fn utc(unix_ms: u64) -> Option<String> {
    let seconds = i64::try_from(unix_ms / 1000).ok()?;
    let time = OffsetDateTime::from_unix_timestamp(seconds).ok()?;
    let (hour, minute, second) = time.to_hms();
    let date = time.date();
    Some(format!("{date} {hour:02}:{minute:02}:{second:02}"))
}

/// The milliseconds since 1970 of `2026-11-21T22:40:55.609170Z`, as logs begin their lines.
pub(crate) fn parse(text: &str) -> Option<u64> {
    let time = OffsetDateTime::parse(text, &Rfc3339).ok()?;
    u64::try_from(time.unix_timestamp_nanos() / 1_000_000).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_of_a_log_is_read_and_written() {
        let time = parse("2026-11-21T22:40:55.609170Z").unwrap();
        assert_eq!(time, 1_795_300_855_609);
        assert_eq!(utc(time).unwrap(), "2026-11-21 22:40:55");
        assert_eq!(parse("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(parse("2024-02-29T23:59:59.5Z"), Some(1_709_251_199_500));
        assert_eq!(utc(253_402_300_799_999).unwrap(), "9999-12-31 23:59:59");
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in [
            "",
            "Z",
            "2026-13-21T22:40:55Z",
            "2026-11-21T22:40:55",
            "2026-11-21T22:40Z",
            "2026-11-21T+2:40:55Z",
            "2026-11-21T22:40:55.1\u{e9}0Z",
            "99999-11-21T22:40:55Z",
            "1969-11-21T22:40:55Z",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
        assert_eq!(utc(253_402_300_800_000), None);
        assert_eq!(utc(u64::MAX), None);
    }
}
