//! The vision transformer against transformers'.

use burn::module::Module;
use burn::prelude::*;
use burn::tensor::Distribution;
use everburn_models::gpt::Activation;
use everburn_models::vit::{ViT, ViTConfig};
use everburn_nn::{InBlocks, TensorParallel, parameter_paths};

use crate::{assert_gradients, assert_shapes};

/// Four patches and two layers.
fn small() -> ViTConfig {
    ViTConfig::new()
        .with_image_size(8)
        .with_patch_size(4)
        .with_width(12)
        .with_layers(2)
        .with_heads(3)
        .with_feed_forward(20)
        .with_classes(5)
        .with_deviation(0.3)
}

fn images(count: usize, device: &Device) -> Tensor<4> {
    Tensor::random([count, 3, 8, 8], Distribution::Default, device)
}

#[test]
fn it_has_the_published_parameters() {
    let sizes = [
        (ViTConfig::new(), 86_567_656),
        (
            ViTConfig::new()
                .with_width(1024)
                .with_layers(24)
                .with_heads(16)
                .with_feed_forward(4096),
            304_326_632,
        ),
    ];
    for (config, expected) in sizes {
        assert_eq!(config.init(&Device::flex()).num_params(), expected);
    }
}

#[test]
fn parameters_have_hugging_faces_names_and_shapes() {
    let model = small().init(&Device::flex());
    let paths = parameter_paths(&model);
    // Weights of linear layers are transposed there, and norms have `weight` and `bias`.
    let expected: [(&str, &[usize]); 9] = [
        ("vit.embeddings.cls_token", &[1, 1, 12]),
        ("vit.embeddings.position_embeddings", &[1, 5, 12]),
        (
            "vit.embeddings.patch_embeddings.projection.weight",
            &[12, 3, 4, 4],
        ),
        ("vit.encoder.layer.0.attention.attention.query.bias", &[12]),
        (
            "vit.encoder.layer.1.attention.output.dense.weight",
            &[12, 12],
        ),
        ("vit.encoder.layer.1.intermediate.dense.weight", &[12, 20]),
        ("vit.encoder.layer.0.layernorm_before.gamma", &[12]),
        ("vit.layernorm.beta", &[12]),
        ("classifier.weight", &[12, 5]),
    ];
    assert_shapes(&model, &expected, 0);
    assert_eq!(paths.len(), 4 + 2 * 16 + 2 + 2);
    let without = small().with_biases(false).init(&Device::flex());
    assert_eq!(parameter_paths(&without).len(), paths.len() - 2 * 3);
}

#[test]
fn it_may_be_divided_at_every_layer_and_within_layers() {
    let model = small().init(&Device::flex());
    let blocks = model.blocks();
    blocks.check(&model).unwrap();
    assert_eq!(blocks.len(), 1 + 2 + 1);
    let rules = model.tensor_rules();
    let paths = parameter_paths(&model);
    for rule in &rules {
        let layers = paths.iter().filter(|parameter| {
            let layer = parameter.path.strip_suffix(".weight");
            layer.is_some_and(|layer| rule.matches(layer))
        });
        assert_eq!(layers.count(), 2, "{rule:?}: one in each layer");
    }
    assert_eq!(rules.len(), 6);
}

#[test]
fn every_parameter_gets_a_gradient() {
    let device = Device::flex().autodiff();
    let model = small().init(&device);
    assert_gradients(&model, model.forward(images(2, &device)));
}

/// The largest difference of the scores of two batches.
fn apart(model: &ViT, one: Tensor<4>, other: Tensor<4>) -> f32 {
    let difference = model.forward(one) - model.forward(other);
    difference.abs().max().into_scalar::<f32>()
}

#[test]
fn every_patch_and_its_place_matter_and_images_do_not_to_each_other() {
    let device = Device::flex();
    let model = small().init(&device);
    let one = images(2, &device);
    for (row, column) in [(0, 0), (0, 4), (4, 0), (4, 4)] {
        let patch = [0..2, 0..3, row..row + 4, column..column + 4];
        let changed = one
            .clone()
            .slice_assign(patch, Tensor::zeros([2, 3, 4, 4], &device));
        assert!(apart(&model, one.clone(), changed) > 1e-4, "{row} {column}");
    }
    // The two halves change places.
    let [left, right] = [0..4, 4..8].map(|columns| one.clone().slice_dim(3, columns));
    let exchanged = Tensor::cat(vec![right, left], 3);
    assert!(apart(&model, one.clone(), exchanged) > 1e-4);
    let alone = model.forward(one.clone().slice_dim(0, 1..2));
    let both = model.forward(one).slice_dim(0, 1..2);
    assert!((alone - both).abs().max().into_scalar::<f32>() < 1e-5);
}

#[test]
fn the_activation_is_the_configured_one() {
    let device = Device::flex();
    let exact = small().init(&device);
    let tanh = small().with_activation(Activation::GeluTanh).init(&device);
    let tanh = tanh.load_record(exact.clone().into_record());
    let images = images(4, &device);
    let difference = exact.forward(images.clone()) - tanh.forward(images);
    let difference = difference.abs().max().into_scalar::<f32>();
    assert!(difference > 1e-7 && difference < 0.05, "{difference}");
}

#[test]
fn numbers_that_do_not_fit_are_refused() {
    for (config, expected) in [
        (small().with_heads(5), "5 heads cannot share a width of 12"),
        (
            small().with_patch_size(9),
            "a patch of 9 x 9 pixels is larger",
        ),
        (
            small().with_layers(0),
            "number of layers must be at least 1",
        ),
        (
            small().with_width(1 << 40),
            "width is 1099511627776, and at most",
        ),
        (
            small().with_image_size(1 << 20),
            "image size is 1048576, and at most",
        ),
        (small().with_dropout(1.0), "dropout"),
        (small().with_epsilon(0.0), "epsilon"),
    ] {
        let error = config.check().unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
#[should_panic(expected = "images of another size")]
fn images_of_another_size_are_refused() {
    let device = Device::flex();
    small()
        .init(&device)
        .forward(Tensor::zeros([1, 3, 12, 12], &device));
}
