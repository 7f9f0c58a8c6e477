//! Several ranks compute what one device computes from all their samples.

use std::ops::Range;
use std::sync::Arc;

use burn::module::{Module, Param};
use burn::nn as burns;
use burn::prelude::*;
use burn::tensor::activation::tanh;
use everburn_nn::{
    BatchNorm, BatchNormConfig, LossReduction, StatisticsGroup, all_reduce_sum,
    synchronize_batch_norms, without_samples,
};

use super::ranks::{SUMS, Sums, Threads, on_ranks};
use crate::numbers::{assert_close, tensor, values};

const CHANNELS: usize = 3;

/// How many samples each rank has.
const SHARES: [&[usize]; 6] = [
    &[5],
    &[4, 4],
    &[1, 6],
    &[3, 1, 2],
    &[2, 2, 1, 1],
    &[5, 1, 1, 3],
];

fn share(shares: &[usize], rank: usize) -> Range<usize> {
    let start = shares[..rank].iter().sum();
    start..start + shares[rank]
}

fn device() -> Device {
    Device::flex().autodiff()
}

fn norm(device: &Device) -> BatchNorm {
    let mut norm = burns::BatchNormConfig::new(CHANNELS)
        .with_momentum(0.3)
        .init(device);
    norm.gamma = Param::from_tensor(Tensor::from_floats([0.5, -1.5, 2.0], device));
    norm.beta = Param::from_tensor(Tensor::from_floats([0.1, 0.0, -0.7], device));
    norm.into()
}

/// The loss of each sample, not the same for any two of them.
fn losses(output: Tensor<4>, weights: Tensor<4>) -> Tensor<1> {
    let each: Tensor<2> = (tanh(output) * weights).flatten(1, 3);
    each.sum_dim(1).squeeze_dim(1)
}

/// Everything that comes of one step.
#[derive(Debug)]
struct Step {
    output: Vec<f32>,
    input: Vec<f32>,
    gamma: Vec<f32>,
    beta: Vec<f32>,
    running: Vec<f32>,
}

fn step(norm: &BatchNorm, input: Tensor<4>, weights: Tensor<4>, reduction: LossReduction) -> Step {
    let input = input.require_grad();
    let output = norm.forward(input.clone());
    let losses = losses(output.clone(), weights);
    let loss = match reduction {
        LossReduction::MeanOverSamples => losses.mean(),
        LossReduction::Sum => losses.sum(),
    };
    let gradients = loss.backward();
    let statistics = [&norm.running_mean, &norm.running_var];
    Step {
        output: values(output),
        input: values(input.grad(&gradients).unwrap()),
        gamma: values(norm.gamma.val().grad(&gradients).unwrap()),
        beta: values(norm.beta.val().grad(&gradients).unwrap()),
        running: statistics
            .map(|running| values(running.value_sync()))
            .concat(),
    }
}

fn attached(norm: BatchNorm, group: &Arc<Threads>, sums: Sums) -> BatchNorm {
    synchronize_batch_norms(norm, sums.over(group)).unwrap()
}

/// What the gradients of all ranks become: weighted by samples, or added up.
fn combine(
    steps: &[Step],
    shares: &[usize],
    reduction: LossReduction,
    part: impl Fn(&Step) -> &[f32],
) -> Vec<f32> {
    let total = shares.iter().sum::<usize>() as f32;
    let mut sum = vec![0.0; part(&steps[0]).len()];
    for (step, share) in steps.iter().zip(shares) {
        let weight = match reduction {
            LossReduction::MeanOverSamples => *share as f32 / total,
            LossReduction::Sum => 1.0,
        };
        for (sum, value) in sum.iter_mut().zip(part(step)) {
            *sum += weight * value;
        }
    }
    sum
}

#[test]
fn ranks_compute_what_one_device_computes_from_all_samples() {
    let reductions = [LossReduction::MeanOverSamples, LossReduction::Sum];
    for (reduction, sums) in reductions
        .into_iter()
        .flat_map(|r| SUMS.map(|sums| (r, sums)))
    {
        for shares in SHARES {
            let shape = [shares.iter().sum(), CHANNELS, 4, 5];
            let device = device();
            let whole = tensor(1, shape, &device) * 3.0 + 2.0;
            let weights = tensor(2, shape, &device);
            let expected = step(&norm(&device), whole, weights, reduction);
            let steps = on_ranks(shares.len(), reduction, |group| {
                let device = self::device();
                let range = share(shares, group.rank());
                let mine = (tensor(1, shape, &device) * 3.0 + 2.0).slice([range.clone()]);
                let weights = tensor(2, shape, &device).slice([range]);
                let norm = attached(norm(&device), &group, sums);
                let step = step(&norm, mine, weights, reduction);
                assert_eq!(group.aborted(), None);
                assert!(shares.len() == 1 || group.all_reduces() == sums.all_reduces());
                step
            });
            assert_close(
                &combine(&steps, shares, reduction, |s| &s.gamma),
                &expected.gamma,
            );
            assert_close(
                &combine(&steps, shares, reduction, |s| &s.beta),
                &expected.beta,
            );
            let output = steps.iter().flat_map(|step| step.output.clone());
            assert_close(&output.collect::<Vec<_>>(), &expected.output);
            let total = shares.iter().sum::<usize>() as f32;
            let input = steps.iter().zip(shares).flat_map(|(step, share)| {
                let weight = match reduction {
                    LossReduction::MeanOverSamples => *share as f32 / total,
                    LossReduction::Sum => 1.0,
                };
                step.input.iter().map(move |value| weight * value)
            });
            assert_close(&input.collect::<Vec<_>>(), &expected.input);
            for step in &steps {
                assert_close(&step.running, &expected.running);
                assert_eq!(step.running, steps[0].running, "the same bits on all ranks");
            }
        }
    }
}

