//! Dropout in checkpointed segments. Flex has one generator for the process, so each of these tests that could be
//! disturbed by draws of others has a process of its own.

use burn::nn::{Dropout, DropoutConfig};
use burn::prelude::*;
use burn::tensor::{Distribution, Int};
use everburn_nn::{Randomness, checkpoint, checkpoint_with};

use crate::alone::alone;
use crate::numbers::values;
use crate::recompute::model::{Net, autodiff, outcome, plain, rows};

fn dropout() -> Dropout {
    DropoutConfig::new(0.5).init()
}

fn many(device: &Device) -> Tensor<2> {
    Tensor::ones([32, 32], device).require_grad()
}

#[test]
fn the_backward_pass_sees_the_mask_of_the_forward_pass() {
    alone(|| {
        let device = autodiff();
        device.seed(3);
        let x = many(&device);
        let segment = |dropout: &Dropout, x| dropout.forward(x);
        let first = checkpoint(&dropout(), x.clone(), segment);
        let second = checkpoint(&dropout(), first.clone(), segment);
        let masks = [&first, &second].map(|output| values(output.clone()));
        assert!(masks[0].contains(&0.0) && masks[0].contains(&2.0));
        assert_ne!(masks[0], masks[1], "each segment draws its own");
        let all = second.sum().backward();
        // Of ones, the output is the product of the masks, and so is the gradient.
        assert_eq!(values(x.grad(&all).unwrap()), masks[1]);
    });
}

/// A segment's seed is the next thing that the generator gives.
fn seed_a_segment(device: &Device) {
    let parts = Tensor::<1, Int>::random([4], Distribution::Uniform(0.0, 32767.0), device);
    let parts = parts.into_data();
    device.seed(
        parts
            .iter::<i64>()
            .fold(0, |bits, part| (bits << 15) | part as u64),
    );
}

#[test]
fn equal_to_plain_code_that_draws_the_same_masks() {
    alone(|| {
        let device = autodiff();
        let net = Net::new(&device, 3, 0.3);
        let with_seed = |net: &Net, x| {
            seed_a_segment(&device);
            plain(net, x)
        };
        let nested = |net: &Net, x| checkpoint(net, x, |net: &Net, x| checkpoint(net, x, plain));
        let seeded = |seed, forward: &dyn Fn(&Net, Tensor<2>) -> Tensor<2>| {
            device.seed(seed);
            outcome(&net, forward)
        };
        let checkpointed = |net: &Net, x| checkpoint(net, x, plain);
        assert_eq!(seeded(11, &checkpointed), seeded(11, &with_seed));
        assert_ne!(seeded(11, &checkpointed), seeded(12, &checkpointed));
        assert_eq!(seeded(11, &nested), seeded(11, &nested));
        // What is inside a segment draws a seed of its own.
        let twice = |net: &Net, x| {
            seed_a_segment(&device);
            with_seed(net, x)
        };
        assert_eq!(seeded(11, &nested), seeded(11, &twice));
    });
}

#[test]
fn gradients_are_the_slopes_of_the_output_that_was_computed() {
    alone(|| {
        let device = autodiff();
        let net = Net::new(&device, 2, 0.4);
        let forward = |x: Tensor<2>| {
            device.seed(5);
            checkpoint(&net, x, plain)
        };
        let x = rows(&device).require_grad();
        let all = forward(x.clone()).sum().backward();
        let gradient = x.grad(&all).unwrap();
        // Along the gradient the output grows by its square.
        let square = gradient.clone().powf_scalar(2.0).sum().into_scalar::<f32>();
        let step = Tensor::from_inner(gradient) * (1e-2 / square.sqrt());
        let at = |x: Tensor<2>| forward(x).sum().into_scalar::<f32>();
        let slope = (at(x.clone() + step.clone()) - at(x - step)) / 2e-2;
        assert!(
            (slope - square.sqrt()).abs() < 0.02 * square.sqrt(),
            "{slope} and {}",
            square.sqrt()
        );
    });
}

#[test]
fn what_is_drawn_later_depends_on_the_seed_alone() {
    alone(|| {
        let device = autodiff();
        let draw = || values(Tensor::<1>::random([8], Distribution::Default, &device));
        let run = |backward: bool| {
            device.seed(9);
            let output = checkpoint(&dropout(), many(&device), Dropout::forward);
            let between = draw();
            if backward {
                drop(output.sum().backward());
            }
            (between, draw())
        };
        assert_eq!(run(true), run(true));
        assert_eq!(run(true).0, run(false).0);
        let (between, after) = run(true);
        assert_ne!(between, after);
        // The recomputation leaves the generator neither at its own end nor where the forward pass was.
        assert_ne!(after, run(false).1);
    });
}

#[test]
fn unused_leaves_the_generator_alone() {
    alone(|| {
        let device = autodiff();
        let net = Net::new(&device, 1, 0.0);
        let draw = || values(Tensor::<1>::random([8], Distribution::Default, &device));
        device.seed(21);
        let expected = draw();
        device.seed(21);
        let output = checkpoint_with(Randomness::Unused, &net, rows(&device), plain);
        drop(output.sum().backward());
        assert_eq!(draw(), expected);
    });
}

#[test]
fn weights_that_are_drawn_in_the_segment_are_not_drawn_again() {
    alone(|| {
        let device = autodiff();
        device.seed(4);
        let net = Net::undrawn(&device, 2, 0.5);
        let first = outcome(&net, |net, x| {
            device.seed(4);
            checkpoint(net, x, plain)
        });
        let again = outcome(&net, |net, x| {
            device.seed(4);
            checkpoint(net, x, plain)
        });
        assert_eq!(first, again);
    });
}

#[test]
fn numbers_drawn_by_others_meanwhile_are_noticed() {
    alone(|| {
        let device = autodiff();
        let output = checkpoint(&dropout(), many(&device), |dropout, x| {
            let x = dropout.forward(x);
            if everburn_nn::recomputing() {
                // As another thread would, between the segment's own draws.
                let _ = Tensor::<1>::random([1], Distribution::Default, &x.device());
            }
            dropout.forward(x)
        });
        let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            drop(output.sum().backward());
        }));
        let payload = failed.expect_err("must panic");
        let message = payload.downcast_ref::<&str>().copied();
        assert!(
            message.expect("words").contains("another thread"),
            "{message:?}"
        );
    });
}

#[test]
fn numbers_drawn_by_others_do_no_harm_where_the_segment_draws_none() {
    let device = autodiff();
    let net = Net::new(&device, 1, 0.0);
    let noise = |device: &Device| {
        let _ = Tensor::<1>::random([3], Distribution::Default, device);
    };
    let disturbed = |net: &Net, x: Tensor<2>| {
        checkpoint(net, x, move |net: &Net, x| {
            if !everburn_nn::recomputing() {
                noise(&x.device());
            }
            plain(net, x)
        })
    };
    assert_eq!(outcome(&net, disturbed), outcome(&net, plain));
}
