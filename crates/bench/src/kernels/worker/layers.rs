//! The layers, each put together as the models do it.

use everburn::burn::module::Param;
use everburn::burn::prelude::*;
use everburn::burn::tensor::TensorData;

use super::call::{self, CallResult};
use super::modules::{
    BatchNormConfig, Conv2dConfig, DropoutConfig, Embedding, EmbeddingConfig, LayerNormConfig,
    LinearConfig, MaxPool2dConfig, PaddingConfig2d, causal_softmax, cross_entropy, gelu, linear,
    matmul, mean_over_pixels, relu, rope, softmax,
};
use super::noise::{counted, filled};
use crate::failure::Failure;
use crate::kernels::layer::{Layer, Order};

/// How fast the angles of rotary positions fall from one pair of numbers to the next.
const ROTARY_BASE: f64 = 10_000.0;

/// A module without parameters, for what is only a function.
const NOTHING: Vec<Param<Tensor<1>>> = Vec::new();

pub(super) fn measure(order: &Order) -> Result<CallResult, Failure> {
    let device = &order.device();
    let kinds = [of_images, of_modules, of_functions, of_products];
    let measured = kinds.into_iter().find_map(|kind| kind(order, device));
    measured.unwrap_or_else(|| {
        let layer = &order.layer;
        Err(Failure::usage(format!("{layer:?} is not measured")))
    })
}

/// What a kind of layers measures; `None` where the layer is of another.
type Measured = Option<Result<CallResult, Failure>>;

/// The layers of images.
fn of_images(order: &Order, device: &Device) -> Measured {
    let batch = order.batch;
    Some(match order.layer {
        Layer::Conv2d {
            channels,
            kernel,
            stride,
            padding,
            side,
            bias,
        } => {
            let config = Conv2dConfig::new(channels, [kernel; 2])
                .with_stride([stride; 2])
                .with_padding(on_all_sides(padding))
                .with_bias(bias);
            let conv = filled(config.init(device));
            let shape = [batch, channels[0], side, side];
            call::measure(order, device, [shape], &conv, |conv, [x]| conv.forward(x))
        }
        Layer::MaxPool2d {
            channels,
            kernel,
            stride,
            padding,
            side,
        } => {
            let config = MaxPool2dConfig::new([kernel; 2])
                .with_strides([stride; 2])
                .with_padding(on_all_sides(padding));
            let (pool, shape) = (config.init(), [batch, channels, side, side]);
            call::measure(order, device, [shape], &pool, |pool, [x]| pool.forward(x))
        }
        Layer::MeanOverPixels { channels, side } => {
            let shape = [batch, channels, side, side];
            call::measure(order, device, [shape], &NOTHING, |_, [x]| {
                mean_over_pixels(x)
            })
        }
        Layer::BatchNorm {
            channels,
            side,
            epsilon,
            scales,
        } => {
            let config = BatchNormConfig::new(channels).with_epsilon(epsilon);
            let mut norm = config.init(device);
            if !scales {
                norm.gamma = norm.gamma.set_require_grad(false);
            }
            let shape = [batch, channels, side, side];
            call::measure(order, device, [shape], &norm, |norm, [x]| norm.forward(x))
        }
        _ => return None,
    })
}

/// The layers of tokens that have parameters.
fn of_modules(order: &Order, device: &Device) -> Measured {
    let batch = order.batch;
    Some(match order.layer {
        Layer::Linear { features, tokens } => {
            let [inputs, outputs] = features;
            let module = filled(LinearConfig::new(inputs, outputs).init(device));
            match tokens {
                None => call::measure(order, device, [[batch, inputs]], &module, |module, [x]| {
                    module.forward(x)
                }),
                Some(tokens) => {
                    let shape = [batch, tokens, inputs];
                    call::measure(order, device, [shape], &module, |module, [x]| {
                        module.forward(x)
                    })
                }
            }
        }
        Layer::TiedScores {
            tokens,
            width,
            vocabulary,
        } => {
            let module = filled(EmbeddingConfig::new(vocabulary, width).init(device));
            let forward = |module: &Embedding, [x]: [Tensor<3>; 1]| {
                let x = x.reshape([batch * tokens, width]);
                linear(x, module.weight.val().transpose(), None)
                    .reshape([batch, tokens, vocabulary])
            };
            call::measure(order, device, [[batch, tokens, width]], &module, forward)
        }
        Layer::LayerNorm { tokens, width } => {
            let norm = filled(LayerNormConfig::new(width).init(device));
            let shape = [batch, tokens, width];
            call::measure(order, device, [shape], &norm, |norm, [x]| norm.forward(x))
        }
        Layer::Embedding {
            tokens,
            width,
            vocabulary,
        } => {
            let module = filled(EmbeddingConfig::new(vocabulary, width).init(device));
            let tokens = counted([batch, tokens], vocabulary, device);
            let no_inputs: [[usize; 1]; 0] = [];
            call::measure(order, device, no_inputs, &module, |module, []| {
                module.forward(tokens.clone())
            })
        }
        _ => return None,
    })
}

