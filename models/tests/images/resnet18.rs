//! ResNet-18 against torchvision's.

use burn::prelude::*;
use everburn_models::resnet18::{ResNet18, ResNet18Config};
use everburn_nn::{InBlocks, ParameterPath, parameter_paths};

/// The parameters, without running statistics.
fn trained(model: &ResNet18) -> Vec<ParameterPath> {
    let all = parameter_paths(model).into_iter();
    all.filter(|parameter| !parameter.path.contains("running_"))
        .collect()
}

fn numbers(model: &ResNet18) -> usize {
    let parameters = trained(model).into_iter();
    parameters
        .map(|parameter| parameter.shape.iter().product::<usize>())
        .sum()
}

#[test]
fn it_has_torchvisions_parameters() {
    let model = ResNet18Config::new().init(&Device::flex());
    assert_eq!((numbers(&model), trained(&model).len()), (11_689_512, 62));
    let deeper = ResNet18Config::new()
        .with_blocks([3, 4, 6, 3])
        .init(&Device::flex());
    assert_eq!(numbers(&deeper), 21_797_672, "ResNet-34");
    let parameters = parameter_paths(&model);
    let expected: [(&str, &[usize]); 7] = [
        ("conv1.weight", &[64, 3, 7, 7]),
        ("bn1.gamma", &[64]),
        ("layer1.1.conv2.weight", &[64, 64, 3, 3]),
        ("layer2.0.conv1.weight", &[128, 64, 3, 3]),
        ("layer2.0.downsample.0.weight", &[128, 64, 1, 1]),
        ("layer4.0.downsample.1.beta", &[512]),
        ("fc.weight", &[512, 1000]),
    ];
    for (path, shape) in expected {
        let found = parameters.iter().find(|parameter| parameter.path == path);
        let found = found.unwrap_or_else(|| panic!("there is no {path}"));
        assert_eq!(found.shape, shape, "{path}");
    }
    let shortcuts = parameters
        .iter()
        .filter(|p| p.path.ends_with("downsample.0.weight"));
    assert_eq!(
        shortcuts.count(),
        3,
        "the first block of each stage but the first"
    );
}

#[test]
fn a_pipeline_may_divide_it_at_every_block() {
    let model = ResNet18Config::new().with_width(4).init(&Device::flex());
    let blocks = model.blocks();
    blocks.check(&model).unwrap();
    assert_eq!(blocks.len(), 1 + 4 * 2 + 1);
}

#[test]
fn stages_halve_the_image() {
    let device = Device::flex();
    let model = ResNet18Config::new()
        .with_width(2)
        .with_classes(7)
        .init(&device);
    for side in [224, 64, 32, 17] {
        let logits = model.forward(Tensor::ones([1, 3, side, side], &device));
        assert_eq!(logits.dims(), [1, 7], "{side}");
        assert!(logits.into_data().iter::<f32>().all(f32::is_finite));
    }
}
