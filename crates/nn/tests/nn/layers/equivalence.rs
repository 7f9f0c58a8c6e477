//! Outputs and gradients beside those of Burn's own operations, on shapes drawn at random.

use burn::module::{Module, Param};
use burn::nn::PaddingConfig2d;
use burn::nn::conv as burns;
use burn::nn::pool;
use burn::prelude::*;
use burn::tensor::FloatDType;
use everburn_nn::{
    AdaptiveAvgPool2d, AvgPool2d, Conv2d, DropoutConfig, LayerNormConfig, MaxPool2d, SyncBatchNorm,
};
use proptest::prelude::*;

use crate::alone::alone;

/// Numbers without a pattern, from -1 to 1.
pub(crate) fn tensor<const D: usize>(shape: [usize; D], seed: u32, device: &Device) -> Tensor<D> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    let values = (0..shape.iter().product()).map(|_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    });
    Tensor::from_data(TensorData::new(values.collect::<Vec<_>>(), shape), device)
}

pub(crate) fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    tensor.into_data().iter::<f64>().collect()
}

/// What a layer yields, and the gradients of all that went in, of a loss that looks at each value in a
/// way of its own.
type Everything = Vec<Vec<f64>>;

fn everything<const D: usize>(
    inputs: Vec<Tensor<D>>,
    parameters: Vec<Tensor<1>>,
    layer: impl Fn(&[Tensor<D>], &[Tensor<1>]) -> Tensor<D>,
) -> Everything {
    let inputs: Vec<_> = inputs.into_iter().map(Tensor::require_grad).collect();
    let parameters: Vec<_> = parameters.into_iter().map(Tensor::require_grad).collect();
    let output = layer(&inputs, &parameters);
    let device = output.device();
    let weights = tensor(output.dims(), 99, &device).cast(output.dtype());
    let gradients = (output.clone() * weights).sum().backward();
    let mut all = vec![values(output)];
    all.extend(
        inputs
            .iter()
            .map(|input| values(input.grad(&gradients).unwrap())),
    );
    let parameters = parameters.iter();
    all.extend(parameters.map(|parameter| values(parameter.grad(&gradients).unwrap())));
    all
}

/// Below this, the largest number of an array is what is left of larger ones, in sums of numbers around 1 that cancel
/// each other, and a tolerance by its size would ask for more digits than these have.
const SMALLEST_SCALE: f64 = 1.0;

/// Equal within 1e-5 of the largest number of an array.
#[track_caller]
fn assert_close(ours: &Everything, theirs: &Everything) {
    assert_eq!(ours.len(), theirs.len());
    for (index, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
        assert_eq!(ours.len(), theirs.len(), "array {index}");
        let finite = theirs.iter().filter(|value| value.is_finite());
        let scale = finite.fold(SMALLEST_SCALE, |largest: f64, value| {
            largest.max(value.abs())
        });
        for (ours, theirs) in ours.iter().zip(theirs) {
            assert!(
                // A window of nothing but padding has no maximum.
                ours == theirs || (ours - theirs).abs() <= 1e-5 * scale,
                "array {index}: {ours} {theirs} of {scale}"
            );
        }
    }
}

fn training() -> Device {
    Device::flex().autodiff()
}

#[derive(Debug, Clone)]
struct Case {
    batch: usize,
    /// A group's.
    channels: [usize; 2],
    groups: usize,
    input: [usize; 2],
    kernel: [usize; 2],
    stride: [usize; 2],
    dilation: [usize; 2],
    padding: [usize; 4],
    bias: bool,
}

impl Case {
    fn fits(&self) -> bool {
        let [top, left, bottom, right] = self.padding;
        let padding = [top + bottom, left + right];
        (0..2).all(|axis| {
            let window = self.dilation[axis] * (self.kernel[axis] - 1) + 1;
            self.input[axis] + padding[axis] >= window
        })
    }

    fn convolution(&self, device: &Device) -> burns::Conv2d {
        let [top, left, bottom, right] = self.padding;
        let channels = self.channels.map(|channels| channels * self.groups);
        let mut conv = burns::Conv2dConfig::new(channels, self.kernel)
            .with_stride(self.stride)
            .with_dilation(self.dilation)
            .with_groups(self.groups)
            .with_padding(PaddingConfig2d::Explicit(top, left, bottom, right))
            .with_bias(self.bias)
            .init(device);
        let weight = tensor(conv.weight.dims(), 2, device);
        conv.weight = Param::from_tensor(weight);
        conv
    }
}

