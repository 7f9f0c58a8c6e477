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

/// Central difference quotients of `loss`.
pub(crate) fn quotients(values: &[f64], loss: impl Fn(&[f64]) -> f64) -> Vec<f64> {
    let step = 1e-4;
    let mut values = values.to_vec();
    (0..values.len())
        .map(|index| {
            let middle = values[index];
            values[index] = middle + step;
            let above = loss(&values);
            values[index] = middle - step;
            let below = loss(&values);
            values[index] = middle;
            (above - below) / (2.0 * step)
        })
        .collect()
}

/// What `body` gives in a pool of `threads`.
pub(crate) fn on_threads<R: Send>(threads: usize, body: impl FnOnce() -> R + Send) -> R {
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .unwrap();
    pool.install(body)
}

/// Two and four threads give the bits that one gives.
#[track_caller]
pub(crate) fn assert_same_on_threads<const N: usize>(run: impl Fn() -> [Vec<f32>; N] + Sync) {
    let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    let [one, two, four] = [1, 2, 4].map(|threads| on_threads(threads, &run).map(bits));
    assert_eq!(one, two);
    assert_eq!(one, four);
}

/// The error function by its series (Abramowitz and Stegun 1964, 7.1.6), all of whose terms have one
/// sign.
pub(crate) fn erf(x: f64) -> f64 {
    if x.abs() >= 6.0 {
        return x.signum();
    }
    let (mut term, mut sum, mut index) = (x, 0.0, 0.0);
    while term != 0.0 && sum + term != sum {
        sum += term;
        index += 1.0;
        term *= 2.0 * x * x / (2.0 * index + 1.0);
    }
    std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp() * sum
}
