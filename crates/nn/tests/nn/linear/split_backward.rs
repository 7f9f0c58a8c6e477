//! A backward pass in two halves equals one whole, to the bit.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig};
use burn::prelude::*;
use burn::tensor::Gradients;
use burn::tensor::activation::gelu;
use burn::tensor::module::embedding;
use everburn_nn::split_backward::{self, SplitBackwardError};
use everburn_nn::tensor::module::linear;
use everburn_nn::{Linear, LinearConfig};

use crate::numbers::{all_gradients, assert_close, tensor, values};

#[derive(Module, Debug)]
struct Stack {
    layers: Vec<Linear>,
    /// Runs twice.
    again: Linear,
    head: Linear,
}

impl Stack {
    fn new(device: &Device) -> Self {
        let layer = || LinearConfig::new(6, 6).init(device);
        Self {
            layers: vec![layer(), layer(), layer()],
            again: layer(),
            head: LinearConfig::new(6, 2).with_bias(false).init(device),
        }
    }

    fn loss<const D: usize>(&self, input: Tensor<D>) -> Tensor<1> {
        let step = |x, layer: &Linear| gelu(layer.forward(x));
        let x = self.layers.iter().fold(input, step);
        let x = self.again.forward(self.again.forward(x).tanh());
        self.head.forward(x).powi_scalar(2).mean()
    }
}

type Named = BTreeMap<String, Vec<f32>>;

/// The gradients of all parameters that have one.
fn gradients_of<M: Module>(model: &M, gradients: &Gradients) -> Named {
    let found = all_gradients(model, gradients).into_iter();
    let found = found.filter_map(|(path, gradient)| Some((path, gradient?)));
    found.collect()
}

/// Loss and gradients of the input and all parameters, in one backward pass.
fn whole<const D: usize>(model: &Stack, input: Tensor<D>) -> (f32, Vec<f32>, Named) {
    let input = input.require_grad();
    let loss = model.loss(input.clone());
    let gradients = loss.backward();
    let input = values(input.grad(&gradients).unwrap());
    (values(loss)[0], input, gradients_of(model, &gradients))
}

/// The same in two halves.
fn halves<const D: usize>(model: &Stack, input: Tensor<D>) -> (f32, Vec<f32>, Named) {
    let input = input.require_grad();
    let (loss, weight_backward) = split_backward::record(|| model.loss(input.clone()));
    assert_eq!(weight_backward.len(), 6);
    let first = loss.backward();
    let input = values(input.grad(&first).unwrap());
    let mut named = gradients_of(model, &first);
    assert!(named.keys().all(|path| path.ends_with("bias")), "{named:?}");
    let second = gradients_of(model, &weight_backward.run().unwrap().unwrap());
    assert!(second.keys().all(|path| path.ends_with("weight")));
    named.extend(second);
    (values(loss)[0], input, named)
}

fn device() -> Device {
    Device::flex().autodiff()
}

#[test]
fn two_halves_equal_the_whole_to_the_bit() {
    for device in [device(), device().gradient_checkpointing()] {
        let model = Stack::new(&device);
        for rows in [1, 5] {
            let input = || tensor::<2>(rows, [rows as usize, 6], &device);
            assert_eq!(halves(&model, input()), whole(&model, input()));
            let input = || tensor::<3>(rows, [rows as usize, 3, 6], &device);
            assert_eq!(halves(&model, input()), whole(&model, input()));
        }
        let input = || tensor::<1>(9, [6], &device);
        assert_eq!(halves(&model, input()), whole(&model, input()));
    }
}

#[test]
fn an_input_without_gradient_still_gives_the_weights_theirs() {
    let device = device();
    let layer = LinearConfig::new(4, 3).with_bias(false).init(&device);
    let input = || tensor::<2>(1, [5, 4], &device);
    let expected = layer.forward(input()).sum().backward();
    let (loss, weight_backward) = split_backward::record(|| layer.forward(input()).sum());
    let first = loss.backward();
    assert!(layer.weight.grad(&first).is_none());
    let second = weight_backward.run().unwrap().unwrap();
    assert_eq!(
        values(layer.weight.grad(&second).unwrap()),
        values(layer.weight.grad(&expected).unwrap())
    );
}

#[test]
fn micro_batches_wait_side_by_side_and_end_in_any_order() {
    let device = device();
    let model = Stack::new(&device);
    let input = |seed| tensor::<2>(seed, [3, 6], &device);
    let expected = [1, 2, 3].map(|seed| whole(&model, input(seed)).2);
    // The order of the first halves, then that of the second.
    for (first, second) in [([0, 1, 2], [0, 1, 2]), ([2, 0, 1], [1, 2, 0])] {
        let mut micro_batches =
            [1, 2, 3].map(|seed| Some(split_backward::record(|| model.loss(input(seed)))));
        let mut waiting = [None, None, None];
        for index in first {
            let (loss, weight_backward) = micro_batches[index].take().unwrap();
            waiting[index] = Some((gradients_of(&model, &loss.backward()), weight_backward));
        }
        for index in second {
            let (mut named, weight_backward) = waiting[index].take().unwrap();
            named.extend(gradients_of(
                &model,
                &weight_backward.run().unwrap().unwrap(),
            ));
            assert_eq!(named, expected[index]);
        }
    }
}

#[derive(Module, Debug)]
struct Tied {
    embedding: Embedding,
    hidden: Linear,
}

