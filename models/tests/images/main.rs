//! Classifiers of images against what is known of them.

mod resnet18;
mod resnet50;
mod vit;

use burn::module::{Module, ModuleVisitor, Param};
use burn::prelude::*;
use everburn_models::mlp::MlpConfig;
use everburn_models::mnist::MnistConfig;
use everburn_models::mnist_bn::MnistBnConfig;
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
