//! Layers of images beside Burn's own, on shapes drawn at random.

use burn::module::Param;
use burn::nn::PaddingConfig2d;
use burn::nn::conv as burns;
use burn::nn::pool;
use burn::prelude::*;
use burn::tensor::FloatDType;
use everburn_nn::BatchNorm;
use everburn_nn::conv::Conv2d;
use everburn_nn::pool::{AdaptiveAvgPool2d, AvgPool2d, MaxPool2d};
use proptest::prelude::*;

use super::comparison::{assert_close, everything, tensor, training, values};

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
            BatchNorm::from(with(affine, &norm)).forward(x[0].clone())
        });
        assert_close(&ours, &theirs);
        assert_close(&running(&norm), &their_running);
    }
}

/// Images whose channels are last in memory, as many libraries give them.
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
        everburn_nn::tensor::module::conv2d(x[0].clone(), x[1].clone(), None, options.clone())
    });
    assert_eq!(ours, theirs);
}