fn cases() -> impl Strategy<Value = Case> {
    let pair = |range: std::ops::Range<usize>| prop::array::uniform2(range);
    let sizes = (1_usize..20, pair(1..5), 1_usize..4, pair(1..10), pair(1..4));
    let steps = (pair(1..4), pair(1..3), prop::array::uniform4(0_usize..3));
    let all = (sizes, steps, any::<bool>()).prop_map(|(sizes, steps, bias)| {
        let (batch, channels, groups, input, kernel) = sizes;
        let (stride, dilation, padding) = steps;
        Case {
            batch,
            channels,
            groups,
            input,
            kernel,
            stride,
            dilation,
            padding,
            bias,
        }
    });
    all.prop_filter("a window fits", Case::fits)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn convolutions(case in cases()) {
        let device = training();
        let burns = case.convolution(&device);
        let input = tensor(
            [case.batch, case.channels[0] * case.groups, case.input[0], case.input[1]],
            1,
            &device,
        );
        let weight = burns.weight.val().detach();
        let bias: Vec<_> = burns.bias.iter().map(|_| {
            tensor([case.channels[1] * case.groups], 3, &device)
        }).collect();
        let with = |inputs: &[Tensor<4>], bias: &[Tensor<1>]| {
            let mut conv = burns.clone();
            conv.weight = Param::from_tensor(inputs[1].clone());
            conv.bias = bias.first().cloned().map(Param::from_tensor);
            conv
        };
        let inputs = vec![input, weight];
        let theirs = everything(inputs.clone(), bias.clone(), |inputs, bias| {
            with(inputs, bias).forward(inputs[0].clone())
        });
        let ours = everything(inputs, bias, |inputs, bias| {
            Conv2d::from(with(inputs, bias)).forward(inputs[0].clone())
        });
        assert_close(&ours, &theirs);
    }

    #[test]
    fn poolings(case in cases(), ceil in any::<bool>(), padded in any::<bool>()) {
        let device = training();
        // Burn takes no more padding than half a window.
        let [top, left, bottom, right] = case.padding;
        let half = case.kernel.map(|extent| extent / 2);
        let [top, bottom] = [top, bottom].map(|rows| rows.min(half[0]));
        let [left, right] = [left, right].map(|columns| columns.min(half[1]));
        let padding = PaddingConfig2d::Explicit(top, left, bottom, right);
        let fitting = Case { padding: [top, left, bottom, right], ..case.clone() };
        prop_assume!(fitting.fits());
        let [height, width] = case.input;
        let input = vec![tensor([case.batch, case.channels[0], height, width], 1, &device)];

        let maximum = pool::MaxPool2dConfig::new(case.kernel)
            .with_strides(case.stride)
            .with_dilation(case.dilation)
            .with_padding(padding.clone())
            .with_ceil_mode(ceil)
            .init();
        let theirs = everything(input.clone(), vec![], |x, _| maximum.forward(x[0].clone()));
        let maximum = MaxPool2d::from(maximum.clone());
        let ours = everything(input.clone(), vec![], |x, _| maximum.forward(x[0].clone()));
        assert_close(&ours, &theirs);

        let dense = Case { dilation: [1, 1], ..fitting };
        prop_assume!(dense.fits());
        let mean = pool::AvgPool2dConfig::new(case.kernel)
            .with_strides(case.stride)
            .with_padding(padding)
            .with_count_include_pad(padded)
            .with_ceil_mode(ceil)
            .init();
        let theirs = everything(input.clone(), vec![], |x, _| mean.forward(x[0].clone()));
        let mean = AvgPool2d::from(mean.clone());
        let ours = everything(input, vec![], |x, _| mean.forward(x[0].clone()));
        assert_close(&ours, &theirs);
    }

    #[test]
    fn even_means(
        planes in prop::array::uniform2(1_usize..5),
        input in prop::array::uniform2(1_usize..12),
        output in prop::array::uniform2(1_usize..6),
    ) {
        let device = training();
        let input = tensor([planes[0], planes[1], input[0], input[1]], 1, &device);
        let burns = pool::AdaptiveAvgPool2dConfig::new(output).init();
        let theirs = everything(vec![input.clone()], vec![], |x, _| burns.forward(x[0].clone()));
        let ours = AdaptiveAvgPool2d::from(burns);
        let ours = everything(vec![input], vec![], |x, _| ours.forward(x[0].clone()));
        assert_close(&ours, &theirs);
    }

    #[test]
    fn batch_norms(
        batch in 1_usize..9,
        channels in 1_usize..20,
        pixels in prop::array::uniform2(1_usize..9),
    ) {
        prop_assume!(batch * pixels[0] * pixels[1] > 4);
        let device = training();
        let burns = nn::BatchNormConfig::new(channels).with_momentum(0.3).init(&device);
        let input = tensor([batch, channels, pixels[0], pixels[1]], 1, &device);
        let affine = vec![tensor([channels], 2, &device), tensor([channels], 3, &device)];
        let with = |affine: &[Tensor<1>], norm: &nn::BatchNorm| {
            let mut norm = norm.clone();
            norm.gamma = Param::from_tensor(affine[0].clone());
            norm.beta = Param::from_tensor(affine[1].clone());
            norm
        };
        let theirs = everything(vec![input.clone()], affine.clone(), |x, affine| {
            with(affine, &burns).forward(x[0].clone())
        });
        let running = |norm: &nn::BatchNorm| {
            vec![values(norm.running_mean.value_sync()), values(norm.running_var.value_sync())]
        };
        let their_running = running(&burns);
        let norm = nn::BatchNormConfig::new(channels).with_momentum(0.3).init(&device);
        let ours = everything(vec![input], affine, |x, affine| {
            SyncBatchNorm::from(with(affine, &norm)).forward(x[0].clone())
        });
        assert_close(&ours, &theirs);
        assert_close(&running(&norm), &their_running);
    }

    #[test]
    fn layer_norms(rows in prop::array::uniform2(1_usize..9), width in 2_usize..70) {
        let device = training();
        let burns = nn::LayerNormConfig::new(width).init(&device);
        let ours = LayerNormConfig::new(width).init(&device);
        let input = tensor([rows[0], rows[1], width], 1, &device);
        let affine = vec![tensor([width], 2, &device), tensor([width], 3, &device)];
        let theirs = everything(vec![input.clone()], affine.clone(), |x, affine| {
            let mut norm = burns.clone();
            norm.gamma = Param::from_tensor(affine[0].clone());
            norm.beta = Some(Param::from_tensor(affine[1].clone()));
            norm.forward(x[0].clone())
        });
        let ours = everything(vec![input], affine, |x, affine| {
            let mut norm = ours.clone();
            norm.gamma = Param::from_tensor(affine[0].clone());
            norm.beta = Some(Param::from_tensor(affine[1].clone()));
            norm.forward(x[0].clone())
        });
        assert_close(&ours, &theirs);
    }

    #[test]
    fn linear_layers(rows in prop::array::uniform2(1_usize..30), widths in prop::array::uniform2(1_usize..60)) {
        let device = training();
        let input = tensor([rows[0], rows[1], widths[0]], 1, &device);
        let weight = tensor([1, widths[0], widths[1]], 2, &device);
        let bias = vec![tensor([widths[1]], 3, &device)];
        let theirs = everything(vec![input.clone(), weight.clone()], bias.clone(), |x, bias| {
            let weight = x[1].clone().squeeze_dim::<2>(0);
            burn::tensor::module::linear(x[0].clone(), weight, Some(bias[0].clone()))
        });
        let ours = everything(vec![input, weight], bias, |x, bias| {
            let weight = x[1].clone().squeeze_dim::<2>(0);
            everburn_nn::linear(x[0].clone(), weight, Some(bias[0].clone()))
        });
        assert_close(&ours, &theirs);
    }

    #[test]
    fn products(
        batch in prop::array::uniform2(1_usize..4),
        extent in prop::array::uniform3(1_usize..20),
        transposed in any::<[bool; 2]>(),
    ) {
        let device = training();
        let [rows, inner, columns] = extent;
        let factor = |seed, rows, columns, transposed| match transposed {
            true => tensor([batch[0], batch[1], columns, rows], seed, &device),
            false => tensor([batch[0], batch[1], rows, columns], seed, &device),
        };
        let inputs = vec![
            factor(1, rows, inner, transposed[0]),
            factor(2, inner, columns, transposed[1]),
        ];
        let lie = |x: &Tensor<4>, transposed| match transposed {
            true => x.clone().swap_dims(2, 3),
            false => x.clone(),
        };
        let theirs = everything(inputs.clone(), vec![], |x, _| {
            lie(&x[0], transposed[0]).matmul(lie(&x[1], transposed[1]))
        });
        let ours = everything(inputs, vec![], |x, _| {
            everburn_nn::matmul(lie(&x[0], transposed[0]), lie(&x[1], transposed[1]))
        });
        assert_close(&ours, &theirs);
    }

    #[test]
    fn turned_vectors(batch in prop::array::uniform2(1_usize..4), tokens in 1_usize..9, half in 1_usize..20) {
        let device = training();
        // As a linear layer yields them: heads side by side.
        let vectors = vec![tensor([batch[0], tokens, batch[1], 2 * half], 1, &device)];
        let table = |seed| tensor([1, 1, tokens, half], seed, &device);
        let (cosines, sines) = (table(2), table(3));
        let theirs = everything(vectors.clone(), vec![], |x, _| {
            let halves = x[0].clone().swap_dims(1, 2).chunk(2, 3);
            let (a, b) = (halves[0].clone(), halves[1].clone());
            let first = a.clone() * cosines.clone() - b.clone() * sines.clone();
            Tensor::cat(vec![first, b * cosines.clone() + a * sines.clone()], 3)
        });
        let ours = everything(vectors, vec![], |x, _| {
            everburn_nn::rotary(x[0].clone().swap_dims(1, 2), cosines.clone(), sines.clone())
        });
        assert_close(&ours, &theirs);
    }

    #[test]
    fn gaussian_units(shape in prop::array::uniform3(0_usize..40)) {
        let device = training();
        let input = vec![tensor(shape, 1, &device).mul_scalar(6.0)];
        let theirs = everything(input.clone(), vec![], |x, _| {
            burn::tensor::activation::gelu(x[0].clone())
        });
        let ours = everything(input, vec![], |x, _| everburn_nn::gelu(x[0].clone()));
        // Where `1 + erf` is small, both are as near as its rounding lets them be.
        for (ours, theirs) in ours.iter().flatten().zip(theirs.iter().flatten()) {
            let room = 1e-6 + 1e-6 * theirs.abs();
            prop_assert!((ours - theirs).abs() <= room, "{ours} {theirs}");
        }
    }

    #[test]
    fn attentions(matrices in prop::array::uniform2(1_usize..5), length in 1_usize..40) {
        let device = training();
        let shape = [matrices[0], matrices[1], length, length];
        let scores = vec![tensor(shape, 1, &device).mul_scalar(5.0)];
        let theirs = everything(scores.clone(), vec![], |x, _| {
            let later = Tensor::<2>::ones([length, length], &x[0].device()).triu(1).bool();
            let scores = x[0].clone().mul_scalar(0.3);
            let masked = scores.mask_fill(later.expand(shape), f32::NEG_INFINITY);
            burn::tensor::activation::softmax(masked, 3)
        });
        let ours = everything(scores, vec![], |x, _| {
            everburn_nn::causal_softmax(x[0].clone(), 0.3)
        });
        assert_close(&ours, &theirs);
    }

    #[test]
    fn losses_of_classes(shape in prop::array::uniform2(1_usize..50), double in any::<bool>()) {
        let device = training();
        let targets = (0..shape[0]).map(|row| (row * 7 % shape[1]) as i32).collect::<Vec<_>>();
        let targets = Tensor::<1, Int>::from_data(targets.as_slice(), &device);
        let mut logits = tensor(shape, 1, &device).mul_scalar(5.0);
        if double {
            logits = logits.cast(FloatDType::F64);
        }
        let with = |loss: &dyn Fn(Tensor<2>) -> Tensor<1>| {
            everything(vec![logits.clone()], vec![], |x, _| loss(x[0].clone()).unsqueeze::<2>())
        };
        let burns = nn::loss::CrossEntropyLossConfig::new().init(&device);
        let theirs = with(&|logits| burns.forward(logits, targets.clone()));
        let ours = with(&|logits| everburn_nn::cross_entropy(logits, targets.clone()));
        assert_close(&ours, &theirs);
    }

    #[test]
    fn rectified(shape in prop::array::uniform3(0_usize..40)) {
        let device = training();
        let input = vec![tensor(shape, 1, &device)];
        let theirs = everything(input.clone(), vec![], |x, _| {
            burn::tensor::activation::relu(x[0].clone())
        });
        let ours = everything(input, vec![], |x, _| everburn_nn::relu(x[0].clone()));
        assert_eq!(ours, theirs);
    }
}