/// What has no parameters and multiplies no matrices.
fn of_functions(order: &Order, device: &Device) -> Measured {
    let batch = order.batch;
    Some(match &order.layer {
        Layer::Relu { shape } => elementwise(order, device, shape, |[x]| relu(x)),
        Layer::Add { shape } => elementwise(order, device, shape, |[a, b]| a + b),
        Layer::Gelu { shape } => elementwise(order, device, shape, |[x]| gelu(x)),
        Layer::Dropout { shape, share } => {
            let dropout = DropoutConfig::new(*share).init();
            elementwise(order, device, shape, |[x]| dropout.forward(x))
        }
        &Layer::Softmax { heads, tokens } => {
            let shape = [batch, heads, tokens, tokens];
            call::measure(order, device, [shape], &NOTHING, |_, [x]| softmax(x, 3))
        }
        &Layer::Rotary {
            heads,
            tokens,
            width,
        } => {
            let [cos, sin] = rotation(tokens, width / 2, device);
            let shape = [batch, heads, tokens, width];
            call::measure(order, device, [shape], &NOTHING, |_, [x]| {
                rope(x, cos.clone(), sin.clone())
            })
        }
        &Layer::CrossEntropy { classes, tokens } => {
            let shape = [batch * tokens, classes];
            let targets = counted([batch * tokens], classes, device);
            call::measure(order, device, [shape], &NOTHING, |_, [logits]| {
                cross_entropy(logits, targets.clone())
            })
        }
        _ => return None,
    })
}

/// Products of matrices without parameters.
fn of_products(order: &Order, device: &Device) -> Measured {
    let batch = order.batch;
    Some(match order.layer {
        Layer::Matmul {
            heads: None,
            rows,
            inner,
            columns,
        } => {
            let shapes = [[rows, inner], [inner, columns]];
            call::measure(order, device, shapes, &NOTHING, |_, [a, b]| a.matmul(b))
        }
        Layer::Matmul {
            heads: Some(heads),
            rows,
            inner,
            columns,
        } => {
            let shapes = [[batch, heads, rows, inner], [batch, heads, inner, columns]];
            call::measure(order, device, shapes, &NOTHING, |_, [a, b]| matmul(a, b))
        }
        Layer::Attention {
            heads,
            tokens,
            width,
        } => {
            let scale = (width as f64).sqrt().recip();
            let shape = [batch, heads, tokens, width];
            call::measure(order, device, [shape; 3], &NOTHING, |_, [q, k, v]| {
                matmul(causal_softmax(matmul(q, k.swap_dims(2, 3)), scale), v)
            })
        }
        _ => return None,
    })
}

fn on_all_sides(padding: usize) -> PaddingConfig2d {
    match padding {
        0 => PaddingConfig2d::Valid,
        _ => PaddingConfig2d::Explicit(padding, padding, padding, padding),
    }
}

/// What does the same to each number, whatever the shape.
fn elementwise<const N: usize>(
    order: &Order,
    device: &Device,
    shape: &[usize],
    function: impl Fn([Tensor<2>; N]) -> Tensor<2>,
) -> Result<CallResult, Failure> {
    let numbers = shape
        .iter()
        .try_fold(1_usize, |count, size| count.checked_mul(*size))
        .ok_or_else(|| Failure::usage(format!("no tensor of shape {shape:?} is measured")))?;
    let shapes = [[order.batch, numbers]; N];
    call::measure(order, device, shapes, &NOTHING, |_, inputs| {
        function(inputs)
    })
}

/// The cosines and sines of `models/src/decoder/rotary.rs`, `[1, 1, length, half]`.
fn rotation(length: usize, half: usize, device: &Device) -> [Tensor<4>; 2] {
    let angle = |index: usize| {
        let (position, pair) = (index / half, index % half);
        position as f64 / ROTARY_BASE.powf(pair as f64 / half as f64)
    };
    [f64::cos, f64::sin].map(|function: fn(f64) -> f64| {
        let values = (0..length * half).map(|index| function(angle(index)) as f32);
        let data = TensorData::new(values.collect::<Vec<_>>(), [1, 1, length, half]);
        Tensor::from_data(data, device)
    })
}
