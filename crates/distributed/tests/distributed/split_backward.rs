//! Weights with deferred gradients are averaged over replicas like all others.

use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig};
use burn::prelude::*;
use burn::tensor::module::embedding;
use everburn_distributed::{Ddp, DdpConfig, SyncedGradients, Synchronization};
use everburn_nn::tensor::module::linear;
use everburn_nn::{Linear, LinearConfig, split_backward};

use crate::parameters::{gradients, numbers, parameters};
use crate::ranks::on_ranks;

/// A head that is tied to the embedding, and layers between.
#[derive(Module, Debug)]
struct Net {
    embedding: Embedding,
    layers: Vec<Linear>,
    norm: LayerNorm,
}

impl Net {
    fn new(device: &Device) -> Self {
        let linear = || LinearConfig::new(6, 6).init(device);
        Self {
            embedding: EmbeddingConfig::new(9, 6).init(device),
            layers: vec![linear(), linear(), linear()],
            norm: LayerNormConfig::new(6).init(device),
        }
    }

    fn loss(&self, ids: Tensor<2, Int>) -> Tensor<1> {
        let mut x = embedding(split_backward::parameter(self.embedding.weight.val()), ids);
        for layer in &self.layers {
            x = layer.forward(x).tanh();
        }
        let head = self.embedding.weight.val().transpose();
        linear(self.norm.forward(x), head, None)
            .powi_scalar(2)
            .mean()
    }
}

fn ids(micro_batch: usize, rank: usize, device: &Device) -> Tensor<2, Int> {
    let number = |i: usize| ((i * 7 + micro_batch * 5 + rank * 3) % 9) as i32;
    let numbers = (0..8).map(number).collect::<Vec<_>>();
    Tensor::<1, Int>::from_ints(numbers.as_slice(), device).reshape([2, 4])
}

fn averaged(model: &Net, synced: &SyncedGradients) -> Vec<f32> {
    let all = gradients(model, &synced.gradients);
    assert_eq!(all.len(), parameters(model).len(), "a gradient of each");
    numbers(&all)
}

/// One pass for each micro-batch, the last of which sends gradients off.
const MICRO_BATCHES: usize = 3;

fn watched(step: &Synchronization, model: &Net, micro_batch: usize) -> Net {
    match micro_batch + 1 == MICRO_BATCHES {
        true => step.with_hooks(model, 2),
        false => step.with_hooks_no_sync(model, 2),
    }
}

fn whole(step: &Synchronization, model: &Net, rank: usize, device: &Device) {
    for micro_batch in 0..MICRO_BATCHES {
        let model = watched(step, model, micro_batch);
        drop(model.loss(ids(micro_batch, rank, device)).backward());
    }
}

/// All forward passes, then the first halves, then the second.
fn halves(step: &Synchronization, model: &Net, rank: usize, device: &Device) {
    let forward = |micro_batch| {
        let model = watched(step, model, micro_batch);
        split_backward::record(|| model.loss(ids(micro_batch, rank, device)))
    };
    let recorded = (0..MICRO_BATCHES).map(forward).collect::<Vec<_>>();
    let backward = |(loss, weight_backward): (Tensor<1>, split_backward::WeightBackward)| {
        drop(loss.backward());
        weight_backward
    };
    let waiting = recorded.into_iter().map(backward).collect::<Vec<_>>();
    for weight_backward in waiting {
        assert!(weight_backward.run().unwrap().is_some());
    }
}

#[test]
fn gradients_in_two_halves_are_averaged_to_the_same_bits() {
    let ranks = on_ranks(2, |group| {
        let (rank, device) = (group.rank(), Device::flex().autodiff());
        // Several buckets, so that they leave in the order in which gradients come.
        let config = DdpConfig {
            bucket_bytes: 200,
            first_bucket_bytes: 100,
            ..DdpConfig::default()
        };
        let (ddp, model) = Ddp::new(Net::new(&device), group, config).unwrap();
        let mut found = Vec::new();
        for pass in [whole, halves, halves, whole] {
            let step = ddp.begin(2 * MICRO_BATCHES).unwrap();
            pass(&step, &model, rank, &device);
            found.push(averaged(&model, &step.finish(&model).unwrap()));
        }
        found
    });
    for found in ranks {
        assert!(found[0].iter().any(|gradient| *gradient != 0.0));
        for other in &found[1..] {
            assert_eq!(*other, found[0]);
        }
    }
}
