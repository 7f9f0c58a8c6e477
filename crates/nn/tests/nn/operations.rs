//! The floating point operations of layers are counted, forward and backward, whoever computes them.

use burn::prelude::*;
use burn::tensor::{Distribution, FloatDType};
use everburn_nn::conv::Conv2dConfig;
use everburn_nn::{LinearConfig, causal_attention, count_operations, matmul, operations_counted};

use crate::alone::alone;

/// What `compute` is counted for, and what comes of it.
fn counted<T>(compute: impl FnOnce() -> T) -> (u64, T) {
    let before = operations_counted();
    let done = compute();
    (operations_counted() - before, done)
}

fn random<const D: usize>(shape: [usize; D], dtype: FloatDType, device: &Device) -> Tensor<D> {
    let values = Tensor::<D>::random(shape, Distribution::Default, device);
    values.cast(dtype).require_grad()
}

#[test]
fn layers_are_counted_forward_and_backward() {
    // The count is one of the whole process.
    alone(|| {
        let device = Device::flex().autodiff();
        count_operations(true);

        let linear = LinearConfig::new(30, 20).init(&device);
        let product = 2 * 40 * 30 * 20;
        let rows = random([40, 30], FloatDType::F32, &device);
        let (forward, output) = counted(|| linear.forward(rows));
        assert_eq!(forward, product);
        assert_eq!(counted(|| output.sum().backward()).0, 2 * product);
        // The gradient of an input that nobody asks for is not computed.
        let rows = Tensor::<2>::ones([40, 30], &device);
        let output = linear.forward(rows);
        assert_eq!(counted(|| output.sum().backward()).0, product);

        let dense = Conv2dConfig::new([6, 4], [3, 5]);
        // Each of two groups meets half of the channels.
        let grouped = dense.clone().with_groups(2).with_stride([2, 3]);
        // By products of matrices, which are not counted on top.
        let pointwise = Conv2dConfig::new([20, 32], [1, 1]);
        for (conv, images, convolution) in [
            (dense, [8, 6, 12, 12], 2 * (8 * 4 * 10 * 8) * (6 * 3 * 5)),
            (grouped, [8, 6, 12, 12], 2 * (8 * 4 * 5 * 3) * (3 * 3 * 5)),
            (pointwise, [3, 20, 7, 7], 2 * (3 * 32 * 49) * 20),
        ] {
            let conv = conv.init(&device);
            let images = random(images, FloatDType::F32, &device);
            let (forward, output) = counted(|| conv.forward(images));
            assert_eq!(forward, convolution);
            assert_eq!(counted(|| output.sum().backward()).0, 2 * convolution);
        }

        // Numbers of types without a kernel are multiplied by Burn's.
        for dtype in [FloatDType::F32, FloatDType::F64, FloatDType::F16] {
            let [left, right] =
                [[2, 3, 4, 5], [2, 3, 5, 6]].map(|shape| random(shape, dtype, &device));
            let (forward, output) = counted(|| matmul(left, right));
            assert_eq!(forward, 2 * (2 * 3) * (4 * 5 * 6), "{dtype:?}");
            assert_eq!(
                counted(|| output.sum().backward()).0,
                2 * forward,
                "{dtype:?}"
            );
        }

        // Of a hundred tokens, several tiles, the ones that a token sees are counted: 5050 pairs, whatever is computed twice.
        let all = [(); 3].map(|()| random([2, 3, 100, 4], FloatDType::F32, &device));
        let [q, k, v] = all;
        let (forward, output) = counted(|| causal_attention(q, k, v, 0.5));
        assert_eq!(forward, 2 * 2 * (2 * 3) * (5050 * 4));
        assert_eq!(counted(|| output.sum().backward()).0, 2 * forward);

        count_operations(false);
        let rows = Tensor::<2>::ones([40, 30], &device);
        assert_eq!(counted(|| linear.forward(rows)).0, 0);
    });
}
