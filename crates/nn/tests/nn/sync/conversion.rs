//! A model is converted in one line, and stays Burn's for all else.

use std::sync::Arc;

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::{self as burns, Linear, LinearConfig};
use burn::prelude::*;
use everburn_nn::{
    BatchNorm, BatchNormConfig, LossReduction, StatisticsGroup, SyncError, isolate_batch_norms,
    spans_ranks, synchronize_batch_norms,
};

use super::ranks::Threads;
use crate::numbers::{assert_close, tensor, values};

/// Norms at every kind of place, generic over which.
#[derive(Module, Debug)]
struct Nested<N: Module> {
    first: N,
    linear: Linear,
    blocks: Vec<Block<N>>,
    pair: [N; 2],
    maybe: Option<N>,
}

#[derive(Module, Debug)]
struct Block<N: Module> {
    norm: N,
}

impl<N: Module + From<burns::BatchNorm> + burn::module::ModuleDisplay> Nested<N> {
    fn new(device: &Device) -> Self {
        let norm = || N::from(burns::BatchNormConfig::new(3).init(device));
        Self {
            first: norm(),
            linear: LinearConfig::new(3, 3).init(device),
            blocks: vec![Block { norm: norm() }, Block { norm: norm() }],
            pair: [norm(), norm()],
            maybe: Some(norm()),
        }
    }
}

impl Nested<BatchNorm> {
    fn world_sizes(&self) -> Vec<usize> {
        let blocks = self.blocks.iter().map(|block| &block.norm);
        let norms = blocks.chain(&self.pair).chain(&self.maybe);
        norms
            .chain([&self.first])
            .map(BatchNorm::world_size)
            .collect()
    }
}

fn group(world_size: usize) -> Arc<dyn StatisticsGroup> {
    Threads::groups(world_size, LossReduction::Sum).remove(0)
}

#[test]
fn conversion_reaches_every_norm_and_copies_keep_it() {
    let device = Device::flex().autodiff();
    let model = Nested::<BatchNorm>::new(&device);
    assert_eq!(model.world_sizes(), [1; 6]);
    assert!(!spans_ranks(&model));
    let model = synchronize_batch_norms(model, group(3)).unwrap();
    assert!(spans_ranks(&model));
    assert_eq!(model.world_sizes(), [3; 6]);
    assert_eq!(model.valid().world_sizes(), [3; 6]);
    assert_eq!(model.valid().train().world_sizes(), [3; 6]);
    assert_eq!(model.clone().fork(&device).world_sizes(), [3; 6]);
    assert_eq!(model.clone().freeze().world_sizes(), [3; 6]);
    assert_eq!(isolate_batch_norms(model).world_sizes(), [1; 6]);
}

#[test]
fn only_what_is_converted_is_attached() {
    let device = Device::flex();
    let converted = synchronize_batch_norms(Nested::<BatchNorm>::new(&device), group(2));
    assert_eq!(converted.unwrap().world_sizes(), [2; 6]);
    // Neither a later model nor a later `map` of any kind meets the group again.
    let other = Nested::<BatchNorm>::new(&device).no_grad();
    assert_eq!(other.world_sizes(), [1; 6]);
}

#[test]
fn a_norm_of_burns_own_type_is_named() {
    #[derive(Module, Debug)]
    struct Mixed {
        ours: BatchNorm,
        theirs: Block<burns::BatchNorm>,
    }
    let device = Device::flex();
    let model = Mixed {
        ours: BatchNormConfig::new(2).init(&device),
        theirs: Block {
            norm: burns::BatchNormConfig::new(2).init(&device),
        },
    };
    let error = synchronize_batch_norms(model, group(2)).unwrap_err();
    let path = "theirs.norm".to_owned();
    assert_eq!(error, SyncError::PlainBatchNorm { path });
    assert!(
        error
            .to_string()
            .contains("`theirs.norm` is a `burn::nn::BatchNorm`")
    );
}

/// Each tensor's path and the kind of module that holds it.
fn structure<M: Module>(model: &M) -> Vec<(String, String)> {
    #[derive(Default)]
    struct Collect {
        path: Vec<(String, String)>,
        found: Vec<(String, String)>,
    }
    impl ModuleVisitor for Collect {
        fn enter_module(&mut self, name: &str, container_type: &str) {
            self.path.push((name.to_owned(), container_type.to_owned()));
        }
        fn exit_module(&mut self, _name: &str, _container_type: &str) {
            self.path.pop();
        }
        fn visit_float<const D: usize>(&mut self, _param: &Param<Tensor<D>>) {
            let names = self.path.iter().map(|(name, _)| name.as_str());
            let container = self.path.last().unwrap().1.clone();
            self.found
                .push((names.collect::<Vec<_>>().join("."), container));
        }
    }
    let mut collect = Collect::default();
    model.visit(&mut collect);
    collect.found
}

