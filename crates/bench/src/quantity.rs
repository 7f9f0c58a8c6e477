//! Numbers with units, as one writes them on a command line.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A length of messages, such as `25M`: K, M and G are powers of 1024.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Bytes(pub(super) u64);

const BYTE_UNITS: [(&str, u64); 3] = [("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)];

/// Longer messages than this no group takes.
const MOST_BYTES: u64 = 4 << 30;

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is no length; write bytes, or 64K, 25M, 1G");
        let upper = text.to_ascii_uppercase();
        let digits = ["IB", "B"]
            .iter()
            .find_map(|ending| upper.strip_suffix(ending));
        let digits = digits.unwrap_or(&upper);
        let unit = BYTE_UNITS
            .iter()
            .find_map(|(name, factor)| Some((digits.strip_suffix(name)?, *factor)));
        let (digits, factor) = unit.unwrap_or((digits, 1));
        let number: u64 = digits.parse().map_err(|_| wrong())?;
        let bytes = number.checked_mul(factor).ok_or_else(wrong)?;
        match bytes {
            4..=MOST_BYTES => Ok(Self(bytes)),
            _ => Err(format!("`{text}`: from 4 bytes to 4G can be measured")),
        }
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = BYTE_UNITS
            .iter()
            .find(|(_, factor)| self.0 >= *factor && self.0.is_multiple_of(*factor));
        match unit {
            Some((name, factor)) => f.pad(&format!("{}{name}", self.0 / factor)),
            None => f.pad(&self.0.to_string()),
        }
    }
}

/// Reads a time such as `0.5ms`, `200us` or `1s`.
pub(super) fn parse_delay(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is no delay; write 0.5ms, 200us or 1s");
    let units = [("ms", 1e-3), ("us", 1e-6), ("s", 1.0)];
    let (number, factor) = units
        .iter()
        .find_map(|(name, factor)| Some((text.strip_suffix(name)?, *factor)))
        .ok_or_else(wrong)?;
    let seconds = number.parse::<f64>().map_err(|_| wrong())? * factor;
    match seconds {
        0.0..=10.0 => Ok(Duration::from_secs_f64(seconds)),
        _ => Err(format!("`{text}`: a delay is from 0 to 10s")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_powers_of_two() {
        let bytes = |text: &str| text.parse::<Bytes>().map(|bytes| bytes.0);
        assert_eq!(bytes("1K"), Ok(1024));
        assert_eq!(bytes("25M"), Ok(25 << 20));
        assert_eq!(bytes("25MiB"), Ok(25 << 20));
        assert_eq!(bytes("1000"), Ok(1000));
        for wrong in [
            "",
            "K",
            "-1",
            "1.5M",
            "99999999999999999999",
            "0",
            "5G",
            "1T",
        ] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
        for text in ["1K", "25M", "1000", "4G", "1536"] {
            assert_eq!(text.parse::<Bytes>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn delays_have_units() {
        assert_eq!(parse_delay("0.5ms"), Ok(Duration::from_micros(500)));
        assert_eq!(parse_delay("200us"), Ok(Duration::from_micros(200)));
        assert_eq!(parse_delay("1s"), Ok(Duration::from_secs(1)));
        for wrong in ["1", "ms", "-1ms", "nans", "11s", ""] {
            assert!(parse_delay(wrong).is_err(), "{wrong}");
        }
    }
}