impl Tied {
    fn loss(&self, ids: Tensor<2, Int>) -> Tensor<1> {
        let x = embedding(split_backward::parameter(self.embedding.weight.val()), ids);
        let x = self.hidden.forward(x).tanh();
        let head = self.embedding.weight.val().transpose();
        linear(x, head, None).powi_scalar(2).mean()
    }
}

#[test]
fn a_tied_head_gets_its_gradient_from_both_of_its_uses() {
    let device = device();
    let model = Tied {
        embedding: EmbeddingConfig::new(7, 4).init(&device),
        hidden: LinearConfig::new(4, 4).init(&device),
    };
    let ids = || Tensor::<2, Int>::from_ints([[0, 3, 3], [6, 1, 0]], &device);
    let expected = gradients_of(&model, &model.loss(ids()).backward());
    let (loss, weight_backward) = split_backward::record(|| model.loss(ids()));
    let mut named = gradients_of(&model, &loss.backward());
    assert_eq!(named.keys().collect::<Vec<_>>(), ["hidden.bias"]);
    named.extend(gradients_of(
        &model,
        &weight_backward.run().unwrap().unwrap(),
    ));
    assert_eq!(named, expected);
}

#[test]
fn a_weight_of_many_uses_gets_the_sum_of_all() {
    let device = device();
    let layer = LinearConfig::new(4, 4).init(&device);
    let loss = || {
        let mut x = tensor::<2>(1, [5, 4], &device);
        for _ in 0..5 {
            x = layer.forward(x).tanh();
        }
        x.powi_scalar(2).sum()
    };
    let expected = loss().backward();
    let (first, weight_backward) = split_backward::record(loss);
    drop(first.backward());
    let found = weight_backward.run().unwrap().unwrap();
    // In another order, so not to the bit.
    assert_close(
        &values(layer.weight.grad(&found).unwrap()),
        &values(layer.weight.grad(&expected).unwrap()),
    );
}

#[test]
fn weights_without_gradient_and_passes_without_autodiff_put_nothing_off() {
    let model = Stack::new(&device()).freeze();
    let input = tensor::<2>(1, [2, 6], &device()).require_grad();
    let (loss, weight_backward) = split_backward::record(|| model.loss(input.clone()));
    assert!(weight_backward.is_empty());
    assert!(input.grad(&loss.backward()).is_some());
    assert!(weight_backward.run().unwrap().is_none());

    let plain = Stack::new(&device()).valid();
    let input = || tensor::<2>(1, [2, 6], &Device::flex());
    let (loss, weight_backward) = split_backward::record(|| plain.loss(input()));
    assert!(weight_backward.is_empty());
    assert_eq!(values(loss), values(plain.loss(input())));
    assert!(weight_backward.run().unwrap().is_none());
}

#[test]
fn a_run_before_the_backward_pass_is_refused() {
    let device = device();
    let model = Stack::new(&device);
    let (_loss, weight_backward) =
        split_backward::record(|| model.loss(tensor::<2>(1, [2, 6], &device)));
    let error = weight_backward.seed().unwrap_err();
    assert_eq!(error, SplitBackwardError::BeforeBackward { layers: 6 });
    assert!(error.to_string().contains("6 linear layers"), "{error}");
}

#[test]
fn a_layer_that_the_loss_does_not_depend_on_has_no_gradient() {
    let device = device();
    let model = Stack::new(&device);
    let input = tensor::<2>(1, [2, 6], &device);
    let (loss, weight_backward) = split_backward::record(|| {
        let _unused = model.head.forward(input.clone());
        model.again.forward(input.clone()).sum()
    });
    drop(loss.backward());
    let named = gradients_of(&model, &weight_backward.run().unwrap().unwrap());
    assert_eq!(named.keys().collect::<Vec<_>>(), ["again.weight"]);
}

#[test]
fn what_is_never_run_leaves_the_next_pass_as_it_was() {
    let device = device();
    let model = Stack::new(&device);
    let input = || tensor::<2>(1, [2, 6], &device);
    let expected = whole(&model, input());
    // Dropped before the backward pass, and after it.
    let (loss, weight_backward) = split_backward::record(|| model.loss(input()));
    drop(weight_backward);
    drop(loss.backward());
    let (loss, weight_backward) = split_backward::record(|| model.loss(input()));
    drop(loss.backward());
    drop(weight_backward);
    assert_eq!(whole(&model, input()), expected);
    assert_eq!(halves(&model, input()), expected);
}

#[test]
fn a_recording_ends_with_its_closure_even_in_a_panic() {
    let device = device();
    let model = Stack::new(&device);
    let input = || tensor::<2>(1, [2, 6], &device);
    let failed = catch_unwind(AssertUnwindSafe(|| {
        split_backward::record(|| -> Tensor<1> { panic!("out of memory") })
    }));
    assert!(failed.is_err());
    // Nothing is deferred outside.
    assert_eq!(whole(&model, input()).2.len(), 9);
}

#[test]
fn a_recording_within_another_has_its_own() {
    let device = device();
    let model = Stack::new(&device);
    let input = || tensor::<2>(1, [2, 6], &device);
    let ((_loss, inner), outer) = split_backward::record(|| {
        let inner = split_backward::record(|| model.head.forward(input()).sum());
        let _outer = model.again.forward(input());
        inner
    });
    assert_eq!((inner.len(), outer.len()), (1, 1));
}
