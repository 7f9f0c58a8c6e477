//! Models in blocks.

use burn::nn::LinearConfig;
use burn::prelude::*;
use everburn_nn::{Blocks, InBlocks, Placement, Randomness, checkpoint, checkpointed_forward};

use super::model::{Net, WIDTH, autodiff, outcome, plain, rows};

impl InBlocks for Net {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn blocks(&self) -> Blocks<Self, Tensor<2>, Tensor<2>> {
        let others = ["embedding", "frozen", "unused"];
        Blocks::first("start", others, |_: &Self, x: Tensor<2>| x).each(
            "layers",
            self.layers.len(),
            |net, i, x| net.layers[i].forward(x),
        )
    }
}

#[test]
fn segments_of_any_number_of_blocks_equal_the_whole() {
    let net = Net::new(&autodiff(), 4, 0.0);
    let expected = outcome(&net, plain);
    for every in 1..=6 {
        let every = every.try_into().unwrap();
        let forward = |net: &Net, x| checkpointed_forward(net, x, every, Randomness::Unused);
        assert_eq!(outcome(&net, forward), expected, "{every}");
    }
}

#[test]
fn a_range_of_blocks_asks_for_its_own_parameters_only() {
    let device = autodiff();
    let mut net = Net::new(&device, 3, 0.0);
    // Parameters are drawn when they are first asked for.
    net.layers[2].up = LinearConfig::new(WIDTH, 2 * WIDTH).init(&device);
    let output = checkpoint(&net, rows(&device), |net: &Net, x| {
        let activation = net.blocks().run(net, 0..3, Box::new(x));
        *activation.into_any().downcast::<Tensor<2>>().unwrap()
    });
    let _ = output.sum().backward();
    assert!(net.layers[1].up.weight.is_initialized());
    assert!(!net.layers[2].up.weight.is_initialized());
}

#[test]
fn a_model_over_several_devices() {
    let device = autodiff();
    let net = Net::new(&device, 4, 0.0);
    let expected = outcome(&net, plain);
    let placement = Placement::new()
        .put("start", &device)
        .put("layers.2", &device);
    let split = placement.split(&net).unwrap();
    for every in [1, 2, 3] {
        let split = split.clone().recomputing(every.try_into().ok());
        let forward = |net: &Net, x| split.forward(net, x);
        assert_eq!(outcome(&net, forward), expected, "{every}");
    }
}
