//! Loss, gradients and parameters are those of one device.

use std::num::NonZeroUsize;
use std::sync::Arc;

use burn::module::Module;
use burn::prelude::*;
use burn::tensor::activation::gelu;
use burn::tensor::{Distribution, Tolerance};
use everburn_collectives::group::{GroupOptions, ProcessGroup, ReductionOrder};
use everburn_distributed::{ModuleRanks, tensor_parallel};
use everburn_models::gpt::{Gpt, Positions};
use everburn_nn::{
    Linear, LinearConfig, Randomness, TensorGroup, TensorRule, checkpointed_forward,
    parameter_paths, parameter_shards, split_backward,
};
use everburn_tests::in_parallel;

use super::model::{StepResult, assert_equal, cut, device, gathered, gpt, loss_of, tokens};
use crate::device::ways;
use crate::parameters::{Named, gradients};
use crate::ranks::separate;

fn groups(world_size: usize) -> Vec<ProcessGroup> {
    let options = GroupOptions {
        order: ReductionOrder::Rank,
        ..GroupOptions::default()
    };
    ProcessGroup::over_threads(world_size, options)
}

#[derive(Module, Debug)]
struct Mlp {
    first: Linear,
    up: Linear,
    down: Linear,
    last: Linear,
}

impl Mlp {
    fn new() -> Self {
        let linear = |i, o| LinearConfig::new(i, o).init(&device());
        Self {
            first: linear(5, 6),
            up: linear(6, 24),
            down: LinearConfig::new(24, 6).with_bias(false).init(&device()),
            last: linear(6, 3),
        }
    }

    fn loss(&self, x: Tensor<2>) -> Tensor<1> {
        let x = self.first.forward(x).tanh();
        let x = self.down.forward(gelu(self.up.forward(x.clone()))) + x;
        self.last.forward(x).powi_scalar(2).mean()
    }
}

fn rules() -> [TensorRule; 2] {
    [TensorRule::column("up"), TensorRule::row("down")]
}

/// A step of seven rows, the same for each model.
fn steps() -> impl Fn(&Mlp) -> StepResult + Sync {
    let values = Distribution::Default;
    let input = Tensor::<2>::random([7, 5], values, &Device::flex()).into_data();
    move |model: &Mlp| {
        let input = Tensor::from_data(input.clone(), &device());
        let loss = model.loss(input);
        let named = gradients(model, &loss.backward());
        StepResult::new(&loss, named, model)
    }
}

#[test]
fn sums_by_nccl_have_the_bits_of_those_through_host_memory() {
    let (whole, step) = (Mlp::new(), steps());
    // A sum of two numbers is rounded alike everywhere.
    let host = in_parallel(groups(2), |group| {
        step(&tensor_parallel(separate(&whole), &rules(), &group).unwrap())
    });
    for way in [
        ways::Way::Nccl,
        ways::Way::NcclAndHostWaits,
        ways::Way::NcclOnOldDriver,
    ] {
        let by_nccl = ways::on_ranks(2, |rank| {
            let ranks = ModuleRanks::new(&rank.group).unwrap();
            let ranks = ranks.with_communicator(&rank.communicator(way));
            let ranks: Arc<dyn TensorGroup> = Arc::new(ranks);
            let model = everburn_nn::tensor_parallel(separate(&whole), &rules(), &ranks).unwrap();
            let found = step(&model);
            // One sum forward and one backward, each with eight numbers for the place of the layer.
            let calls = rank.cluster.take_calls(rank.number());
            assert_eq!(calls, ["all_reduce(f32[50], sum)"; 2]);
            found
        });
        for (found, expected) in by_nccl.iter().zip(&host) {
            assert_eq!(found.loss.to_bits(), expected.loss.to_bits(), "{way:?}");
            assert_eq!(found.named, expected.named, "{way:?}");
        }
    }
}

/// How a decoder's step is run.
#[derive(Debug, Clone, Copy)]
enum Way {
    Plain,
    Halves,
    Recomputed,
}

fn found(model: &Gpt, way: Way) -> StepResult {
    let input = tokens(3, 0, &device());
    let (loss, all) = match way {
        Way::Plain => {
            let loss = loss_of(model.forward(input));
            let gradients = loss.backward();
            (loss, vec![gradients])
        }
        Way::Halves => {
            let (loss, weight_backward) = split_backward::record(|| loss_of(model.forward(input)));
            let first = loss.backward();
            (loss, vec![first, weight_backward.run().unwrap().unwrap()])
        }
        Way::Recomputed => {
            let scores = checkpointed_forward(model, input, NonZeroUsize::MIN, Randomness::Unused);
            let loss = loss_of(scores);
            let gradients = loss.backward();
            (loss, vec![gradients])
        }
    };
    let mut named = Named::new();
    for part in &all {
        named.extend(gradients(model, part));
    }
    StepResult::new(&loss, named, model)
}

#[test]
fn a_decoder_has_the_gradients_of_one_device() {
    for positions in [Positions::Learned, Positions::Rotary] {
        let whole = gpt(positions);
        let expected = found(&whole, Way::Plain);
        for (world_size, way) in [
            (2, Way::Plain),
            (3, Way::Plain),
            (4, Way::Plain),
            (2, Way::Halves),
            (3, Way::Halves),
            (2, Way::Recomputed),
        ] {
            let ranks = in_parallel(groups(world_size), |group| {
                let model = cut(&whole, &group);
                assert_eq!(parameter_shards(&model).len(), 2 * (4 * 2 + 2));
                let found = found(&model, way);
                // Nothing has failed in secret.
                group.barrier().wait().unwrap();
                found
            });
            let off = (ranks[0].loss - expected.loss).abs();
            assert!(off <= 1e-5 * expected.loss, "{off} off with {way:?}");
            assert_equal(&gathered(&ranks), &expected.named, 1e-5);
        }
    }
}

#[test]
fn two_halves_have_the_bits_of_the_whole_on_every_rank() {
    let whole = gpt(Positions::Learned);
    in_parallel(groups(2), |group| {
        let model = cut(&whole, &group);
        assert_eq!(
            found(&model, Way::Halves).named,
            found(&model, Way::Plain).named
        );
    });
}

#[test]
fn a_model_that_is_cut_validates_like_the_whole() {
    let whole = gpt(Positions::Rotary);
    let input = || tokens(2, 1, &Device::flex());
    let expected = whole.valid().forward(input()).into_data();
    in_parallel(groups(3), |group| {
        let model = cut(&whole, &group);
        let paths = |model: &Gpt| {
            let paths = parameter_paths(model).into_iter();
            paths.map(|parameter| parameter.path).collect::<Vec<_>>()
        };
        assert_eq!(paths(&model), paths(&whole));
        let found = model.valid().forward(input()).into_data();
        found.assert_approx_eq::<f32>(&expected, Tolerance::default());
    });
}
