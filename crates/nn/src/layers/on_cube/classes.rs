//! The loss of classes, and its gradient: logits are read once for the loss, and read and written once for the gradient.

use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::{IntDType, Shape};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::rows::{LOWEST, Rows, address, largest_of_cube, sum_of_cube};

/// For each row of `[rows, classes]` the logarithm of the sum of exponentials, and how much the target's logit is
/// below it. The sum is found with the largest logit in one pass (Milakov and Gimelshein 2018, algorithm 3).
#[cube(launch, address_type = "dynamic")]
fn class_losses<F: Float, I: Int>(
    logits: &Tensor<F>,
    targets: &Tensor<I>,
    losses: &mut Tensor<f32>,
    logarithms: &mut Tensor<f32>,
    #[comptime] threads: usize,
    #[define(F, I)] _dtypes: [ElemType; 2],
) {
    let row = CUBE_POS;
    if row >= logits.shape(0) {
        terminate!();
    }
    let classes = logits.shape(1);
    let start = row * logits.stride(0);

    let mut highest = f32::new(LOWEST);
    let mut sum = f32::new(0.0);
    let mut class = UNIT_POS as usize;
    while class < classes {
        let logit = f32::cast_from(logits[start + class]);
        let before = highest;
        highest = max(highest, logit);
        sum = sum * (before - highest).exp() + (logit - highest).exp();
        class += threads;
    }
    let of_row = largest_of_cube(highest, threads);
    let sum = sum_of_cube(sum * (highest - of_row).exp(), threads);

    if UNIT_POS == 0 {
        let logarithm = of_row + sum.ln();
        let target = usize::cast_from(targets[row]);
        logarithms[row] = logarithm;
        losses[row] = logarithm - f32::cast_from(logits[start + target]);
    }
}

/// The gradients of logits: by how much the share of a class is too large, times `gradient / rows`.
#[cube(launch, address_type = "dynamic")]
fn class_gradient<F: Float, I: Int>(
    logits: &Tensor<F>,
    targets: &Tensor<I>,
    logarithms: &Tensor<f32>,
    gradient: &Tensor<f32>,
    logits_grad: &mut Tensor<F>,
    #[comptime] threads: usize,
    #[define(F, I)] _dtypes: [ElemType; 2],
) {
    let row = CUBE_POS;
    let rows = logits.shape(0);
    if row >= rows {
        terminate!();
    }
    let classes = logits.shape(1);
    let (start, out) = (row * logits.stride(0), row * logits_grad.stride(0));
    let logarithm = logarithms[row];
    let target = usize::cast_from(targets[row]);
    let weight = gradient[0] / f32::cast_from(rows);

    let mut class = UNIT_POS as usize;
    while class < classes {
        let mut distance = (f32::cast_from(logits[start + class]) - logarithm).exp();
        if class == target {
            distance -= 1.0;
        }
        logits_grad[out + class] = F::cast_from(distance * weight);
        class += threads;
    }
}

/// The class of each row's largest logit.
#[cube(launch, address_type = "dynamic")]
fn largest<F: Float, I: Int>(
    logits: &Tensor<F>,
    found: &mut Tensor<I>,
    #[comptime] threads: usize,
    #[define(F, I)] _dtypes: [ElemType; 2],
) {
    let row = CUBE_POS;
    if row >= logits.shape(0) {
        terminate!();
    }
    let classes = logits.shape(1);
    let start = row * logits.stride(0);

    let mut highest = f32::new(LOWEST);
    let mut at = 0u32;
    let mut class = UNIT_POS as usize;
    while class < classes {
        let logit = f32::cast_from(logits[start + class]);
        if logit > highest {
            highest = logit;
            at = u32::cast_from(class);
        }
        class += threads;
    }
    let of_row = largest_of_cube(highest, threads);
    // The first of equal ones, and of a row of nothing but the lowest.
    let mut first = f32::cast_from(at);
    if highest < of_row {
        first = f32::new(-LOWEST);
    }
    let first = -largest_of_cube(-first, threads);
    if UNIT_POS == 0 {
        found[row] = I::cast_from(first);
    }
}

/// Of each row of `[rows, classes]`, the loss and the logarithm of its sum of exponentials: `[rows]` each.
pub(super) fn losses(logits: CubeTensor, targets: CubeTensor) -> (CubeTensor, CubeTensor) {
    let logits = Rows::of(logits);
    let targets = into_contiguous(targets);
    let [losses, logarithms] = [(); 2].map(|()| logits.numbers(Shape::new([logits.count])));
    if logits.is_empty() {
        return (losses, logarithms);
    }
    let (cubes, threads) = logits.cubes();
    class_losses::launch(
        &logits.tensor.client,
        cubes,
        threads,
        address([&logits.tensor]),
        logits.matrix(),
        targets.clone().into_tensor_arg(),
        losses.clone().into_tensor_arg(),
        logarithms.clone().into_tensor_arg(),
        logits.threads(),
        [&logits.tensor, &targets].map(|tensor| dtype_to_storage_type(tensor.dtype)),
    );
    (losses, logarithms)
}

/// Of each row of `[rows, classes]`, the class of the largest logit, `[rows]`.
pub(super) fn argmax(logits: CubeTensor, dtype: IntDType) -> CubeTensor {
    let logits = Rows::of(logits);
    let found = logits.numbers_of(Shape::new([logits.count]), dtype.into());
    if logits.is_empty() {
        return found;
    }
    let (cubes, threads) = logits.cubes();
    largest::launch(
        &logits.tensor.client,
        cubes,
        threads,
        address([&logits.tensor]),
        logits.matrix(),
        found.clone().into_tensor_arg(),
        logits.threads(),
        [&logits.tensor, &found].map(|tensor| dtype_to_storage_type(tensor.dtype)),
    );
    found
}

/// The gradient with respect to the logits of the losses' mean, which has `gradient`, `[1]`.
pub(super) fn gradient(
    logits: CubeTensor,
    targets: CubeTensor,
    logarithms: CubeTensor,
    gradient: CubeTensor,
) -> CubeTensor {
    let logits = Rows::of(logits);
    let targets = into_contiguous(targets);
    // Its rows begin at round addresses: products read them faster.
    let logits_grad = logits.like();
    if logits.is_empty() {
        return logits_grad.tensor;
    }
    let (cubes, threads) = logits.cubes();
    class_gradient::launch(
        &logits.tensor.client,
        cubes,
        threads,
        address([&logits.tensor, &logits_grad.tensor]),
        logits.matrix(),
        targets.clone().into_tensor_arg(),
        logarithms.into_tensor_arg(),
        gradient.into_tensor_arg(),
        logits_grad.matrix(),
        logits.threads(),
        [&logits.tensor, &targets].map(|tensor| dtype_to_storage_type(tensor.dtype)),
    );
    logits_grad.tensor
}
