//! Classifiers of images against what is known of them.

mod resnet18;
mod resnet50;
mod vit;

use std::collections::VecDeque;

use burn::module::{Module, ModuleVisitor, Param};
use burn::prelude::*;
use burn::tensor::ops::ConvOptions;
use burn::tensor::{Distribution, TensorData};
use everburn_models::mlp::MlpConfig;
use everburn_models::mnist::MnistConfig;
use everburn_models::mnist_bn::MnistBnConfig;
use everburn_nn::pool::MaxPool2dConfig;
use everburn_nn::tensor::activation::relu;
use everburn_nn::tensor::module::{conv2d, linear};
use everburn_nn::{InBlocks, ParameterPath, parameter_paths};

/// What torchvision calls parameters: running statistics are none.
fn trained(model: &impl Module) -> Vec<ParameterPath> {
    let all = parameter_paths(model).into_iter();
    all.filter(|parameter| !parameter.path.contains("running_"))
        .collect()
}

fn numbers(model: &impl Module) -> usize {
    let parameters = trained(model).into_iter();
    parameters
        .map(|parameter| parameter.shape.iter().product::<usize>())
        .sum()
}

/// Demands parameters of these paths and shapes, and this many shortcuts with a convolution.
fn assert_shapes(model: &impl Module, expected: &[(&str, &[usize])], shortcuts: usize) {
    let parameters = parameter_paths(model);
    for (path, shape) in expected {
        let found = parameters.iter().find(|parameter| parameter.path == *path);
        let found = found.unwrap_or_else(|| panic!("there is no {path}"));
        assert_eq!(found.shape, *shape, "{path}");
    }
    let found = parameters
        .iter()
        .filter(|p| p.path.ends_with("downsample.0.weight"));
    assert_eq!(found.count(), shortcuts);
}

/// Demands that each parameter has a gradient of the mean square of the scores.
fn assert_gradients(model: &impl Module, scores: Tensor<2>) {
    struct Found(burn::tensor::Gradients, usize);
    impl ModuleVisitor for Found {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if param.is_require_grad() {
                let gradient = param.val().grad(&self.0).expect("a gradient");
                assert_eq!(gradient.dims(), param.val().dims());
                self.1 += 1;
            }
        }
    }
    let mut found = Found(scores.powi_scalar(2).mean().backward(), 0);
    model.visit(&mut found);
    assert_eq!(found.1, trained(model).len());
}

#[test]
fn the_blocks_of_small_models_use_all_parameters() {
    fn check(model: &impl InBlocks) {
        model.blocks().check(model).unwrap();
    }
    let device = Device::flex();
    check(&MlpConfig::new().init(&device));
    check(&MnistConfig::new().init(&device));
    check(&MnistBnConfig::new().init(&device));
}

/// The parameters of a model, in the order of its fields.
struct Parameters(VecDeque<TensorData>);

impl ModuleVisitor for Parameters {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.0.push_back(param.val().into_data());
    }
}

impl Parameters {
    fn of(model: &impl Module) -> Self {
        let mut found = Self(VecDeque::new());
        model.visit(&mut found);
        found
    }

    fn take<const D: usize>(&mut self) -> Tensor<D> {
        let data = self.0.pop_front().expect("a parameter");
        Tensor::from_data(data, &Device::flex())
    }

    /// The next layer, which is linear.
    fn linear(&mut self, x: Tensor<2>) -> Tensor<2> {
        let (weight, bias) = (self.take(), self.take());
        linear(x, weight, Some(bias))
    }

    /// The next layer, which is a convolution.
    fn convolution(&mut self, x: Tensor<4>) -> Tensor<4> {
        let (weight, bias) = (self.take(), self.take());
        conv2d(
            x,
            weight,
            Some(bias),
            ConvOptions::new([1, 1], [0, 0], [1, 1], 1),
        )
    }
}

#[test]
fn an_mlp_has_the_bits_of_its_layers_written_out() {
    let device = Device::flex();
    let model = MlpConfig::new().init(&device);
    let images: Tensor<4> = Tensor::random([3, 1, 28, 28], Distribution::Default, &device);
    let mut layers = Parameters::of(&model);
    let x = relu(layers.linear(images.clone().flatten::<2>(1, 3)));
    let x = relu(layers.linear(x));
    let expected = layers.linear(x).into_data();
    assert_eq!(model.forward(images).into_data(), expected);
}

#[test]
fn an_mnist_has_the_bits_of_its_layers_written_out() {
    let device = Device::flex();
    let model = MnistConfig::new().init(&device);
    let images: Tensor<4> = Tensor::random([3, 1, 28, 28], Distribution::Default, &device);
    let mut layers = Parameters::of(&model);
    let pool = MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init();
    let x = relu(pool.forward(layers.convolution(images.clone())));
    let x = relu(pool.forward(layers.convolution(x)));
    let x = relu(layers.linear(x.flatten::<2>(1, 3)));
    let expected = layers.linear(x).into_data();
    assert_eq!(model.forward(images).into_data(), expected);
}
