//! What layers compute in half precision: factors and results are rounded, sums are not, and whatever comes in
//! of one type goes out in it.

use burn::nn;
use burn::prelude::*;
use burn::tensor::{DType, Distribution, FloatDType};
use everburn_nn::conv::Conv2dConfig;
use everburn_nn::pool::{AvgPool2dConfig, MaxPool2dConfig};
use everburn_nn::tensor::activation::{gelu, relu};
use everburn_nn::{
    BatchNormConfig, ComputeType, DropoutConfig, LayerNormConfig, Linear, LinearConfig, autocast,
    cast_for_matmul, causal_softmax, checkpoint, cross_entropy, low_products, matmul, rope,
};

const LOW: [(ComputeType, FloatDType); 2] = [
    (ComputeType::Bf16, FloatDType::BF16),
    (ComputeType::F16, FloatDType::F16),
];

fn random<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::random(shape, Distribution::Uniform(-1.0, 1.0), device)
}

/// The numbers nearest to those of `tensor` in 16 bits, as `f32`.
fn rounded<const D: usize>(tensor: Tensor<D>, low: FloatDType) -> Tensor<D> {
    tensor.cast(low).cast(FloatDType::F32)
}

fn difference<const D: usize>(one: Tensor<D>, other: Tensor<D>) -> f32 {
    let [one, other] = [one, other].map(|tensor| tensor.cast(FloatDType::F32));
    (one - other).abs().max().into_scalar()
}

#[test]
fn products_are_those_of_rounded_factors_rounded_once() {
    let device = Device::flex();
    let linear: Linear = LinearConfig::new(33, 17).init(&device);
    let rows = random([9, 33], &device);
    for (compute, low) in LOW {
        let weight = rounded(linear.weight.val(), low);
        let bias = linear.bias.as_ref().map(|bias| rounded(bias.val(), low));
        let exact = everburn_nn::tensor::module::linear(rounded(rows.clone(), low), weight, bias);
        let expected = rounded(exact, low).into_data();
        let (given, both_low) = autocast(compute, || {
            let given = linear.forward(rows.clone());
            (given, linear.forward(cast_for_matmul(rows.clone())))
        });
        assert_eq!(given.into_data(), expected, "{compute:?}");
        assert_eq!(both_low.dtype(), DType::from(low));
        assert_eq!(both_low.cast(FloatDType::F32).into_data(), expected);
    }
}

#[test]
fn outside_of_a_scope_nothing_is_rounded_and_nothing_is_counted() {
    let device = Device::flex();
    let linear: Linear = LinearConfig::new(33, 17).init(&device);
    let rows = random([9, 33], &device);
    let before = linear.forward(rows.clone()).into_data();
    let counted = low_products();
    let panicked =
        std::panic::catch_unwind(|| autocast(ComputeType::Bf16, || panic!("on purpose")));
    assert!(panicked.is_err());
    assert_eq!(linear.forward(rows.clone()).into_data(), before);
    assert_eq!(low_products(), counted);
    autocast(ComputeType::Bf16, || drop(linear.forward(rows)));
    assert_eq!(low_products(), counted + 1);
}

#[test]
fn every_layer_hands_back_the_type_that_it_was_given() {
    let device = Device::flex().autodiff();
    let conv = Conv2dConfig::new([3, 4], [3, 3]).init(&device);
    let norm = BatchNormConfig::new(4).init(&device);
    let max = MaxPool2dConfig::new([2, 2]).init();
    let mean = AvgPool2dConfig::new([2, 2]).init();
    let dropout = DropoutConfig::new(0.5).init();
    let rows = LayerNormConfig::new(6).init(&device);
    let images = random([2, 3, 8, 8], &device);
    let angles = Tensor::<4>::ones([1, 1, 6, 3], &device);
    for (compute, low) in LOW {
        for (input, expected) in [
            (images.clone(), DType::F32),
            (images.clone().cast(low), DType::from(low)),
        ] {
            autocast(compute, || {
                let x = conv.forward(input); // [2, 4, 6, 6]
                assert_eq!(x.dtype(), expected, "convolution");
                let x = norm.forward(x);
                assert_eq!(x.dtype(), expected, "batch norm");
                let x = gelu(relu(dropout.forward(x)));
                assert_eq!(x.dtype(), expected, "activations");
                assert_eq!(max.forward(x.clone()).dtype(), expected, "max pooling");
                assert_eq!(mean.forward(x.clone()).dtype(), expected, "mean pooling");
                let x = rows.forward(x);
                assert_eq!(x.dtype(), expected, "layer norm");
                let x = rope(x, angles.clone(), angles.clone());
                assert_eq!(x.dtype(), expected, "rotary positions");
                let shares = causal_softmax(matmul(x.clone(), x.swap_dims(2, 3)), 0.5);
                assert_eq!(shares.dtype(), expected, "attention");
            });
        }
    }
}