/// All values, in visiting order.
fn state<M: Module>(model: &M) -> Vec<f32> {
    struct Collect(Vec<f32>);
    impl ModuleVisitor for Collect {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.extend(values(param.val()));
        }
    }
    let mut collect = Collect(Vec::new());
    model.visit(&mut collect);
    collect.0
}

#[test]
fn records_of_burns_norms_load_and_the_other_way_round() {
    let device = Device::flex().autodiff();
    let theirs = Nested::<burns::BatchNorm>::new(&device);
    let ours = Nested::<BatchNorm>::new(&device);
    assert_eq!(structure(&theirs), structure(&ours));

    // Values that no initialisation gives.
    let _output = theirs.first.forward(tensor::<2>(1, [8, 3], &device));
    let theirs = theirs.valid();
    let ours = ours.valid().load_record(theirs.clone().into_record());
    assert_eq!(state(&ours), state(&theirs));
    assert_ne!(values(ours.first.running_mean.value()), [0.0; 3]);

    // Attached to a group too: what is synchronised is no part of a record.
    let ours = synchronize_batch_norms(ours, group(2)).unwrap();
    let back = Nested::<burns::BatchNorm>::new(&device).load_record(ours.clone().into_record());
    assert_eq!(state(&back), state(&ours));
}

/// The numbers of a norm.
trait Fields {
    fn affine(&self) -> [&Param<Tensor<1>>; 2];
    fn running(&self) -> [Tensor<1>; 2];
}

macro_rules! fields {
    ($($norm:ty),*) => {$(
        impl Fields for $norm {
            fn affine(&self) -> [&Param<Tensor<1>>; 2] {
                [&self.gamma, &self.beta]
            }
            fn running(&self) -> [Tensor<1>; 2] {
                [self.running_mean.value_sync(), self.running_var.value_sync()]
            }
        }
    )*};
}
fields!(BatchNorm, burns::BatchNorm);

/// Output, gradients and running statistics of a step, to the bit.
fn step(
    norm: &impl Fields,
    forward: impl Fn(Tensor<3>) -> Tensor<3>,
    device: &Device,
) -> Vec<Vec<f32>> {
    let input = tensor::<3>(2, [5, 3, 4], device).require_grad();
    let output = forward(input.clone());
    let weights = tensor::<3>(3, [5, 3, 4], device);
    let gradients = (output.clone() * weights).sum().backward();
    let gradient = |param: &Param<Tensor<1>>| param.val().grad(&gradients).map(values);
    let [gamma, beta] = norm.affine();
    let [mean, variance] = norm.running();
    vec![
        values(output),
        input.grad(&gradients).map(values).unwrap_or_default(),
        gradient(gamma).unwrap_or_default(),
        gradient(beta).unwrap_or_default(),
        values(mean),
        values(variance),
    ]
}

#[test]
fn alone_frozen_and_in_inference_it_is_burns() {
    let device = Device::flex().autodiff();
    let burns = |device: &Device| {
        burns::BatchNormConfig::new(3)
            .with_momentum(0.2)
            .init(device)
    };
    let ours = |device: &Device| BatchNormConfig::new(3).with_momentum(0.2).init(device);

    let theirs = burns(&device);
    let expected = step(&theirs, |x| theirs.forward(x), &device);
    let alone = ours(&device);
    // But for the rounding of other kernels.
    let same = |step: Vec<Vec<f32>>| {
        assert_eq!(step.len(), expected.len());
        for (ours, theirs) in step.iter().zip(&expected) {
            assert_close(ours, theirs);
        }
    };
    same(step(&alone, |x| alone.forward(x), &device));
    let one = synchronize_batch_norms(ours(&device), group(1)).unwrap();
    same(step(&one, |x| one.forward(x), &device));

    // To the bit.
    // Nobody answers in these groups: an exchange would fail the test.
    let frozen = synchronize_batch_norms(ours(&device), group(2))
        .unwrap()
        .freeze();
    let theirs_frozen = burns(&device).freeze();
    assert_eq!(
        step(&frozen, |x| frozen.forward(x), &device),
        step(&theirs_frozen, |x| theirs_frozen.forward(x), &device)
    );
    let inference = synchronize_batch_norms(alone, group(2)).unwrap().valid();
    let input = tensor::<3>(4, [5, 3, 4], &Device::flex());
    assert_close(
        &values(inference.forward(input.clone())),
        &values(theirs.valid().forward(input)),
    );
}

#[test]
fn it_shows_itself_with_its_ranks() {
    let norm = BatchNormConfig::new(3).init(&Device::flex());
    assert_eq!(
        norm.to_string(),
        "BatchNorm {num_features: 3, momentum: 0.1, epsilon: 0.00001, params: 12}"
    );
    let norm = synchronize_batch_norms(norm, group(4)).unwrap();
    assert_eq!(
        norm.to_string(),
        "BatchNorm {num_features: 3, momentum: 0.1, epsilon: 0.00001, ranks: 4, params: 12}"
    );
}
