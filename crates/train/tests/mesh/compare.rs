//! What a cut model has learnt, beside what it has learnt alone.

use everburn_nn::{Activation, TensorParallel};
use everburn_train::{Objective, TrainingConfig, TrainingData};

use crate::harness::config::changed;
use crate::harness::parameters::{difference, parameters};
use crate::training::{Cut, Trained, train};

/// So far a gradient is followed when it is to be seen in what a parameter has changed by: far enough for
/// the rounding of the parameter not to matter.
const FAR: f64 = 64.0;

/// One step of plain descent, which shows the whole gradient.
fn one_step(config: &TrainingConfig) -> TrainingConfig {
    let mut config = config.clone();
    config.steps = Some(1);
    config.optimizer.momentum = None;
    config.optimizer.learning_rate = FAR;
    config
}

/// Compares the gradient of each parameter by its largest element.
fn assert_gradients(before: &[Vec<f32>], alone: &Trained, cut: &Trained, about: &Cut) {
    let changes = before.iter().zip(&alone.parameters);
    let of_all = changes.map(|(a, b)| difference(a, b)).fold(0.0, f32::max);
    for (index, before) in before.iter().enumerate() {
        let (alone, cut) = (&alone.parameters[index], &cut.parameters[index]);
        let largest = difference(before, alone);
        let values = before.iter().map(|value| value.abs());
        let rounding = values.fold(0.0, f32::max) * f32::EPSILON;
        let off = difference(alone, cut);
        assert!(
            // Some are nothing but rounding: a bias of keys changes no share of an attention.
            off <= 1e-5 * largest + rounding + 1e-8 * of_all,
            "gradient {index} of up to {largest} is off by {off} {about:?}"
        );
    }
}

/// Trains a step, then as `config` says, alone and in each of `cuts`, and compares.
pub(crate) fn compare<M, O, I>(
    model: &M,
    data: &TrainingData<I, (O::Input, O::Targets)>,
    config: &TrainingConfig,
    cuts: &[Cut],
) where
    M: TensorParallel<Input = O::Input, Output = O::Output> + std::fmt::Display + Sync + 'static,
    O: Objective<Input: Activation, Output: Activation>,
    I: Send + Sync + Clone + 'static,
{
    let first = one_step(config);
    let before = parameters(model);
    let step = train::<_, O, _>(model, data, &first, None);
    let alone = train::<_, O, _>(model, data, config, None);
    assert_eq!(
        Some(alone.losses.len()),
        config.steps,
        "as many as are wanted"
    );
    let moved = before.iter().zip(&alone.parameters);
    let moved = moved.map(|(a, b)| difference(a, b)).fold(0.0, f32::max);
    assert!(moved > 1e-3, "parameters have moved by {moved} only");
    if let Some(most) = config.ddp.max_gradient_norm {
        let clipped = |norm: &Option<f64>| norm.is_some_and(|norm| norm > f64::from(most));
        assert!(alone.norms.iter().any(clipped), "nothing is clipped");
    }
    // What is accumulated alone are the micro-batches of a mesh.
    let [first, config] =
        [&first, config].map(|config| changed(config.clone(), |config| config.accumulate = 1));
    for about in cuts {
        let cut = train::<_, O, _>(model, data, &first, Some(about));
        assert_gradients(&before, &step, &cut, about);
        let cut = train::<_, O, _>(model, data, &config, Some(about));
        assert_close(&alone, &cut, about);
    }
}

pub(crate) fn assert_close(alone: &Trained, cut: &Trained, about: &Cut) {
    assert_eq!(alone.losses.len(), cut.losses.len(), "{about:?}");
    for (a, b) in alone.losses.iter().zip(&cut.losses) {
        assert!(
            (a - b).abs() <= 1e-5 * a.abs().max(1.0),
            "{a} {b} {about:?}"
        );
    }
    for (a, b) in alone.norms.iter().zip(&cut.norms) {
        let (a, b) = (a.unwrap_or(0.0), b.unwrap_or(0.0));
        assert!((a - b).abs() <= 1e-4 * a, "norms {a} {b} {about:?}");
    }
    assert_eq!(alone.parameters.len(), cut.parameters.len(), "{about:?}");
    let pairs = alone.parameters.iter().zip(&cut.parameters);
    let largest = pairs.map(|(a, b)| difference(a, b)).fold(0.0, f32::max);
    assert!(largest <= 1e-4, "parameters differ by {largest} {about:?}");
    let test = (alone.test_loss - cut.test_loss).abs();
    assert!(test <= 1e-4, "the test losses differ by {test} {about:?}");
}
