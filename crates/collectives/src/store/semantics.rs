//! The rules of counters and of compare-and-set, which every store shares.

use everburn_record::plain;

use super::StoreError;

/// Why a counter could not be moved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CounterFault {
    /// The present value is not a decimal integer.
    NotANumber(String),
    /// The sum does not fit in 64 bits.
    Overflow(i64),
}

impl CounterFault {
    pub(super) fn into_error(self, key: &str, amount: i64) -> StoreError {
        let reason = match self {
            Self::NotANumber(text) => {
                format!("`{key}` holds `{text}`, which is not a decimal integer")
            }
            Self::Overflow(current) => {
                format!("`{key}` holds {current}; adding {amount} leaves the range of 64 bits")
            }
        };
        StoreError::Invalid {
            operation: "add",
            reason,
        }
    }
}

/// The counter under a key after `amount` has been added; absent counts as 0.
pub(super) fn counter_after(current: Option<&[u8]>, amount: i64) -> Result<i64, CounterFault> {
    let current = current.map_or(Ok(0), |bytes| {
        std::str::from_utf8(bytes)
            .ok()
            .and_then(|text| text.trim().parse::<i64>().ok())
            .ok_or_else(|| {
                CounterFault::NotANumber(plain::line(&String::from_utf8_lossy(bytes), 40))
            })
    })?;
    current
        .checked_add(amount)
        .ok_or(CounterFault::Overflow(current))
}

/// What compare-and-set does with the value that it finds.
pub(super) enum CompareSet<'a> {
    /// Store `desired` and return it.
    Store,
    /// Store nothing and return this: the present value, or `expected` where the key is absent but was expected to
    /// be there.
    Return(&'a [u8]),
}

pub(super) fn compare_set<'a>(current: Option<&'a [u8]>, expected: &'a [u8]) -> CompareSet<'a> {
    match current {
        None if expected.is_empty() => CompareSet::Store,
        None => CompareSet::Return(expected),
        Some(value) if value == expected => CompareSet::Store,
        Some(value) => CompareSet::Return(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_decimal_text_and_absent_is_zero() {
        assert_eq!(counter_after(None, 5), Ok(5));
        assert_eq!(counter_after(Some(b"-3"), 5), Ok(2));
        assert_eq!(
            counter_after(Some(b"three"), 1),
            Err(CounterFault::NotANumber("three".into()))
        );
        assert_eq!(
            counter_after(Some(b"9223372036854775807"), 1),
            Err(CounterFault::Overflow(i64::MAX))
        );
    }
}