/// What is dropped, and that its gradient is dropped with it.
#[test]
fn dropouts() {
    // What another test seeds between two draws could make them equal.
    alone(|| {
        let device = training();
        let dropout = DropoutConfig::new(0.4).init();
        for input in [
            Tensor::<2>::ones([300, 100], &device),
            Tensor::<2>::ones([300, 100], &device).cast(FloatDType::F64),
        ] {
            let all = everything(vec![input.clone()], vec![], |x, _| {
                dropout.forward(x[0].clone())
            });
            let weights = values(tensor([300, 100], 99, &device));
            let dropped = all[0].iter().filter(|value| **value == 0.0).count();
            assert!((11_000..13_000).contains(&dropped), "{dropped}");
            for ((output, gradient), weight) in all[0].iter().zip(&all[1]).zip(&weights) {
                assert!(
                    *output == 0.0 || (output - 1.0 / 0.6).abs() < 1e-6,
                    "{output}"
                );
                assert!(
                    (gradient - output * weight).abs() < 1e-6,
                    "{gradient} {output}"
                );
            }
            let again = everything(vec![input], vec![], |x, _| dropout.forward(x[0].clone()));
            assert_ne!(all[0], again[0], "another time others are dropped");
        }
        let input = tensor([3, 4], 1, &Device::flex());
        let kept = dropout.valid().forward(input.clone());
        assert_eq!(values(kept), values(input));
    });
}

