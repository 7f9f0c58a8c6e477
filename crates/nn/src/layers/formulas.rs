//! What layers compute, in Burn's operations.

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::{Distribution, IndexingUpdateOp, Scalar, Shape, Slice, TensorData};

pub(super) fn masked_softmax<B: Backend>(scores: FloatTensor<B>, scale: f64) -> FloatTensor<B> {
    let later = later_tokens::<B>(&scores);
    let scores = B::float_mul_scalar(scores, Scalar::Float(scale));
    B::softmax(B::float_add(scores, later), 3)
}

pub(super) fn masked_softmax_gradient<B: Backend>(
    shares: FloatTensor<B>,
    gradient: FloatTensor<B>,
    scale: f64,
) -> FloatTensor<B> {
    let weighted = B::float_mul(shares.clone(), gradient);
    let sum = B::float_sum_dim(weighted.clone(), 3);
    let gradient = B::float_sub(weighted, B::float_mul(shares, sum));
    B::float_mul_scalar(gradient, Scalar::Float(scale))
}

pub(super) fn class_loss<B: Backend>(
    logits: FloatTensor<B>,
    targets: IntTensor<B>,
) -> (FloatTensor<B>, FloatTensor<B>) {
    let [rows, _] = logits.shape().dims();
    let logarithms = B::log_softmax(logits, 1);
    let targets = B::int_reshape(targets, Shape::new([rows, 1]));
    let of_targets = B::float_gather(1, logarithms.clone(), targets);
    let loss = B::float_neg(B::float_mean(of_targets));
    (B::float_reshape(loss, Shape::new([1])), logarithms)
}

pub(super) fn class_loss_gradient<B: Backend>(
    logarithms: FloatTensor<B>,
    targets: IntTensor<B>,
    gradient: FloatTensor<B>,
) -> FloatTensor<B> {
    let [rows, _] = logarithms.shape().dims();
    let targets = B::int_reshape(targets, Shape::new([rows, 1]));
    let (device, dtype) = (logarithms.device(), logarithms.dtype());
    let less = B::float_neg(B::float_ones(Shape::new([rows, 1]), &device, dtype.into()));
    let shares = B::float_exp(logarithms);
    let distances = B::float_scatter(1, shares, targets, less, IndexingUpdateOp::Add);
    let share = B::float_div_scalar(gradient, Scalar::Float(rows as f64));
    B::float_mul(distances, B::float_reshape(share, Shape::new([1, 1])))
}

pub(super) fn rotated<B: Backend>(
    input: &FloatTensor<B>,
    cosines: &FloatTensor<B>,
    sines: FloatTensor<B>,
    back: bool,
) -> FloatTensor<B> {
    let width = input.shape()[3];
    let part = |start: usize, end: usize| {
        let all = Slice::full();
        let numbers = Slice::new(start as isize, Some(end as isize), 1);
        B::float_slice(input.clone(), &[all, all, all, numbers])
    };
    let (a, b) = (part(0, width / 2), part(width / 2, width));
    let sines = if back { B::float_neg(sines) } else { sines };
    let times = |x: &FloatTensor<B>, y: &FloatTensor<B>| B::float_mul(x.clone(), y.clone());
    let first = B::float_sub(times(&a, cosines), times(&b, &sines));
    let second = B::float_add(times(&b, cosines), times(&a, &sines));
    B::float_cat(vec![first, second], 3)
}

/// What is added to scores, `[1, 1, T, T]`: nothing where a token looks back, minus infinity where
/// it would look ahead.
fn later_tokens<B: Backend>(scores: &FloatTensor<B>) -> FloatTensor<B> {
    let length = scores.shape()[3];
    let cell = |index: usize| match index % length > index / length {
        true => f32::NEG_INFINITY,
        false => 0.0,
    };
    let cells = (0..length * length).map(cell).collect::<Vec<_>>();
    let cells = TensorData::new(cells, [1, 1, length, length]).convert_dtype(scores.dtype());
    B::float_from_data(cells, &scores.device())
}

/// What each value of a dropout is multiplied by.
pub(super) fn factors<B: Backend>(input: &FloatTensor<B>, probability: f64) -> FloatTensor<B> {
    let passing = 1.0 - probability;
    let mask = B::float_random(
        input.shape(),
        Distribution::Bernoulli(passing),
        &input.device(),
        input.dtype().into(),
    );
    B::float_mul_scalar(mask, Scalar::Float(passing.recip()))
}