#[test]
fn norms_softmax_and_losses_compute_in_f32() {
    let device = Device::flex();
    let norm = LayerNormConfig::new(64).init(&device);
    for (_, low) in LOW {
        // Squares of these overflow f16, and their sum is beyond the digits of bf16.
        let rows = (random([4, 64], &device) * 1000.0).cast(low);
        let raised = || rows.clone().cast(FloatDType::F32);
        let expected = rounded(norm.forward(raised()), low).into_data();
        let found = norm.forward(rows.clone());
        assert_eq!(found.cast(FloatDType::F32).into_data(), expected);

        let scores = || rows.clone().reshape([1, 1, 16, 16]);
        let expected = rounded(causal_softmax(scores().cast(FloatDType::F32), 0.1), low);
        assert_eq!(difference(causal_softmax(scores(), 0.1), expected), 0.0);

        let targets = Tensor::<1, Int>::from_ints([0, 5, 17, 63], &device);
        let loss = cross_entropy(rows.clone(), targets.clone());
        assert_eq!(loss.dtype(), DType::F32);
        assert_eq!(
            loss.into_data(),
            cross_entropy(raised(), targets).into_data()
        );
    }
}

#[test]
fn gradients_of_parameters_are_f32_and_near_those_of_f32() {
    let device = Device::flex().autodiff();
    let conv = Conv2dConfig::new([1, 4], [3, 3]).init(&device);
    // Not the largest of each window, which may be another one when rounded.
    let pool = AvgPool2dConfig::new([2, 2]).init();
    let norm = LayerNormConfig::new(4 * 9).init(&device);
    let linear = LinearConfig::new(4 * 9, 5).init(&device);
    let images = random([8, 1, 8, 8], &device);
    let targets = Tensor::<1, Int>::from_ints([0, 1, 2, 3, 4, 0, 1, 2], &device);
    let gradients = |compute: ComputeType| {
        autocast(compute, || {
            let x = pool.forward(gelu(conv.forward(cast_for_matmul(images.clone()))));
            let x = norm.forward(x.flatten::<2>(1, 3));
            let loss = cross_entropy(linear.forward(x), targets.clone());
            let all = loss.backward();
            let bias = linear.bias.as_ref().unwrap();
            [
                conv.weight.val().grad(&all).unwrap().flatten::<1>(0, 3),
                bias.val().grad(&all).unwrap(),
                norm.gamma.val().grad(&all).unwrap(),
            ]
        })
    };
    let exact = gradients(ComputeType::F32);
    for ((compute, _), most) in LOW.into_iter().zip([0.1, 0.02]) {
        for (low, exact) in gradients(compute).into_iter().zip(&exact) {
            assert_eq!(low.dtype(), DType::F32);
            let largest = exact.clone().abs().max().into_scalar::<f32>();
            let error = difference(low, exact.clone()) / largest;
            assert!(error > 0.0 && error < most, "{compute:?}: {error}");
        }
    }
}

#[test]
fn small_gradients_vanish_in_f16_unless_the_loss_is_scaled() {
    let device = Device::flex().autodiff();
    let linear: Linear = LinearConfig::new(1, 1).with_bias(false).init(&device);
    let gradient = |scale: f64| {
        let rows = Tensor::<2>::ones([1, 1], &device);
        let loss = autocast(ComputeType::F16, || linear.forward(rows));
        // Of a loss of which this is a very small part.
        let all = (loss.mean() * 1e-8).mul_scalar(scale).backward();
        let gradient = linear.weight.val().grad(&all).unwrap();
        gradient.div_scalar(scale).into_scalar::<f32>()
    };
    assert_eq!(gradient(1.0), 0.0);
    assert!((gradient(65_536.0) - 1e-8).abs() < 1e-11);
}

#[test]
fn burns_own_layers_between_ours_meet_no_second_type() {
    let device = Device::flex().autodiff();
    let ours = LinearConfig::new(8, 8).init(&device);
    let burns: nn::Linear = nn::LinearConfig::new(8, 8).init(&device);
    let norm = nn::LayerNormConfig::new(8).init(&device);
    let rows = random([4, 8], &device);
    let forward = || {
        let x = ours.forward(rows.clone());
        // A residual path of f32, a norm and a layer of Burn's.
        let x = burns.forward(norm.forward(x.clone() + rows.clone())) + x;
        ours.forward(x)
    };
    let exact = forward();
    let low = autocast(ComputeType::Bf16, forward);
    assert_eq!(low.dtype(), DType::F32);
    let error = difference(low.clone(), exact);
    assert!(error > 0.0 && error < 0.05, "{error}");
    assert!(burns.weight.val().grad(&low.mean().backward()).is_some());
}

#[test]
fn a_checkpointed_segment_is_computed_again_in_the_type_of_the_first_time() {
    let device = Device::flex().autodiff();
    let layers: Vec<Linear> = (0..2)
        .map(|_| LinearConfig::new(8, 8).init(&device))
        .collect();
    let rows = random([4, 8], &device);
    let forward =
        |layers: &Vec<Linear>, x: Tensor<2>| layers[1].forward(gelu(layers[0].forward(x)));
    let [plain, again] = [false, true].map(|checkpointed| {
        let output = autocast(ComputeType::Bf16, || match checkpointed {
            false => forward(&layers, rows.clone()),
            true => checkpoint(&layers, rows.clone(), forward),
        });
        // After the scope has ended.
        let all = output.powi_scalar(2).mean().backward();
        layers[0].weight.val().grad(&all).unwrap().into_data()
    });
    assert_eq!(plain, again);
}
