//! The norm of each gradient of the first two steps is PyTorch's.
//!
//! A gradient is seen by what it does, so that the whole engine is in between: after one step of plain SGD it is
//! the change of its parameter over the learning rate. That step is a training of its own, from the weights that the
//! case has come to by then. Its rate is so high that little of the gradient is lost where it is added to the
//! parameter: half of a last bit of their sum.

use std::collections::BTreeMap;

use burn::module::Module;
use everburn_train::{Objective, OptimizerConfig, OptimizerKind};

use crate::cases::{
    Case, RANKS, Start, gpt_nano, mnist_bn, simple_cnn, two_convolutions, two_part_resnet,
};
use crate::golden::{Golden, Norms, numbers_of};
use crate::planted::Planted;

/// The largest relative difference of a norm: that of `NORM_TOLERANCES` in `tests/parity/compare.py`.
const ALLOWED: f64 = 1e-4;

/// A norm below this share of the norm of all gradients together counts as that share: `NORM_FLOOR` there, which
/// says why.
const FLOOR: f64 = 4e-3;

/// A power of two: gradients times it are exact.
const RATE: f64 = 1024.0;

/// How far the norms of a step are apart, by name.
fn apart(ours: &Norms, theirs: &Norms, step: usize) -> BTreeMap<String, f64> {
    assert_eq!(
        ours.keys().collect::<Vec<_>>(),
        theirs.keys().collect::<Vec<_>>()
    );
    let squares = theirs.values().map(|norms| norms[step].powi(2));
    let floor = FLOOR * squares.sum::<f64>().sqrt();
    let pairs = ours.iter().zip(theirs.values());
    let apart = pairs.map(|((name, ours), theirs)| {
        let (ours, theirs) = (ours[step], theirs[step]);
        let apart = (ours - theirs).abs() / ours.max(theirs).max(floor);
        (name.clone(), apart)
    });
    apart.collect()
}

/// The names of those that are further apart than is allowed. Not a number is apart from everything.
fn wrong(ours: &Norms, theirs: &Norms, step: usize) -> Vec<String> {
    let apart = apart(ours, theirs, step).into_iter();
    let wrong = apart.filter(|(_, apart)| apart.is_nan() || *apart > ALLOWED);
    wrong.map(|(name, _)| name).collect()
}