#[test]
fn a_mean_that_is_large_costs_no_digits() {
    for (mean, sums) in [0.0, 1e2, 1e4, 1e6]
        .into_iter()
        .flat_map(|mean| SUMS.map(|sums| (mean, sums)))
    {
        let shares = [30, 50, 11];
        let shape = [shares.iter().sum(), CHANNELS, 7];
        let input = |device: &Device| tensor(3, shape, device) + mean;
        // The exact statistics of the numbers in f32, whatever their rounding was.
        let values = values(input(&Device::flex()));
        let exact = (0..CHANNELS).map(|channel| {
            let row = values.chunks(7).skip(channel).step_by(CHANNELS).flatten();
            let row = row.map(|value| f64::from(*value)).collect::<Vec<_>>();
            let mean = row.iter().sum::<f64>() / row.len() as f64;
            let squares = row.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
            (mean, squares / row.len() as f64)
        });
        let exact = exact.collect::<Vec<_>>();
        let ranks = on_ranks(shares.len(), LossReduction::Sum, |group| {
            let device = device();
            let norm = BatchNormConfig::new(CHANNELS)
                .with_momentum(1.0)
                .init(&device);
            let norm = attached(norm, &group, sums);
            let _output = norm.forward(input(&device).slice([share(&shares, group.rank())]));
            let statistics = [&norm.running_mean, &norm.running_var];
            statistics.map(|running| crate::numbers::values(running.value_sync()))
        });
        for [mean, variance] in ranks {
            for (channel, (exact_mean, exact_variance)) in exact.iter().enumerate() {
                let error = (f64::from(mean[channel]) - exact_mean).abs();
                assert!(error <= 1e-7 * exact_mean.abs().max(1.0), "{error}");
                let error = (f64::from(variance[channel]) - exact_variance).abs();
                assert!(
                    error <= 1e-6 * exact_variance,
                    "{error} of {exact_variance}"
                );
            }
        }
    }
}

/// Two branches of equal shape, one of whose norms runs twice, and an odd one after them.
#[derive(Module, Debug)]
struct Branches {
    left: BatchNorm,
    right: Vec<BatchNorm>,
    last: Option<BatchNorm>,
}

impl Branches {
    fn new(device: &Device) -> Self {
        Self {
            left: norm(device),
            right: vec![norm(device), norm(device)],
            last: Some(norm(device)),
        }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let left = self.left.forward(x.clone().powi_scalar(2));
        let mut right = self.left.forward(tanh(x));
        for norm in &self.right {
            right = tanh(norm.forward(right));
        }
        let both = left * right;
        match &self.last {
            Some(norm) => norm.forward(both),
            None => both,
        }
    }

    /// The gradients of all parameters, and all running statistics.
    fn step(&self, input: Tensor<4>, weights: Tensor<4>) -> [Vec<f32>; 2] {
        let gradients = losses(self.forward(input), weights).sum().backward();
        let norms = [&self.left, &self.right[0], &self.right[1]];
        let norms = norms.into_iter().chain(&self.last);
        let gradient = |param: &Param<Tensor<1>>| values(param.val().grad(&gradients).unwrap());
        let of_norm = |norm: &BatchNorm| [gradient(&norm.gamma), gradient(&norm.beta)].concat();
        let running = |norm: &BatchNorm| {
            let statistics = [&norm.running_mean, &norm.running_var];
            statistics
                .map(|running| values(running.value_sync()))
                .concat()
        };
        [
            norms.clone().flat_map(of_norm).collect(),
            norms.flat_map(running).collect(),
        ]
    }
}

