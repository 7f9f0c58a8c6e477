//! What a cut model has learnt, beside what it has learnt alone.

use everburn_nn::{Activation, TensorParallel};
use everburn_train::{Objective, TrainingConfig, TrainingData};

use crate::training::{Cut, Trained, parameters, train};

pub(crate) fn difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let pairs = a.iter().zip(b);
    pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// One step of plain descent by the whole gradient, which then is what a parameter has changed by.
pub(crate) fn one_step(config: &TrainingConfig) -> TrainingConfig {
    let mut config = config.clone();
    config.steps = Some(1);
    config.optimizer.momentum = 0.0;
    config.optimizer.learning_rate = 1.0;
    config
}

/// Compares the gradient of each parameter by its largest element.
pub(crate) fn assert_gradients(before: &[Vec<f32>], alone: &Trained, cut: &Trained, about: &Cut) {
    let changes = before.iter().zip(&alone.parameters);
    let of_all = changes.map(|(a, b)| difference(a, b)).fold(0.0, f32::max);
    for (index, before) in before.iter().enumerate() {
        let (alone, cut) = (&alone.parameters[index], &cut.parameters[index]);
        let largest = difference(before, alone);
        let rounding = before
            .iter()
            .fold(0.0f32, |most, value| most.max(value.abs()))
            * 3e-7;
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
    // What is accumulated alone are the micro-batches of a mesh.
    let [first, config] = [&first, config].map(|config| TrainingConfig {
        accumulate: 1,
        ..config.clone()
    });
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
    assert_eq!(alone.parameters.len(), cut.parameters.len(), "{about:?}");
    let pairs = alone.parameters.iter().zip(&cut.parameters);
    let largest = pairs.map(|(a, b)| difference(a, b)).fold(0.0, f32::max);
    assert!(largest <= 1e-4, "parameters differ by {largest} {about:?}");
    let test = (alone.test_loss - cut.test_loss).abs();
    assert!(test <= 1e-4, "the test losses differ by {test} {about:?}");
}
