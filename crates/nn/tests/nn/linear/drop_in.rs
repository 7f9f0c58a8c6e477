//! Ours is Burn's for all who use it.

use burn::module::Module;
use burn::nn::LinearLayout;
use burn::prelude::*;
use burn::store::ModuleRecord;
use everburn_nn::{Linear, LinearConfig, parameter_paths};

use crate::numbers::{all_gradients, assert_close, tensor, values};

#[derive(Module, Debug)]
struct Ours {
    first: Linear,
    last: Option<Linear>,
}

#[derive(Module, Debug)]
struct Burns {
    first: nn::Linear,
    last: Option<nn::Linear>,
}

impl Ours {
    fn new(layout: LinearLayout, device: &Device) -> Self {
        let last = LinearConfig::new(4, 2).with_bias(false).init(device);
        Self {
            first: LinearConfig::new(3, 4).with_layout(layout).init(device),
            last: Some(last),
        }
    }

    fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let hidden = self.first.forward(input).tanh();
        self.last.as_ref().unwrap().forward(hidden)
    }
}

impl Burns {
    fn new(layout: LinearLayout, device: &Device) -> Self {
        let linear = nn::LinearConfig::new;
        Self {
            first: linear(3, 4).with_layout(layout).init(device),
            last: Some(linear(4, 2).with_bias(false).init(device)),
        }
    }

    fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let hidden = self.first.forward(input).tanh();
        self.last.as_ref().unwrap().forward(hidden)
    }
}

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

#[track_caller]
fn same(ours: &[Vec<f32>], theirs: &[Vec<f32>]) {
    assert_eq!(ours.len(), theirs.len());
    for (ours, theirs) in ours.iter().zip(theirs) {
        assert_close(ours, theirs);
    }
}

fn bytes<M: Module>(model: M) -> burn::tensor::Bytes {
    model.into_record().into_bytes().unwrap()
}

#[test]
fn records_load_both_ways_and_compute_the_same() {
    let device = Device::flex().autodiff();
    for layout in [LinearLayout::Row, LinearLayout::Col] {
        let ours = Ours::new(layout, &device);
        let record = ModuleRecord::from_bytes(bytes(ours.clone())).unwrap();
        let burns = Burns::new(layout, &device).load_record(record);
        let record = ModuleRecord::from_bytes(bytes(burns.clone())).unwrap();
        let again = Ours::new(layout, &device).load_record(record);
        for model in [ours, again] {
            same(
                &step(&model, [5, 3], Ours::forward),
                &step(&burns, [5, 3], Burns::forward),
            );
            same(
                &step(&model, [2, 7, 3], Ours::forward),
                &step(&burns, [2, 7, 3], Burns::forward),
            );
            same(
                &step(&model, [3], Ours::forward),
                &step(&burns, [3], Burns::forward),
            );
        }
    }
}

#[test]
fn paths_and_descriptions_are_burns() {
    let device = Device::flex();
    let ours = Ours::new(LinearLayout::Row, &device);
    let burns = Burns::new(LinearLayout::Row, &device);
    assert_eq!(parameter_paths(&ours), parameter_paths(&burns));
    assert_eq!(ours.num_params(), burns.num_params());
    assert_eq!(ours.first.to_string(), burns.first.to_string());
    assert_eq!(
        LinearConfig::new(3, 4).to_string(),
        nn::LinearConfig::new(3, 4).to_string()
    );
}

#[test]
fn copies_of_all_kinds_stay_ours() {
    let device = Device::flex().autodiff();
    let model = Ours::new(LinearLayout::Row, &device);
    let input = || tensor::<2>(2, [5, 3], &Device::flex());
    let expected = values(model.valid().forward(input()));
    let same = |model: Ours| assert_eq!(values(model.valid().forward(input())), expected);
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