fn branches_agree(shares: &[usize], sums: Sums, device: &(impl Fn() -> Device + Sync)) {
    let shape = [shares.iter().sum(), CHANNELS, 3, 2];
    let own = device();
    let [expected, expected_running] =
        Branches::new(&own).step(tensor(5, shape, &own), tensor(6, shape, &own));
    let ranks = on_ranks(shares.len(), LossReduction::Sum, |group| {
        let device = device();
        let model = synchronize_batch_norms(Branches::new(&device), sums.over(&group)).unwrap();
        let range = share(shares, group.rank());
        let step = if range.is_empty() {
            let shape = [1, CHANNELS, 3, 2];
            let stand_in = Tensor::zeros(shape, &device);
            let [_, running] =
                without_samples(model.clone()).step(stand_in, tensor(6, shape, &device));
            // Nothing of the stand-in may count.
            [vec![0.0; expected.len()], running]
        } else {
            let input = tensor(5, shape, &device).slice([range.clone()]);
            model.step(input, tensor(6, shape, &device).slice([range]))
        };
        assert_eq!(group.aborted(), None);
        step
    });
    let mut sum = vec![0.0; expected.len()];
    for [gradients, running] in &ranks {
        sum.iter_mut()
            .zip(gradients)
            .for_each(|(sum, value)| *sum += value);
        assert_close(running, &expected_running);
    }
    assert_close(&sum, &expected);
}

#[test]
fn branches_and_layers_that_run_twice_keep_their_order() {
    for (shares, sums) in SHARES
        .into_iter()
        .flat_map(|of| SUMS.map(|sums| (of, sums)))
    {
        branches_agree(shares, sums, &device);
    }
}

#[test]
fn gradient_checkpointing_repeats_no_exchange() {
    for sums in SUMS {
        branches_agree(&[3, 2], sums, &|| device().gradient_checkpointing());
    }
}

#[test]
fn a_rank_without_samples_takes_part_and_counts_nothing() {
    let all = [[4, 0].as_slice(), &[0, 3], &[2, 0, 1], &[0, 5, 0, 2]];
    for (shares, sums) in all.into_iter().flat_map(|of| SUMS.map(|sums| (of, sums))) {
        branches_agree(shares, sums, &device);
    }
}

#[test]
fn an_input_of_no_rows_counts_nothing() {
    let shape = [4, CHANNELS, 3, 2];
    let device = device();
    let whole = tensor(7, shape, &device);
    let weights = tensor(8, shape, &device);
    let expected = step(&norm(&device), whole, weights, LossReduction::Sum);
    for sums in SUMS {
        let ranks = on_ranks(2, LossReduction::Sum, |group| {
            let device = self::device();
            let norm = attached(norm(&device), &group, sums);
            if group.rank() == 1 {
                let nothing = Tensor::<4>::zeros([0, CHANNELS, 3, 2], &device);
                let output = norm.forward(nothing.require_grad());
                assert_eq!(output.dims(), [0, CHANNELS, 3, 2]);
                drop(output.sum().backward());
                None
            } else {
                let (input, weights) = (tensor(7, shape, &device), tensor(8, shape, &device));
                Some(step(&norm, input, weights, LossReduction::Sum))
            }
        });
        let first = ranks[0].as_ref().unwrap();
        assert_close(&first.output, &expected.output);
        assert_close(&first.input, &expected.input);
        assert_close(&first.running, &expected.running);
    }
}

#[test]
fn a_step_in_which_nobody_has_samples_changes_nothing() {
    for sums in SUMS {
        on_ranks(2, LossReduction::MeanOverSamples, |group| {
            let device = device();
            let norm = attached(norm(&device), &group, sums);
            let stand_in = Tensor::<4>::ones([1, CHANNELS, 2, 2], &device);
            let output = without_samples(norm.clone()).forward(stand_in);
            drop(output.sum().backward());
            assert_eq!(values(norm.running_mean.value_sync()), [0.0; CHANNELS]);
            assert_eq!(values(norm.running_var.value_sync()), [1.0; CHANNELS]);
            assert_eq!(group.aborted(), None);
        });
    }
}

#[test]
fn a_sum_over_ranks_passes_sums_of_gradients_back() {
    for world_size in 1..=4 {
        let ranks = on_ranks(world_size, LossReduction::Sum, |group| {
            let device = device();
            let rank = group.rank();
            let statistics = Arc::clone(&group) as Arc<dyn StatisticsGroup>;
            let own = tensor(10 + rank as u64, [2, 3], &device).require_grad();
            let sum = all_reduce_sum(own.clone(), &statistics).unwrap();
            let loss = (sum.clone() * (rank + 1) as f32).sum();
            let gradients = loss.backward();
            (
                values(own.clone()),
                values(sum),
                values(own.grad(&gradients).unwrap()),
            )
        });
        let mut expected = vec![0.0; 6];
        for (own, _, _) in &ranks {
            expected
                .iter_mut()
                .zip(own)
                .for_each(|(sum, own)| *sum += own);
        }
        let weights = (world_size * (world_size + 1) / 2) as f32;
        for (_, sum, gradient) in &ranks {
            assert_close(sum, &expected);
            assert_eq!(*gradient, [weights; 6]);
        }
    }
}