impl<M, O, I> Case<M, O, I>
where
    M: Module + std::fmt::Display + Sync + 'static,
    O: Objective,
    I: Clone + Send + Sync + 'static,
{
    /// The norm of each gradient of the mean over a global batch.
    fn norms_of_step(&self, golden: &Golden, ranks: usize, start: &Start<M>) -> Vec<(String, f64)> {
        let plain = OptimizerConfig {
            kind: OptimizerKind::Sgd,
            learning_rate: RATE,
            ..OptimizerConfig::default()
        };
        let before = numbers_of(&start.model);
        let (_, after) = self.train_from(start, golden.batch, ranks, plain, 1);
        let after = numbers_of(after.model());
        assert_eq!(before.len(), after.len());
        let mut norms = Vec::new();
        for ((name, before), after) in before.into_iter().zip(after.into_values()) {
            assert_eq!(before.len(), after.len(), "{name}");
            if name.ends_with("running_mean") || name.ends_with("running_var") {
                continue;
            }
            let pairs = before.iter().zip(&after);
            let gradient = pairs.map(|(before, after)| f64::from(*before) - f64::from(*after));
            let squares = gradient.map(|change| (change / RATE).powi(2));
            let norm = squares.sum::<f64>().sqrt();
            if golden.gradient_norms.contains_key(&name) {
                norms.push((name, norm));
            } else {
                assert_eq!(norm, 0.0, "{name} is not learnt, and has changed");
            }
        }
        norms
    }

    /// The norms of the first two steps.
    fn norms(&self, golden: &Golden, ranks: usize) -> Norms {
        let first = self.norms_of_step(golden, ranks, &self.start(golden));
        let (_, learnt) = self.train(golden, ranks, golden.optimizer(), 1);
        let start = Start {
            model: learnt.model().valid(),
            step: 1,
            planted: None,
        };
        let second = self.norms_of_step(golden, ranks, &start);
        let steps = first.into_iter().zip(second);
        steps
            .map(|((name, first), (_, second))| (name, [first, second]))
            .collect()
    }

    /// Checks the norms on all numbers of ranks.
    fn has_gradients_of_pytorch(&self) {
        let golden = Golden::read(self.name);
        let theirs = &golden.gradient_norms;
        for ranks in RANKS {
            let ours = self.norms(&golden, ranks);
            for step in [0, 1] {
                let apart = apart(&ours, theirs, step);
                let by_size = |a: &(&String, &f64), b: &(&String, &f64)| a.1.total_cmp(b.1);
                let (worst, most) = apart.iter().max_by(by_size).unwrap();
                // Shown with --nocapture.
                #[allow(clippy::print_stderr)]
                {
                    eprintln!(
                        "{}, {ranks} ranks, step {step}: {most:.1e} ({worst})",
                        self.name
                    );
                }
                let wrong = wrong(&ours, theirs, step);
                assert!(
                    wrong.is_empty(),
                    "{} on {ranks} ranks at step {step}: the norms of the gradients of {wrong:?} are not PyTorch's; \
                     the furthest is that of {worst}, by {most:e}",
                    self.name
                );
            }
        }
    }

    /// Checks that a factor in the backward pass of any one tensor is found there, and that of all is seen.
    fn shows_planted_factors(&self, ranks: usize) {
        let golden = Golden::read(self.name);
        let theirs = &golden.gradient_norms;
        let mut start = self.start(&golden);
        let mut wrong_with = |planted: Planted| {
            let described = format!("{}, {planted:?}", self.name);
            start.planted = Some(planted);
            let norms = self.norms_of_step(&golden, ranks, &start);
            // Of step 0 alone.
            let norms = norms.into_iter().map(|(name, norm)| (name, [norm, 0.0]));
            (wrong(&norms.collect(), theirs, 0), described)
        };
        for name in theirs.keys() {
            let factors: &[f64] = match name.ends_with("bias") {
                true => &[1.01, 1.1],
                false => &[1.01],
            };
            for factor in factors {
                let (found, described) = wrong_with(Planted {
                    of: Some(name.clone()),
                    factor: *factor,
                });
                assert_eq!(found, std::slice::from_ref(name), "{described}");
            }
        }
        let (found, described) = wrong_with(Planted {
            of: None,
            factor: 1.001,
        });
        assert!(found.len() > theirs.len() / 2, "{described}: {found:?}");
        let (found, described) = wrong_with(Planted {
            of: None,
            factor: 1.0,
        });
        assert!(found.is_empty(), "{described}: {found:?}");
    }
}

#[test]
fn gradients_of_a_simple_cnn_are_pytorchs() {
    simple_cnn("simple-cnn-adam").has_gradients_of_pytorch();
    simple_cnn("simple-cnn-sgd").has_gradients_of_pytorch();
}

#[test]
fn gradients_of_two_convolutions_are_pytorchs() {
    two_convolutions("two-convolutions-sgd").has_gradients_of_pytorch();
}

#[test]
fn gradients_through_batch_norm_over_all_ranks_are_pytorchs() {
    mnist_bn("mnist-bn-adam").has_gradients_of_pytorch();
    mnist_bn("mnist-bn-sgd").has_gradients_of_pytorch();
}

#[test]
fn gradients_of_the_two_part_resnet_are_pytorchs() {
    two_part_resnet("two-part-resnet-adam").has_gradients_of_pytorch();
    two_part_resnet("two-part-resnet-sgd").has_gradients_of_pytorch();
}

#[test]
fn gradients_of_gpt_nano_are_pytorchs() {
    gpt_nano("gpt-nano-adam-w").has_gradients_of_pytorch();
    gpt_nano("gpt-nano-sgd").has_gradients_of_pytorch();
}

#[test]
fn a_factor_in_the_backward_pass_of_any_tensor_is_seen() {
    simple_cnn("simple-cnn-sgd").shows_planted_factors(2);
    two_convolutions("two-convolutions-sgd").shows_planted_factors(1);
    mnist_bn("mnist-bn-sgd").shows_planted_factors(2);
    two_part_resnet("two-part-resnet-sgd").shows_planted_factors(1);
    gpt_nano("gpt-nano-sgd").shows_planted_factors(1);
}

#[test]
fn a_gradient_that_is_zero_but_for_rounding_has_a_floor() {
    let norms = |of_zero| Norms::from([("weight".into(), [3.0; 2]), ("bias".into(), [of_zero; 2])]);
    let wrong = |ours| wrong(&norms(ours), &norms(1e-9), 0);
    assert!(wrong(4e-7).is_empty());
    assert_eq!(wrong(2e-6), ["bias"]);
    assert_eq!(wrong(f64::NAN), ["bias"]);
}
