//! A decoder, and what ranks have found of its parts, to be compared with the whole.

use burn::module::{Module, ModuleMapper, Param};
use burn::prelude::*;
use burn::tensor::TensorData;
use everburn_collectives::group::ProcessGroup;
use everburn_distributed::tensor_parallel;
use everburn_models::gpt::{Gpt, GptConfig, Positions};
use everburn_nn::{ParameterShard, TensorParallel, parameter_shards};

use crate::parameters::Named;
use crate::ranks::separate;

pub const VOCABULARY: usize = 11;
/// Tokens of a text.
pub const LENGTH: usize = 6;

pub fn device() -> Device {
    Device::flex().autodiff()
}

/// A decoder whose width and heads go round on 2, 3 and 4 ranks.
pub fn gpt(positions: Positions) -> Gpt {
    let config = GptConfig::new(VOCABULARY)
        .with_context(LENGTH)
        .with_width(48)
        .with_layers(2)
        .with_heads(12)
        .with_positions(positions)
        .with_deviation(0.2);
    drawn(config.init(&device()), 1)
}

/// The model with weights of `seed`, the same in each run: what is compared within rounding must not
/// depend on luck. What is the same everywhere, of a norm or a bias, stays.
pub fn drawn<M: Module>(model: M, seed: u64) -> M {
    struct Draw(u64);
    impl ModuleMapper for Draw {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let (id, old, mapper) = param.consume();
            let given: Vec<f32> = old.to_data().iter().collect();
            if given.iter().all(|value| *value == given[0]) {
                return Param::from_mapped_value(id, old, mapper);
            }
            let values = given.iter().map(|_| {
                // Knuth's MMIX generator; its upper bits are the good ones.
                let next = self.0.wrapping_mul(6_364_136_223_846_793_005);
                self.0 = next.wrapping_add(1_442_695_040_888_963_407);
                0.35 * ((self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0)
            });
            let values = TensorData::new(values.collect::<Vec<_>>(), old.dims());
            let drawn = Tensor::from_data(values, &old.device());
            let drawn = drawn.set_require_grad(old.is_require_grad());
            Param::from_mapped_value(id, drawn, mapper)
        }
    }
    model.map(&mut Draw(seed))
}

/// A decoder of its own with the parts of `whole` that are this rank's.
pub fn cut(whole: &Gpt, group: &ProcessGroup) -> Gpt {
    tensor_parallel(separate(whole), &whole.tensor_rules(), group).unwrap()
}

/// Texts, and the tokens that follow.
pub fn tokens(texts: usize, step: usize, device: &Device) -> Tensor<2, Int> {
    let number = |i: usize| ((i * i + 5 * i + 3 * step) % VOCABULARY) as i32;
    let numbers = (0..texts * LENGTH).map(number).collect::<Vec<_>>();
    Tensor::<1, Int>::from_ints(numbers.as_slice(), device).reshape([texts, LENGTH])
}

/// A loss that depends on all scores alike on every rank.
pub fn loss_of(logits: Tensor<3>) -> Tensor<1> {
    let scores = burn::tensor::activation::log_softmax(logits, 2);
    scores.slice_dim(2, 2..5).mean().neg()
}

/// The result of one rank, and which of its tensors are shards.
pub struct StepResult {
    pub loss: f32,
    pub named: Named,
    pub shards: Vec<ParameterShard>,
}

impl StepResult {
    pub fn new<M: Module>(loss: &Tensor<1>, named: Named, model: &M) -> Self {
        Self {
            loss: loss.clone().into_scalar(),
            named,
            shards: parameter_shards(model),
        }
    }
}

/// Joins the shards of all ranks; other tensors must have the same bits on all.
#[track_caller]
pub fn gathered(ranks: &[StepResult]) -> Named {
    let mut whole = Named::new();
    for (path, first) in &ranks[0].named {
        let parts = ranks.iter().map(|rank| rank.named[path].clone());
        let parts = parts.collect::<Vec<_>>();
        let shard = ranks[0].shards.iter().find(|shard| shard.path == *path);
        let value = match shard {
            Some(shard) => shard.join(&parts).unwrap(),
            None => {
                for (rank, part) in parts.iter().enumerate() {
                    assert_eq!(part, first, "{path} differs on rank {rank}");
                }
                first.clone()
            }
        };
        whole.insert(path.clone(), value);
    }
    for rank in ranks {
        assert_eq!(rank.loss.to_bits(), ranks[0].loss.to_bits());
    }
    whole
}

/// Equal up to `tolerance` of a tensor's largest element; what is nothing but rounding (the gradient
/// of a key's bias, which moves all scores alike) up to that of a hundredth of the largest of all.
#[track_caller]
pub fn assert_equal(found: &Named, expected: &Named, tolerance: f32) {
    let paths = |named: &Named| named.keys().cloned().collect::<Vec<_>>();
    assert_eq!(paths(found), paths(expected));
    let largest = |data: &TensorData| data.iter::<f32>().fold(0.0f32, |a, b| a.max(b.abs()));
    let overall = expected.values().map(largest).fold(0.0, f32::max);
    assert!(overall > 0.0);
    for (path, expected) in expected {
        let found = &found[path];
        assert_eq!(found.shape(), expected.shape(), "{path}");
        let scale = largest(expected).max(overall / 100.0);
        for (a, b) in found.iter::<f32>().zip(expected.iter::<f32>()) {
            assert!(
                (a - b).abs() <= tolerance * scale,
                "{a} and {b} in {path}, of {scale}"
            );
        }
    }
}
