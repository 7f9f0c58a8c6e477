//! The rate of a link.

use std::fmt;
use std::str::FromStr;

/// The rate of a link, such as `1gbit`, in the words of `tc`: decimal bits per second.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// At least 1 Mbit/s where it is parsed.
    pub bits_per_second: u64,
}

const RATE_UNITS: [(&str, u64); 3] = [
    ("gbit", 1_000_000_000),
    ("mbit", 1_000_000),
    ("kbit", 1_000),
];

impl Rate {
    /// The same in bytes.
    #[must_use]
    pub fn bytes_per_second(self) -> f64 {
        self.bits_per_second as f64 / 8.0
    }
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is no rate; write 1gbit, 100mbit or 2.5gbit");
        let lower = text.to_ascii_lowercase();
        let (number, factor) = RATE_UNITS
            .iter()
            .find_map(|(name, factor)| Some((lower.strip_suffix(name)?, *factor)))
            .ok_or_else(wrong)?;
        let number: f64 = number.parse().map_err(|_| wrong())?;
        let bits = number * factor as f64;
        // Below, a measurement would take hours; above, this machine is slower than the link.
        if !(1e6..=1e12).contains(&bits) {
            return Err(format!("`{text}`: from 1mbit to 1000gbit can be made"));
        }
        Ok(Self {
            bits_per_second: bits as u64,
        })
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = self.bits_per_second;
        let unit = RATE_UNITS.iter().find(|(_, factor)| bits >= *factor);
        let (name, factor) = unit.copied().unwrap_or(("bit", 1));
        write!(f, "{}{name}", bits as f64 / factor as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_decimal_bits() {
        let rate = |text: &str| text.parse::<Rate>().map(|rate| rate.bits_per_second);
        assert_eq!(rate("1gbit"), Ok(1_000_000_000));
        assert_eq!(rate("2.5Gbit"), Ok(2_500_000_000));
        assert_eq!(rate("100mbit"), Ok(100_000_000));
        for wrong in ["1", "gbit", "1kbit", "-1gbit", "nangbit", "9999gbit"] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
        assert_eq!("2.5gbit".parse::<Rate>().unwrap().to_string(), "2.5gbit");
        assert_eq!("1gbit".parse::<Rate>().unwrap().bytes_per_second(), 1.25e8);
    }
}
