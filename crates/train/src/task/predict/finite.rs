//! Whether all numbers of a prediction are finite: JSON has no others, and has `null` in their place.

use ciborium::Value;
use serde::Serialize;

/// The first number of `prediction` that is NaN or infinite, with where it is, in words.
pub(super) fn not_finite(prediction: &impl Serialize) -> Option<String> {
    let (place, number) = found_in(&Value::serialized(prediction).ok()?)?;
    let what = match number.is_nan() {
        true => "a NaN",
        false => "an infinite number",
    };
    Some(match &*place {
        "" => format!("is {what}"),
        place => format!("has {what} in `{place}`"),
    })
}

fn found_in(value: &Value) -> Option<(String, f64)> {
    match value {
        Value::Float(number) if !number.is_finite() => Some((String::new(), *number)),
        Value::Array(parts) => {
            let mut parts = parts.iter().enumerate();
            parts.find_map(|(at, part)| found_within(&format!("[{at}]"), part))
        }
        Value::Map(parts) => parts.iter().find_map(|(key, part)| {
            let key = serde_json::to_string(key).unwrap_or_default();
            found_within(key.trim_matches('"'), part)
        }),
        _ => None,
    }
}

/// The same, of what is called `outer` one level further out.
fn found_within(outer: &str, part: &Value) -> Option<(String, f64)> {
    let (place, number) = found_in(part)?;
    let dot = match place.is_empty() || place.starts_with('[') {
        true => "",
        false => ".",
    };
    Some((format!("{outer}{dot}{place}"), number))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[derive(Serialize)]
    struct Scores {
        class: Option<&'static str>,
        probabilities: Vec<f32>,
        more: BTreeMap<&'static str, (u8, Option<f64>)>,
    }

    fn found(probability: f32, more: f64) -> Option<String> {
        not_finite(&Scores {
            class: None,
            probabilities: vec![0.5, probability],
            more: BTreeMap::from([("mean", (1, Some(more)))]),
        })
    }

    #[test]
    fn a_number_that_is_not_finite_is_found_wherever_it_is() {
        assert_eq!(found(0.5, 1e300), None);
        let first = Some("has a NaN in `probabilities[1]`".to_owned());
        assert_eq!(found(f32::NAN, f64::NAN), first);
        let deep = Some("has an infinite number in `more.mean[1]`".to_owned());
        assert_eq!(found(0.5, f64::NEG_INFINITY), deep);
        assert_eq!(not_finite(&f32::NAN), Some("is a NaN".to_owned()));
        assert_eq!(not_finite(&(1, "NaN", ())), None);
    }
}
