//! ResNet-18 against torchvision's.

use burn::prelude::*;
use everburn_models::image_model::ImageModelConfig;
use everburn_models::resnet18::ResNet18Config;
use everburn_nn::InBlocks;

use crate::{assert_shapes, numbers, trained};

#[test]
fn it_has_torchvisions_parameters() {
    let model = ResNet18Config::new().init(&Device::flex());
    assert_eq!((numbers(&model), trained(&model).len()), (11_689_512, 62));
    let deeper = ResNet18Config::new()
        .with_blocks([3, 4, 6, 3])
        .init(&Device::flex());
    assert_eq!(numbers(&deeper), 21_797_672, "ResNet-34");
    let expected: [(&str, &[usize]); 7] = [
        ("conv1.weight", &[64, 3, 7, 7]),
        ("bn1.gamma", &[64]),
        ("layer1.1.conv2.weight", &[64, 64, 3, 3]),
        ("layer2.0.conv1.weight", &[128, 64, 3, 3]),
        ("layer2.0.downsample.0.weight", &[128, 64, 1, 1]),
        ("layer4.0.downsample.1.beta", &[512]),
        ("fc.weight", &[512, 1000]),
    ];
    // The first block of each stage but the first has one.
    assert_shapes(&model, &expected, 3);
}

#[test]
fn stages_of_no_block_or_too_many_are_refused() {
    for (last, expected) in [
        (0, "the number of blocks in each stage must be at least 1"),
        (
            1 << 28,
            "the number of layers is 268435456, and at most 10000",
        ),
    ] {
        let config = ResNet18Config::new().with_blocks([1, 1, 1, last]);
        assert_eq!(config.check().unwrap_err().to_string(), expected);
    }
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
