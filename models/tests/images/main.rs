//! Classifiers of images against what is known of them.

mod resnet18;
mod resnet50;
mod vit;

use burn::module::Module;
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
