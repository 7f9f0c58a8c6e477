//! Values for tests, and how near they must come.

/// Values in `-1..1` that look random and are the same on every run.
pub(crate) fn values(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..count)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}

pub(crate) fn doubles(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| f64::from(value)).collect()
}

/// Equal within 1e-5 of the largest value, or of one: a sum of many terms may cancel.
#[track_caller]
pub(crate) fn assert_close(actual: &[f32], expected: &[f64]) {
    assert_eq!(actual.len(), expected.len());
    let scale = expected
        .iter()
        .fold(1.0, |max: f64, value| max.max(value.abs()));
    for (index, (&a, &e)) in actual.iter().zip(expected).enumerate() {
        let difference = (f64::from(a) - e).abs();
        assert!(
            difference <= 1e-5 * scale,
            "value {index}: {a} in place of {e}"
        );
    }
}
