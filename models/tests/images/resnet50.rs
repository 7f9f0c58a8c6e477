//! ResNet-50 against what is known of it.

use burn::module::{Module, ModuleVisitor, Param};
use burn::prelude::*;
use everburn_models::resnet50::{ResNet50Config, Stem};
use everburn_models::two_part_resnet::TwoPartResNetConfig;
use everburn_nn::InBlocks;

use crate::{assert_gradients, assert_shapes, numbers, trained};

/// One bottleneck a stage, few channels.
fn small(stem: Stem) -> ResNet50Config {
    ResNet50Config::new()
        .with_stem(stem)
        .with_blocks([1, 1, 1, 1])
        .with_width(4)
        .with_classes(5)
}

#[test]
fn it_has_as_many_parameters_as_torchvisions() {
    let model = ResNet50Config::new().init(&Device::flex());
    assert_eq!(numbers(&model), 25_557_032);
    let statistics = model.num_params() - 25_557_032;
    assert_eq!(statistics, 2 * 26_560, "mean and variance of each channel");
    assert_eq!(
        trained(&model).len(),
        161,
        "as many as torchvision's tensors"
    );
}

#[test]
fn parameters_have_torchvisions_names_and_shapes() {
    let model = ResNet50Config::new().init(&Device::flex());
    // PyTorch's names of a batch norm's parameters are `weight` and `bias`, and its linear weights
    // are transposed: `burn-store` knows both.
    let expected: [(&str, &[usize]); 9] = [
        ("conv1.weight", &[64, 3, 7, 7]),
        ("bn1.gamma", &[64]),
        ("layer1.0.downsample.0.weight", &[256, 64, 1, 1]),
        ("layer1.0.downsample.1.beta", &[256]),
        ("layer1.2.conv3.weight", &[256, 64, 1, 1]),
        ("layer2.0.conv2.weight", &[128, 128, 3, 3]),
        ("layer3.5.bn2.running_mean", &[256]),
        ("layer4.0.downsample.0.weight", &[2048, 1024, 1, 1]),
        ("fc.weight", &[2048, 1000]),
    ];
    // The first block of each stage has one.
    assert_shapes(&model, &expected, 4);
}

#[test]
fn it_can_be_cut_at_every_bottleneck() {
    let model = ResNet50Config::new().init(&Device::flex());
    let blocks = model.blocks();
    blocks.check(&model).unwrap();
    assert_eq!(blocks.len(), 1 + 3 + 4 + 6 + 3 + 1);
    assert_eq!(blocks.names()[..3], ["stem", "layer1.0", "layer1.1"]);
    assert_eq!(blocks.names()[16..], ["layer4.2", "head"]);
    let two = TwoPartResNetConfig::new().init(&Device::flex());
    two.blocks().check(&two).unwrap();
    assert_eq!(two.blocks().names(), ["stem", "layer1"]);
}

#[test]
fn stems_leave_the_stages_as_many_pixels_as_they_say() {
    let device = Device::flex();
    let cases = [
        (Stem::ImageNet, 64, [16, 16, 8, 4, 2]),
        (Stem::Cifar, 32, [32, 32, 16, 8, 4]),
        (Stem::Mnist, 28, [14, 14, 7, 4, 2]),
    ];
    for (stem, pixels, expected) in cases {
        let model = small(stem).init(&device);
        let blocks = model.blocks();
        let images = Tensor::<4>::zeros([2, stem.channels(), pixels, pixels], &device);
        let mut activation: Box<dyn everburn_nn::AnyActivation> = Box::new(images.clone());
        for (block, size) in expected.into_iter().enumerate() {
            activation = blocks.run(&model, block..block + 1, activation);
            let channels = [4, 16, 32, 64, 128][block];
            assert_eq!(
                activation.shapes(),
                [[2, channels, size, size]],
                "{stem:?} {block}"
            );
        }
        assert_eq!(model.forward(images).dims(), [2, 5]);
    }
}

#[test]
fn every_parameter_gets_a_gradient() {
    let device = Device::flex().autodiff();
    let model = small(Stem::Mnist).init(&device);
    let images = Tensor::<4>::random([2, 1, 28, 28], burn::tensor::Distribution::Default, &device);
    assert_gradients(&model, model.forward(images));
}

#[test]
fn convolutions_start_with_the_variance_that_relu_needs() {
    let device = Device::flex();
    let block = everburn_models::resnet50::BottleneckConfig::new(64, 64).init(&device);
    struct Deviation(Vec<(usize, f64)>);
    impl ModuleVisitor for Deviation {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let value = param.val();
            if let [outputs, _, height, width] = value.dims()[..] {
                let variance = value.powi_scalar(2).mean().into_scalar::<f64>();
                self.0.push((outputs * height * width, variance));
            }
        }
    }
    let mut deviation = Deviation(Vec::new());
    block.visit(&mut deviation);
    assert_eq!(deviation.0.len(), 4);
    for (fan_out, variance) in deviation.0 {
        // Of 4096 numbers or more: within 10 % of 2 / fan_out by 4.5 standard deviations.
        let expected = 2.0 / fan_out as f64;
        assert!(
            (variance / expected - 1.0).abs() < 0.1,
            "{variance} {expected}"
        );
    }
}

#[test]
fn a_last_gamma_of_zero_makes_a_block_its_shortcut() {
    let device = Device::flex();
    let config = everburn_models::resnet50::BottleneckConfig::new(16, 4);
    let x = Tensor::<4>::random([1, 16, 5, 5], burn::tensor::Distribution::Default, &device);
    let zero = config.clone().with_zero_last_gamma(true).init(&device);
    // The numbers are in 0..1: relu changes none.
    zero.forward(x.clone())
        .into_data()
        .assert_eq(&x.clone().into_data(), true);
    let one = config.init(&device).forward(x.clone()) - x;
    assert!(one.abs().max().into_scalar::<f32>() > 0.0);
}
