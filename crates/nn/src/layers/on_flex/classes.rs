//! Losses of classes.

use burn::backend::tensor::IntTensor;
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::DType;
use everburn_kernels::{Normalizer, cross_entropy as kernel, cross_entropy_backward};

use super::tensors::{Tensor, attempt, contiguous, float, values};
use crate::layers::buffers::take;

/// A column for each row.
fn columns(targets: &IntTensor<Flex>) -> Option<Vec<i64>> {
    let targets = targets.to_contiguous();
    match targets.dtype() {
        DType::I64 => Some(targets.storage::<i64>().to_vec()),
        DType::I32 => Some(
            targets
                .storage::<i32>()
                .iter()
                .copied()
                .map(i64::from)
                .collect(),
        ),
        _ => None,
    }
}

/// The mean, and two numbers for each row: those of [`Normalizer`].
pub(super) fn cross_entropy(
    logits: &Tensor,
    targets: &IntTensor<Flex>,
) -> Option<(Tensor, Tensor)> {
    let shape = logits.shape().dims();
    let targets = columns(targets)?;
    let [logits] = contiguous([logits])?;
    attempt(|| {
        let mut rows = vec![Normalizer::default(); shape[0]];
        let loss = kernel(shape, values(&logits), &targets, &mut rows)?;
        let saved: Vec<_> = rows
            .iter()
            .flat_map(|row| [row.highest, row.logarithm])
            .collect();
        Ok((
            float(vec![loss], [1], &logits),
            float(saved, [shape[0], 2], &logits),
        ))
    })
}

pub(super) fn cross_entropy_gradient(
    logits: &Tensor,
    targets: &IntTensor<Flex>,
    saved: &Tensor,
    gradient: &Tensor,
) -> Option<Tensor> {
    let shape = logits.shape().dims();
    let targets = columns(targets)?;
    let [contiguous_logits, saved, gradient] = contiguous([logits, saved, gradient])?;
    let rows = values(&saved).chunks_exact(2);
    let rows: Vec<_> = rows
        .map(|row| Normalizer {
            highest: row[0],
            logarithm: row[1],
        })
        .collect();
    let &gradient = values(&gradient).first()?;
    attempt(|| {
        let logits_values = values(&contiguous_logits);
        let mut logits_grad = take(logits_values.len());
        cross_entropy_backward(
            shape,
            logits_values,
            &targets,
            &rows,
            gradient,
            &mut logits_grad,
        )?;
        Ok(float(logits_grad, shape, logits))
    })
}
