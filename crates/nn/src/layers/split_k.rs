//! Products that sum over many rows and whose output is small (split-K, as in CUTLASS): gradients of weights.
//!
//! A GPU computes a tile of the output in each of its multiprocessors. Of a small output there are fewer tiles than
//! those, so the rows are shared out too, and the partial products added.

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn::tensor::Shape;

use super::operations::LayerOps;

/// The rows and columns of the tile that a multiprocessor computes.
const TILE: usize = 128;

/// How many tiles large GPUs compute at once, about.
const TILES: usize = 256;

/// The most parts, and the fewest rows of one: what is added in the end is to be little beside the product.
const MOST_PARTS: usize = 8;
const FEWEST_ROWS: usize = 1024;

/// How many parts the rows of `[rows, m]` and `[rows, n]` are shared out to: a power of two.
fn parts(rows: usize, m: usize, n: usize) -> usize {
    let tiles = m.div_ceil(TILE) * n.div_ceil(TILE);
    let mut parts = 1;
    while parts < MOST_PARTS
        && tiles * parts < TILES
        && rows.is_multiple_of(2 * parts)
        && rows / (2 * parts) >= FEWEST_ROWS
    {
        parts *= 2;
    }
    parts
}

/// `left`ᵀ `right` of `[rows, m]` and `[rows, n]`: `[m, n]`.
pub(super) fn transposed_product<B: LayerOps>(
    left: FloatTensor<B>,
    right: FloatTensor<B>,
) -> FloatTensor<B> {
    let ([rows, m], [_, n]) = (left.shape().dims(), right.shape().dims::<2>());
    let parts = parts(rows, m, n);
    if parts == 1 {
        return B::multiply(B::float_transpose(left), right);
    }
    let shared_out = |tensor, columns| {
        let shape = Shape::new([1, parts, rows / parts, columns]);
        B::float_reshape(tensor, shape)
    };
    let left = B::float_swap_dims(shared_out(left, m), 2, 3);
    let products = B::multiply(left, shared_out(right, n));
    let sums = B::column_sums(B::float_reshape(products, Shape::new([parts, m * n])));
    B::float_reshape(sums, Shape::new([m, n]))
}

#[cfg(test)]
mod tests {
    use super::parts;

    #[test]
    fn rows_are_shared_out_until_there_are_tiles_for_a_gpu() {
        assert_eq!(parts(8192, 768, 768), 8);
        assert_eq!(parts(8192, 768, 3072), 2);
        assert_eq!(parts(8192, 768, 50_257), 1);
    }

    #[test]
    fn few_rows_or_odd_ones_are_not() {
        assert_eq!(parts(64, 768, 10), 1);
        assert_eq!(parts(2047, 768, 768), 1);
        assert_eq!(parts(2 * 1025, 768, 768), 2);
    }
}
