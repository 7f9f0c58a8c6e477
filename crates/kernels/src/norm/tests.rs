use proptest::prelude::*;

use super::{BatchNormShape, BatchNormStatistics, batch_norm_train, batch_norm_train_backward};
use crate::sample::{assert_close, assert_same_on_threads, doubles, quotients, values};

const EPSILON: f64 = 1e-3;

struct Results<T> {
    output: Vec<T>,
    mean: Vec<T>,
    variance: Vec<T>,
    input_grad: Vec<T>,
    gamma_grad: Vec<T>,
    beta_grad: Vec<T>,
}

struct Given {
    input: Vec<f32>,
    gamma: Vec<f32>,
    beta: Vec<f32>,
    gradient: Vec<f32>,
}

fn given(shape: &BatchNormShape) -> Given {
    let length = shape.len().unwrap();
    Given {
        // Far from zero, as after a relu.
        input: values(length, 1).iter().map(|value| value + 3.0).collect(),
        gamma: values(shape.channels, 2),
        beta: values(shape.channels, 3),
        gradient: values(length, 4),
    }
}

fn fast(shape: &BatchNormShape) -> Results<f32> {
    let given = given(shape);
    let tensor = || vec![f32::NAN; given.input.len()];
    let channel = || vec![f32::NAN; shape.channels];
    let mut results = Results {
        output: tensor(),
        mean: channel(),
        variance: channel(),
        input_grad: tensor(),
        gamma_grad: channel(),
        beta_grad: channel(),
    };
    batch_norm_train(
        shape,
        &given.input,
        [&given.gamma, &given.beta],
        EPSILON,
        &mut results.output,
        [&mut results.mean, &mut results.variance],
    )
    .unwrap();
    let statistics = BatchNormStatistics {
        mean: &results.mean,
        variance: &results.variance,
    };
    batch_norm_train_backward(
        shape,
        [&given.input, &given.gradient],
        &given.gamma,
        statistics,
        EPSILON,
        &mut results.input_grad,
        [&mut results.gamma_grad, &mut results.beta_grad],
    )
    .unwrap();
    results
}

/// `output`, `mean`, `variance` by definition.
fn define(
    shape: &BatchNormShape,
    input: &[f64],
    [gamma, beta]: [&[f64]; 2],
) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let channel_of = |index: usize| index / shape.pixels % shape.channels;
    let count = (shape.batch * shape.pixels) as f64;
    let mut mean = vec![0.0; shape.channels];
    let mut variance = vec![0.0; shape.channels];
    for (index, value) in input.iter().enumerate() {
        mean[channel_of(index)] += value / count;
    }
    for (index, value) in input.iter().enumerate() {
        let channel = channel_of(index);
        variance[channel] += (value - mean[channel]).powi(2) / count;
    }
    let normalise = |(index, value): (usize, &f64)| {
        let channel = channel_of(index);
        let deviation = (variance[channel] + EPSILON).sqrt();
        (value - mean[channel]) / deviation * gamma[channel] + beta[channel]
    };
    let output = input.iter().enumerate().map(normalise).collect();
    (output, mean, variance)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn equals_the_definition_and_its_difference_quotients(
        batch in 1_usize..6, channels in 1_usize..5, pixels in 1_usize..40,
    ) {
        let shape = BatchNormShape { batch, channels, pixels };
        let given = given(&shape);
        let fast = fast(&shape);
        let [input, gamma, beta, gradient] =
            [&given.input, &given.gamma, &given.beta, &given.gradient].map(|values| doubles(values));
        let (output, mean, variance) = define(&shape, &input, [&gamma, &beta]);
        // A single value is its own mean: its distance, zero, is rounding.
        assert_close(&fast.output, &output);
        assert_close(&fast.mean, &mean);
        assert_close(&fast.variance, &variance);
        let loss = |input: &[f64], gamma: &[f64], beta: &[f64]| {
            let (output, ..) = define(&shape, input, [gamma, beta]);
            output.iter().zip(&gradient).map(|(y, g)| y * g).sum::<f64>()
        };
        assert_close(&fast.beta_grad, &quotients(&beta, |beta| loss(&input, &gamma, beta)));
        assert_close(&fast.gamma_grad, &quotients(&gamma, |gamma| loss(&input, gamma, &beta)));
        assert_close(&fast.input_grad, &quotients(&input, |input| loss(input, &gamma, &beta)));
    }
}

#[test]
fn empty_tensors_have_no_mean() {
    for (batch, pixels) in [(0, 3), (2, 0)] {
        let shape = BatchNormShape {
            batch,
            channels: 2,
            pixels,
        };
        let results = fast(&shape);
        assert!(
            results
                .mean
                .iter()
                .chain(&results.variance)
                .all(|value| value.is_nan())
        );
        assert_eq!(results.beta_grad, [0.0, 0.0]);
        assert!(results.output.is_empty() && results.input_grad.is_empty());
    }
    let none = BatchNormShape {
        batch: 3,
        channels: 0,
        pixels: 4,
    };
    assert!(fast(&none).mean.is_empty());
}

#[test]
fn the_same_bits_for_any_number_of_threads() {
    let shape = BatchNormShape {
        batch: 40,
        channels: 7,
        pixels: 531,
    };
    assert_same_on_threads(|| {
        let results = fast(&shape);
        let [sums, grads] = [
            [results.mean, results.variance],
            [results.gamma_grad, results.beta_grad],
        ];
        [
            results.output,
            results.input_grad,
            sums.concat(),
            grads.concat(),
        ]
    });
}
