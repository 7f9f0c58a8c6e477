//! Our trainings are PyTorch's: each case of `tests/parity/cases.py`, on 1, 2 and 4 ranks. Here are the curves of
//! losses, in `gradients.rs` the norms of gradients.
//!
//! The trainer is the whole one, with its sampler, buckets and optimizers; only its data set is arranged so
//! that it reads PyTorch's samples in PyTorch's order. Ranks are threads.

mod cases;
mod golden;
mod gradients;
mod nets;
mod planted;
mod state_dicts;

use burn::module::Module;
use everburn_train::{Objective, OptimizerConfig};

use cases::{Case, RANKS, gpt_nano, mnist_bn, simple_cnn, two_convolutions, two_part_resnet};
use golden::{Golden, STEPS};

/// The largest relative difference of a loss in the first 50 steps, and in the rest.
const ALLOWED: [f64; 2] = [1e-4, 1e-3];

impl<M, O, I> Case<M, O, I>
where
    M: Module + std::fmt::Display + Sync + 'static,
    O: Objective,
    I: Clone + Send + Sync + 'static,
{
    /// Checks that all numbers of ranks follow PyTorch.
    fn follows(&self) {
        let golden = Golden::read(self.name);
        for ranks in RANKS {
            let (losses, _) = self.train(&golden, ranks, golden.optimizer(), STEPS);
            let apart = apart(&losses, golden.losses_of(ranks));
            // Shown with --nocapture.
            #[allow(clippy::print_stderr)]
            {
                eprintln!(
                    "{}, {ranks} ranks: {:.1e} {:.1e}",
                    self.name, apart[0], apart[1]
                );
            }
            assert!(
                apart[0] <= ALLOWED[0] && apart[1] <= ALLOWED[1],
                "{} on {ranks} ranks: a loss differs from PyTorch's by {:e} in the first 50 steps and \
                 by {:e} after them",
                self.name,
                apart[0],
                apart[1]
            );
        }
    }
}

/// The largest relative difference in the first 50 steps, and in the rest.
fn apart(ours: &[f64], theirs: &[f64]) -> [f64; 2] {
    assert_eq!(ours.len(), STEPS);
    assert_eq!(theirs.len(), STEPS);
    let relative = |(a, b): (&f64, &f64)| (a - b).abs() / a.abs().max(b.abs());
    let relative = ours.iter().zip(theirs).map(relative).collect::<Vec<_>>();
    // Not a number is apart from everything.
    let largest = |part: &[f64]| {
        part.iter()
            .fold(0.0, |most: f64, x| if *x <= most { most } else { *x })
    };
    [largest(&relative[..50]), largest(&relative[50..])]
}

#[test]
fn a_simple_cnn_follows_pytorch() {
    simple_cnn("simple-cnn-adam").follows();
    simple_cnn("simple-cnn-sgd").follows();
}

#[test]
fn two_convolutions_with_sgd_and_momentum_follow_pytorch() {
    two_convolutions("two-convolutions-sgd").follows();
}

#[test]
fn batch_norm_over_all_ranks_with_adam_follows_pytorch() {
    mnist_bn("mnist-bn-adam").follows();
}

#[test]
fn batch_norm_over_all_ranks_with_sgd_follows_pytorch() {
    mnist_bn("mnist-bn-sgd").follows();
}

#[test]
fn the_two_part_resnet_with_adam_follows_pytorch() {
    two_part_resnet("two-part-resnet-adam").follows();
}

#[test]
fn the_two_part_resnet_with_sgd_follows_pytorch() {
    two_part_resnet("two-part-resnet-sgd").follows();
}

#[test]
fn gpt_nano_with_adam_w_follows_pytorch() {
    gpt_nano("gpt-nano-adam-w").follows();
}

#[test]
fn gpt_nano_with_sgd_follows_pytorch() {
    gpt_nano("gpt-nano-sgd").follows();
}

/// The comparison is sharp: what people get wrong when they rebuild an optimizer is seen.
#[test]
fn a_slightly_different_optimizer_does_not_follow() {
    let case = simple_cnn("simple-cnn-adam");
    let golden = Golden::read(case.name);
    let right = golden.optimizer();
    let wrong = [
        OptimizerConfig {
            epsilon: Some(1e-5), // Burn's default
            ..right.clone()
        },
        OptimizerConfig {
            beta_2: Some(0.998),
            ..right.clone()
        },
        OptimizerConfig {
            learning_rate: 1.001e-3,
            ..right.clone()
        },
    ];
    for optimizer in wrong {
        let described = format!("{optimizer:?}");
        let (losses, _) = case.train(&golden, 1, optimizer, STEPS);
        let apart = apart(&losses, golden.losses_of(1));
        assert!(
            apart[0] > ALLOWED[0] || apart[1] > ALLOWED[1],
            "{described} follows PyTorch as well: {apart:?}"
        );
    }
}
