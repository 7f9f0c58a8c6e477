//! Layouts, inputs of any rank and copies; `mirror` has what ours and Burn's share in a model.

use burn::module::Module;
use burn::nn::LinearLayout;
use burn::prelude::*;
use burn::store::ModuleRecord;
use everburn_nn::{Linear, LinearConfig};

use crate::numbers::{all_gradients, assert_close, tensor, values};

/// The output, and the gradients of input and parameters.
fn step<M: Module, const D: usize>(
    model: &M,
    shape: [usize; D],
    forward: impl Fn(&M, Tensor<D>) -> Tensor<D>,
) -> Vec<Vec<f32>> {
    let device = Device::flex().autodiff();
    let input = tensor(1, shape, &device).require_grad();
    let output = forward(model, input.clone());
    let gradients = output.clone().powi_scalar(2).sum().backward();
    let mut all = vec![values(output), values(input.grad(&gradients).unwrap())];
    let of_parameters = all_gradients(model, &gradients).into_iter();
    all.extend(of_parameters.map(|(path, gradient)| gradient.expect(&path)));
    all
}

/// Both compute the same with an input of this shape.
#[track_caller]
fn same<const D: usize>(ours: &Linear, burns: &nn::Linear, shape: [usize; D]) {
    let ours = step(ours, shape, Linear::forward);
    let theirs = step(burns, shape, nn::Linear::forward);
    assert_eq!(ours.len(), theirs.len());
    for (ours, theirs) in ours.iter().zip(&theirs) {
        assert_close(ours, theirs);
    }
}

fn record<M: Module>(model: &M) -> ModuleRecord {
    let bytes = model.clone().into_record().into_bytes().unwrap();
    ModuleRecord::from_bytes(bytes).unwrap()
}

#[test]
fn records_of_both_layouts_load_both_ways_and_compute_the_same() {
    let device = Device::flex().autodiff();
    for layout in [LinearLayout::Row, LinearLayout::Col] {
        let new = || LinearConfig::new(3, 4).with_layout(layout).init(&device);
        let ours = new();
        let burns = nn::LinearConfig::new(3, 4).with_layout(layout);
        let burns = burns.init(&device).load_record(record(&ours));
        let again = new().load_record(record(&burns));
        for model in [ours, again] {
            same(&model, &burns, [5, 3]);
            same(&model, &burns, [2, 7, 3]);
            same(&model, &burns, [3]);
        }
    }
}

#[test]
fn copies_of_all_kinds_compute_the_same() {
    let device = Device::flex().autodiff();
    let model: Linear = LinearConfig::new(3, 4).init(&device);
    let input = || tensor::<2>(2, [5, 3], &Device::flex());
    let expected = values(model.valid().forward(input()));
    let same = |model: Linear| assert_eq!(values(model.valid().forward(input())), expected);
    same(model.clone());
    same(model.valid().train());
    same(model.clone().fork(&device));
    same(model.clone().to_device(&device));
    same(model.clone().freeze());
    same(model.materialize());
}

#[test]
#[should_panic(expected = "axis 1 expected 3, got 4")]
fn an_input_of_another_width_is_refused() {
    let device = Device::flex();
    let model = LinearConfig::new(3, 2).init(&device);
    let _ = model.forward(Tensor::<2>::zeros([1, 4], &device));
}