/// Images whose channels lie last in memory, as many libraries give them.
#[test]
fn tensors_in_another_order_of_memory() {
    let device = training();
    let case = Case {
        batch: 3,
        channels: [2, 4],
        groups: 1,
        input: [6, 7],
        kernel: [3, 2],
        stride: [1, 2],
        dilation: [1, 1],
        padding: [1, 0, 1, 0],
        bias: true,
    };
    let burns = case.convolution(&device);
    let input = tensor([3, 6, 7, 2], 1, &device);
    let last = |x: &Tensor<4>| x.clone().permute([0, 3, 1, 2]);
    let theirs = everything(vec![input.clone()], vec![], |x, _| {
        burns.forward(last(&x[0]))
    });
    let ours = Conv2d::from(burns.clone());
    let ours = everything(vec![input], vec![], |x, _| ours.forward(last(&x[0])));
    assert_close(&ours, &theirs);
}

/// Kernels are for `f32`; Burn's own operations do the others.
#[test]
fn numbers_of_other_types() {
    let device = training();
    let input = tensor([2, 3, 6, 6], 1, &device).cast(FloatDType::F64);
    let pool = pool::MaxPool2dConfig::new([2, 2]).init();
    let theirs = everything(vec![input.clone()], vec![], |x, _| {
        pool.forward(x[0].clone())
    });
    let ours = MaxPool2d::from(pool.clone());
    let ours = everything(vec![input.clone()], vec![], |x, _| {
        ours.forward(x[0].clone())
    });
    assert_eq!(ours, theirs);
    let weight = tensor([4, 3, 3, 3], 2, &device).cast(FloatDType::F64);
    let options = burn::tensor::ops::ConvOptions::new([1, 1], [1, 1], [1, 1], 1);
    let theirs = everything(vec![input.clone(), weight.clone()], vec![], |x, _| {
        burn::tensor::module::conv2d(x[0].clone(), x[1].clone(), None, options.clone())
    });
    let ours = everything(vec![input, weight], vec![], |x, _| {
        everburn_nn::conv2d(x[0].clone(), x[1].clone(), None, options.clone())
    });
    assert_eq!(ours, theirs);
}
