//! Shapes at the edge, and shapes that are refused.

use burn::module::Param;
use burn::nn::PaddingConfig2d;
use burn::prelude::*;
use everburn_nn::BatchNormConfig;
use everburn_nn::conv::Conv2dConfig;
use everburn_nn::pool::{AdaptiveAvgPool2dConfig, AvgPool2dConfig, MaxPool2dConfig};

use super::comparison::{tensor, values};

/// A step of conv, pool and norm on this many images of this many pixels; the gradient of the first
/// convolution's weight.
fn step(batch: usize, side: usize) -> Vec<f64> {
    let device = Device::flex().autodiff();
    let conv = Conv2dConfig::new([2, 3], [1, 1]).init(&device);
    let norm = BatchNormConfig::new(3).init(&device);
    let input = tensor([batch, 2, side, side], 1, &device);
    let hidden = norm.forward(conv.forward(input));
    let hidden = MaxPool2dConfig::new([1, 1]).init().forward(hidden);
    let hidden = AvgPool2dConfig::new([1, 1]).init().forward(hidden);
    let output = AdaptiveAvgPool2dConfig::new([1, 1]).init().forward(hidden);
    assert_eq!(output.dims(), [batch, 3, 1, 1]);
    let gradients = everburn_nn::tensor::activation::relu(output)
        .sum()
        .backward();
    values(conv.weight.grad(&gradients).unwrap())
}

#[test]
fn one_pixel() {
    let gradient = step(5, 1);
    assert!(
        gradient.iter().all(|value| value.is_finite()),
        "{gradient:?}"
    );
}

#[test]
fn no_images() {
    let device = Device::flex().autodiff();
    let conv = Conv2dConfig::new([2, 3], [3, 3]).init(&device);
    let input = tensor([0, 2, 8, 8], 1, &device).require_grad();
    let output = MaxPool2dConfig::new([2, 2])
        .init()
        .forward(conv.forward(input.clone()));
    assert_eq!(output.dims(), [0, 3, 3, 3]);
    let gradients = output.sum().backward();
    assert_eq!(values(conv.weight.grad(&gradients).unwrap()), [0.0; 54]);
    let bias = conv.bias.as_ref().unwrap();
    assert_eq!(values(bias.grad(&gradients).unwrap()), [0.0; 3]);
    assert!(values(input.grad(&gradients).unwrap()).is_empty());
}

#[test]
#[should_panic(expected = "axis 1 expected 2, got 4")]
fn other_channels_are_refused() {
    let device = Device::flex();
    let conv = Conv2dConfig::new([2, 3], [3, 3]).init(&device);
    conv.forward(tensor([1, 4, 8, 8], 1, &device));
}

#[test]
fn kernels_that_are_larger_than_the_image_are_refused() {
    let device = Device::flex();
    let refusal = |forward: &dyn Fn(Tensor<4>) -> Tensor<4>, [height, width]: [usize; 2]| {
        let image = tensor([1, 2, height, width], 1, &device);
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| forward(image)));
        let message = panic.err().map(|panic| panic.downcast::<String>().unwrap());
        message.map_or_else(String::new, |message| *message)
    };
    let conv = Conv2dConfig::new([2, 3], [3, 3]).with_stride([2, 2]);
    let dense = conv.init(&device);
    let message = refusal(&|image| dense.forward(image), [4, 2]);
    let sizes = "conv2d: a kernel of 3x3 does not fit into an input of 4x2 (padding of rows and columns [(0, 0), (0, 0)]";
    assert!(message.starts_with(sizes), "{message}");
    assert_eq!(refusal(&|image| dense.forward(image), [3, 3]), "");
    let dilated = conv.with_dilation([2, 1]).init(&device);
    let message = refusal(&|image| dilated.forward(image), [4, 3]);
    assert!(message.contains("dilation [2, 1]"), "{message}");
    assert_eq!(refusal(&|image| dilated.forward(image), [5, 3]), "");

    // One side is padded, so Burn's own pool would compute.
    let padding = PaddingConfig2d::Explicit(1, 0, 0, 0);
    let maximum = MaxPool2dConfig::new([3, 3]).with_padding(padding).init();
    let message = refusal(&|image| maximum.forward(image), [1, 3]);
    assert!(
        message.starts_with("max_pool2d: a kernel of 3x3"),
        "{message}"
    );
    assert_eq!(refusal(&|image| maximum.forward(image), [2, 3]), "");
    let mean = AvgPool2dConfig::new([3, 3]).init();
    let message = refusal(&|image| mean.forward(image), [2, 3]);
    assert!(
        message.starts_with("avg_pool2d: a kernel of 3x3"),
        "{message}"
    );
    // With ceil, a last window counts that does not fit.
    let mean = AvgPool2dConfig::new([3, 3]).with_ceil_mode(true).init();
    assert_eq!(refusal(&|image| mean.forward(image), [2, 3]), "");
    let even = AdaptiveAvgPool2dConfig::new([2, 2]).init();
    let message = refusal(&|image| even.forward(image), [0, 3]);
    assert!(
        message.contains("an input of 0x3 has no pixels"),
        "{message}"
    );
}

#[test]
fn bits_are_the_same_on_any_number_of_threads() {
    let on = |threads: usize| {
        std::thread::spawn(move || {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
            pool.unwrap().install(whole_step)
        })
        .join()
        .unwrap()
    };
    let alone = on(1);
    assert_eq!(alone, on(2));
    assert_eq!(alone, on(4));
}

/// Large enough for several threads to have their part.
fn whole_step() -> Vec<Vec<f64>> {
    let device = Device::flex().autodiff();
    let [mut first, mut second] =
        [[2, 6], [6, 8]].map(|channels| Conv2dConfig::new(channels, [5, 5]).init(&device));
    for (seed, conv) in (5..).zip([&mut first, &mut second]) {
        let [features, ..] = conv.weight.dims();
        conv.weight = Param::from_tensor(tensor(conv.weight.dims(), seed, &device));
        conv.bias = Some(Param::from_tensor(tensor([features], 9, &device)));
    }
    let norm = BatchNormConfig::new(6).init(&device);
    let input = tensor([40, 2, 28, 28], 1, &device).require_grad();
    let hidden = everburn_nn::tensor::activation::relu(norm.forward(first.forward(input.clone())));
    let hidden = MaxPool2dConfig::new([2, 2]).init().forward(hidden);
    let output = second.forward(hidden);
    let weights = tensor(output.dims(), 7, &device);
    let gradients = (output.clone() * weights).sum().backward();
    vec![
        values(output),
        values(input.grad(&gradients).unwrap()),
        values(first.weight.grad(&gradients).unwrap()),
        values(second.weight.grad(&gradients).unwrap()),
        values(norm.gamma.grad(&gradients).unwrap()),
    ]
}
