//! Times of day, in UTC: as logs write them, and as people read them.

const DAY_MS: u64 = 86_400_000;

/// The end of the year 9999: what lies behind it is no time of a run.
const LATEST_MS: u64 = 253_402_300_799_999;

/// Milliseconds since 1970 as `2026-11-21 22:40:55`; nothing for a time beyond the year 9999.
pub(crate) fn utc(unix_ms: u64) -> Option<String> {
    if unix_ms > LATEST_MS {
        return None;
    }
    let (year, month, day) = date((unix_ms / DAY_MS) as i64);
    let seconds = unix_ms % DAY_MS / 1000;
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    Some(format!(
        "{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}"
    ))
}

/// The milliseconds since 1970 of `2026-11-21T22:40:55.609170Z`, as logs begin their lines.
pub(crate) fn parse(text: &str) -> Option<u64> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let mut date = date.splitn(3, '-').map(number);
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let (whole, fraction) = time.split_once('.').unwrap_or((time, ""));
    let mut time = whole.splitn(3, ':').map(number);
    let (hour, minute, second) = (time.next()??, time.next()??, time.next()??);
    let in_range = (1970..=9999).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second < 61;
    if !in_range || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let thousandths = format!("{fraction:0<3}")[..3].parse::<u64>().ok()?;
    let days = u64::try_from(days(year, month, day)).ok()?;
    let seconds = u64::try_from(hour * 3600 + minute * 60 + second).ok()?;
    Some(days * DAY_MS + seconds * 1000 + thousandths)
}

/// Up to four digits.
fn number(text: &str) -> Option<i64> {
    let plain = (1..=4).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| plain)
}

/// Days since 1970 (`days_from_civil` of Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", 2021).
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// Year, month and day (`civil_from_days`, as above).
fn date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + i64::from(month <= 2), month, day)
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
        assert_eq!(parse("2024-02-29T23:59:60.5Z"), Some(1_709_251_200_500));
        assert_eq!(utc(LATEST_MS).unwrap(), "9999-12-31 23:59:59");
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in [
            "",
            "Z",
            "2026-11-21 22:40:55Z",
            "2026-13-21T22:40:55Z",
            "2026-11-21T22:40:55",
            "2026-11-21T22:40Z",
            "2026-11-21T+2:40:55Z",
            "2026-11-21T22:40:55.1é0Z",
            "99999-11-21T22:40:55Z",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
        assert_eq!(utc(u64::MAX), None);
    }

    #[test]
    fn every_day_of_four_centuries_is_itself() {
        for day in 0..146_097 {
            let (year, month, of_month) = date(day);
            assert_eq!(days(year, month, of_month), day);
        }
    }
}
