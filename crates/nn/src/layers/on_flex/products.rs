//! Products of matrices, and rotary positions.

use burn::backend::TensorMetadata;
use burn::tensor::DType;
use everburn_kernels::{
    self as kernels, Matrices, Matrix, RopeDirection, RopeShape, matmul, matmul_each,
    rope as kernel,
};

use super::tensors::{Tensor, attempt, contiguous, float, values};
use crate::layers::buffers::take;

/// A matrix as it is in memory, row after row or column after column; others are copied.
struct Lain {
    tensor: Tensor,
    transposed: bool,
}

impl Lain {
    fn of(tensor: &Tensor) -> Option<Self> {
        if tensor.dtype() != DType::F32 || tensor.shape().num_dims() != 2 {
            return None;
        }
        let flipped = tensor.clone().with_layout(tensor.layout().transpose(0, 1));
        Some(if !tensor.is_contiguous() && flipped.is_contiguous() {
            Self {
                tensor: flipped.to_contiguous(),
                transposed: true,
            }
        } else {
            Self {
                tensor: tensor.to_contiguous(),
                transposed: false,
            }
        })
    }

    fn matrix(&self) -> Matrix<'_> {
        let matrix = Matrix::new(values(&self.tensor), self.tensor.shape().dims());
        match self.transposed {
            true => matrix.transposed(),
            false => matrix,
        }
    }
}

/// Of `[B, heads, rows, columns]`, wherever each number is.
fn matrices(tensor: &Tensor) -> Option<Matrices<'_>> {
    let layout = tensor.layout();
    let [outer, inner, rows, columns] = layout.shape().dims();
    let mut strides = [0; 4];
    for (stride, &signed) in strides.iter_mut().zip(layout.strides()) {
        *stride = usize::try_from(signed).ok()?;
    }
    let [to_outer, to_inner, to_row, to_column] = strides;
    let values = values(tensor).get(layout.start_offset()..)?;
    let (batch, extent) = ([outer, inner], [rows, columns]);
    attempt(|| {
        Matrices::new(
            values,
            batch,
            [to_outer, to_inner],
            extent,
            [to_row, to_column],
        )
    })
}

/// Of queries, keys and values.
pub(super) fn matrices_of<'a>(tensors: [&'a Tensor; 3]) -> Option<[Matrices<'a>; 3]> {
    let fit = |tensor: &&Tensor| tensor.dtype() == DType::F32;
    let [a, b, c] = tensors.iter().all(fit).then_some(tensors)?;
    Some([matrices(a)?, matrices(b)?, matrices(c)?])
}

/// The sums of the columns of a matrix.
pub(super) fn column_sums(input: &Tensor) -> Option<Tensor> {
    let [input] = contiguous([input])?;
    let [rows, columns] = input.shape().dims();
    attempt(|| {
        let mut sums = vec![0.0; columns];
        kernels::column_sums([rows, columns], values(&input), &mut sums)?;
        Ok(float(sums, [columns], &input))
    })
}

/// The transposed left factor times the gradient; where the right factor is in memory column after column, so does the
/// result, which takes no copy to be added to what else its parameter has.
pub(super) fn multiply_right_gradient(
    left: &Tensor,
    right: &Tensor,
    gradient: &Tensor,
) -> Option<Tensor> {
    let flipped = |tensor: &Tensor| tensor.clone().with_layout(tensor.layout().transpose(0, 1));
    let lies_transposed = !right.is_contiguous() && flipped(right).is_contiguous();
    if !lies_transposed {
        return multiply(&flipped(left), gradient, None);
    }
    let product = multiply(&flipped(gradient), left, None)?;
    Some(flipped(&product))
}

fn multiply_each(left: &Tensor, right: &Tensor) -> Option<Tensor> {
    if [left, right]
        .iter()
        .any(|tensor| tensor.dtype() != DType::F32)
    {
        return None;
    }
    let ([outer, inner, rows, _], [.., columns]) =
        (left.shape().dims::<4>(), right.shape().dims::<4>());
    let (left_matrices, right) = (matrices(left)?, matrices(right)?);
    let mut products = take(outer * inner * rows * columns);
    attempt(|| {
        matmul_each(left_matrices, right, &mut products)?;
        Ok(float(products, [outer, inner, rows, columns], left))
    })
}

pub(super) fn multiply(left: &Tensor, right: &Tensor, bias: Option<&Tensor>) -> Option<Tensor> {
    if bias.is_none() && left.shape().num_dims() == 4 && right.shape().num_dims() == 4 {
        return multiply_each(left, right);
    }
    let (lain, right) = (Lain::of(left)?, Lain::of(right)?);
    let bias = match bias {
        Some(bias) => Some(contiguous([bias])?),
        None => None,
    };
    let (matrix, right) = (lain.matrix(), right.matrix());
    let [rows, columns] = [matrix.extent()[0], right.extent()[1]];
    let mut product = take(rows * columns);
    let bias = bias.as_ref().map(|[bias]| values(bias));
    attempt(|| {
        matmul(matrix, right, bias, &mut product)?;
        Ok(float(product, [rows, columns], left))
    })
}

/// Of `[B, heads, T, width]`, whose vectors may be anywhere.
pub(super) fn rope(input: &Tensor, angles: [&Tensor; 2], back: bool) -> Option<Tensor> {
    let [cosines, sines] = contiguous(angles)?;
    let [texts, heads, tokens, width] = input.shape().dims();
    let lies_side_by_side = input.layout().strides()[3] == 1;
    let lain = match lies_side_by_side && input.dtype() == DType::F32 {
        true => input.clone(),
        false => contiguous([input])?.into_iter().next()?,
    };
    let mut strides = [0; 3];
    for (stride, &signed) in strides.iter_mut().zip(lain.layout().strides()) {
        *stride = usize::try_from(signed).ok()?;
    }
    let shape = RopeShape {
        batch: [texts, heads],
        tokens,
        half: width / 2,
        strides,
    };
    let direction = match back {
        true => RopeDirection::Back,
        false => RopeDirection::Forward,
    };
    let given = values(&lain).get(lain.layout().start_offset()..)?;
    attempt(|| {
        let mut output = take(texts * heads * tokens * width);
        kernel(
            shape,
            direction,
            given,
            [values(&cosines), values(&sines)],
            &mut output,
        )?;
        // Heads side by side, as the layer before and the attention have them.
        let output = float(output, [texts, tokens, heads, width], input);
        let layout = output.layout().transpose(1, 2);
        Ok(output.with_layout(layout))
    })
}
