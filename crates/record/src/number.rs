//! Numbers in JSON, which has `null` for what is none.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

/// Reads a number, and NaN where there is `null`: as which `serde_json` writes what is not a number.
///
/// ```
/// #[derive(serde::Deserialize)]
/// struct Line {
///     #[serde(deserialize_with = "everburn_record::number_or_nan")]
///     mean: f64,
/// }
/// let line: Line = serde_json::from_str(r#"{"mean":null}"#).unwrap();
/// assert!(line.mean.is_nan());
/// ```
///
/// # Errors
/// The deserializer's, if there is something else.
pub fn number_or_nan<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let number = Option::<f64>::deserialize(deserializer)?;
    Ok(number.unwrap_or(f64::NAN))
}

/// Reads numbers by name, as [`number_or_nan`] does.
///
/// # Errors
/// The deserializer's, if there is something else.
pub fn numbers_or_nan<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, f64>, D::Error> {
    let numbers = BTreeMap::<String, Option<f64>>::deserialize(deserializer)?;
    let numbers = numbers.into_iter();
    Ok(numbers
        .map(|(name, number)| (name, number.unwrap_or(f64::NAN)))
        .collect())
}
