//! A convex problem: linear regression by gradient descent.

use everburn_distributed::{CommunicationHookConfig, GradientBucket};

use super::ranks::{matrix_of_rank, random, slots};
use crate::ranks::on_ranks;

const INPUTS: usize = 24;
const OUTPUTS: usize = 16;
const SAMPLES: usize = 40;
const WORLD_SIZE: usize = 3;
const STEPS: usize = 2000;

/// Small enough for rank 1: of the sixteen directions of a gradient one leaves in each step, and what
/// comes that late must not overshoot (without compression, forty times this rate would do).
const LEARNING_RATE: f32 = 0.05;

/// One rank's samples: inputs and, for each, the targets, with noise so that no weights fit.
struct Data {
    inputs: Vec<f32>,
    targets: Vec<f32>,
}

impl Data {
    fn of(rank: usize) -> Self {
        let truth = matrix_of_rank(INPUTS, INPUTS, OUTPUTS, &[99]);
        let inputs = random(&[rank, 1], SAMPLES * INPUTS);
        let mut targets = random(&[rank, 2], SAMPLES * OUTPUTS);
        for (input, targets) in inputs.chunks(INPUTS).zip(targets.chunks_mut(OUTPUTS)) {
            for (x, weights) in input.iter().zip(truth.chunks(OUTPUTS)) {
                for (target, weight) in targets.iter_mut().zip(weights) {
                    *target += x * weight;
                }
            }
        }
        Self { inputs, targets }
    }

    /// Half the mean squared error over all ranks' samples, this rank's part; and its gradient.
    fn loss_and_gradient(&self, parameters: &[f32]) -> (f64, Vec<f32>) {
        let share = 1.0 / (WORLD_SIZE * SAMPLES) as f32;
        let (weights, bias) = parameters.split_at(INPUTS * OUTPUTS);
        let mut gradient = vec![0.0; parameters.len()];
        let (of_weights, of_bias) = gradient.split_at_mut(INPUTS * OUTPUTS);
        let mut loss = 0.0;
        for (input, targets) in self.inputs.chunks(INPUTS).zip(self.targets.chunks(OUTPUTS)) {
            let mut errors: Vec<f32> = bias.iter().zip(targets).map(|(b, t)| b - t).collect();
            for (x, weights) in input.iter().zip(weights.chunks(OUTPUTS)) {
                for (error, weight) in errors.iter_mut().zip(weights) {
                    *error += x * weight;
                }
            }
            for (output, error) in errors.iter().enumerate() {
                loss += f64::from(0.5 * share * error * error);
                of_bias[output] += share * error;
                for (x, gradient) in input.iter().zip(of_weights.chunks_mut(OUTPUTS)) {
                    gradient[output] += share * error * x;
                }
            }
        }
        (loss, gradient)
    }
}

/// The loss before and after training with `hook`.
fn train(hook: &str) -> (f64, f64) {
    let config: CommunicationHookConfig = hook.parse().unwrap();
    let slots = slots(&[("weight", &[INPUTS, OUTPUTS]), ("bias", &[OUTPUTS])]);
    let ranks = on_ranks(WORLD_SIZE, |group| {
        let data = Data::of(group.rank());
        let mut hook = config.build();
        let mut parameters = vec![0.0; (INPUTS + 1) * OUTPUTS];
        let before = data.loss_and_gradient(&parameters).0;
        for _ in 0..STEPS {
            let mut values = data.loss_and_gradient(&parameters).1;
            let bucket = GradientBucket {
                index: 0,
                slots: &slots,
                values: &mut values,
            };
            hook.reduce(bucket, &group).unwrap();
            for (parameter, gradient) in parameters.iter_mut().zip(&values) {
                *parameter -= LEARNING_RATE * gradient;
            }
        }
        (before, data.loss_and_gradient(&parameters).0)
    });
    let before = ranks.iter().map(|(before, _)| before).sum();
    (before, ranks.iter().map(|(_, after)| after).sum())
}

#[test]
fn gradient_descent_comes_to_the_same_loss_with_every_hook() {
    let (before, plain) = train("none");
    assert!(
        plain < 0.3 * before,
        "{plain} of {before}: nothing was learnt"
    );
    for hook in [
        "fp16",
        "bf16",
        "power-sgd:1:0",
        "power-sgd:2",
        "power-sgd:4:50",
    ] {
        let compressed = train(hook).1;
        let difference = (compressed - plain).abs() / plain;
        assert!(
            difference < 0.01,
            "{hook}: {compressed} in place of {plain}"
        );
    }
}
