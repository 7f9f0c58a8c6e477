//! Causal attention in tiles of queries, forward and backward: the scores of a tile stay in a cache, and
//! those of all tokens are nowhere in memory. The backward pass computes them anew from the logarithms of
//! their sums, as FlashAttention does (Dao et al. 2022, algorithms 2 and 4).

#![expect(unsafe_code, reason = "tasks write blocks of one slice")]

#[cfg(test)]
mod tests;

use pulp::{Simd, WithSimd};

use crate::elementary::exp;
use crate::error::{KernelError, check_length, product};
use crate::isa::InstructionSet;
use crate::lanes::{change, change_by, sum};
use crate::matmul::{Matrices, Matrix, MatrixMut, Sum, multiply_to};
use crate::operations::add_operations;
use crate::parallel::{each_task, multiply_adds};
use crate::scratch::with_scratch;
use crate::softmax::maximum;

const ATTENTION: &str = "causal_attention";

/// How many queries a tile has at most: products of fewer rows leave registers empty, and a tile computes
/// scores up to its last query for all of them.
const TILE: usize = 48;

/// The shape of an attention, found in its queries.
#[derive(Clone, Copy)]
struct Shape {
    batch: usize,
    heads: usize,
    tokens: usize,
    width: usize,
}

impl Shape {
    fn of(all: &[Matrices<'_>; 3]) -> Result<Self, KernelError> {
        let ([batch, heads], [tokens, width]) = (all[0].batch(), all[0].extent());
        for (what, other) in ["keys", "values"].into_iter().zip(&all[1..]) {
            let of = |other: &Matrices<'_>| [other.batch(), other.extent()].concat();
            for (expected, actual) in of(&all[0]).into_iter().zip(of(other)) {
                check_length(ATTENTION, what, expected, actual)?;
            }
        }
        Ok(Self {
            batch,
            heads,
            tokens,
            width,
        })
    }

    fn check(&self, what: &'static str, actual: usize) -> Result<(), KernelError> {
        let Self {
            batch,
            heads,
            tokens,
            width,
        } = *self;
        let expected = product(ATTENTION, &[batch, heads, tokens, width])?;
        check_length(ATTENTION, what, expected, actual)
    }

    fn check_rows(&self, what: &'static str, actual: usize) -> Result<(), KernelError> {
        let expected = product(ATTENTION, &[self.batch, self.heads, self.tokens])?;
        check_length(ATTENTION, what, expected, actual)
    }

    /// What `products` of tokens by tokens cost, in values moved. Counted are the pairs of a token and one that it sees:
    /// a tile computes few others.
    fn count(&self, products: usize) -> usize {
        let heads = self.batch * self.heads;
        let seen = heads * (self.tokens * (self.tokens + 1) / 2);
        for _ in 0..products {
            add_operations(seen, self.width);
        }
        let scores = heads * self.tokens * self.tokens;
        multiply_adds(scores.saturating_mul(self.width).saturating_mul(products))
    }

    /// How many queries a tile has.
    fn tile(&self) -> usize {
        let tiles = self.tokens.div_ceil(TILE).max(2);
        self.tokens.div_ceil(tiles).next_multiple_of(6).min(TILE)
    }

    /// Rows of head `head`, of a tensor `[B, T, heads * width]`.
    fn place(&self, tensor: MatrixMut, head: usize, first: usize, count: usize) -> MatrixMut {
        let (text, head) = (head / self.heads, head % self.heads);
        let start = [text * self.tokens + first, head * self.width];
        tensor.at(start, [count, self.width])
    }

    fn rows<'a>(&self, tensor: &'a [f32], head: usize, first: usize, count: usize) -> Matrix<'a> {
        let whole = Matrix::new(tensor, [self.batch * self.tokens, self.heads * self.width]);
        let (text, head) = (head / self.heads, head % self.heads);
        whole
            .rows(text * self.tokens + first, count)
            .columns(head * self.width, self.width)
    }
}

/// For each head the softmax of `scale` times queries by keys, times values, where each token sees itself and
/// those before it. Queries, keys and values are `[B, heads, T, width]` and lie anywhere; `output` is
/// `[B, T, heads * width]`, and `logarithms`, `[B, heads, T]`, what the backward pass needs of the scores.
///
/// # Errors
/// Keys and values that do not fit to the queries, and slices of other lengths than the shape says.
pub fn causal_attention(
    given: [Matrices<'_>; 3],
    scale: f32,
    output: &mut [f32],
    logarithms: &mut [f32],
) -> Result<(), KernelError> {
    let set = InstructionSet::best();
    let shape = Shape::of(&given)?;
    shape.check("output", output.len())?;
    shape.check_rows("logarithms", logarithms.len())?;
    if logarithms.is_empty() || output.is_empty() {
        return Ok(());
    }
    let (work, tile) = (shape.count(2), shape.tile());
    let output = MatrixMut::of(output, shape.heads * shape.width);
    let heads = logarithms.chunks_mut(shape.tokens).enumerate().collect();
    each_task(heads, work, |(head, logarithms)| {
        let [queries, keys, values] = given.map(|all| all.at(head));
        with_fast_columns(keys.transposed(), |keys| {
            with_scratch(tile * shape.tokens, |scores| {
                for (index, logarithms) in logarithms.chunks_mut(tile).enumerate() {
                    let (first, count) = (index * tile, logarithms.len());
                    let seen = first + count;
                    let scores = &mut scores[..count * seen];
                    product_of(queries.rows(first, count), keys.columns(0, seen), scores);
                    set.run(Softmax {
                        first,
                        scale,
                        scores,
                        logarithms,
                    });
                    let shares = Matrix::new(scores, [count, seen]);
                    let place = shape.place(output, head, first, count);
                    // SAFETY: no other task has this head's columns of the output, which is borrowed
                    // until all have ended.
                    unsafe { multiply_to(shares, values.rows(0, seen), Sum::New, place) };
                }
            });
        });
    });
    Ok(())
}

/// Writes the gradients with respect to queries, keys and values of [`causal_attention`] to `grads`, each
/// `[B, T, heads, width]`, from its `output` and `logarithms` and the gradient with respect to the output.
///
/// # Errors
/// Keys and values that do not fit to the queries, and slices of other lengths than the shape says.
pub fn causal_attention_backward(
    given: [Matrices<'_>; 3],
    scale: f32,
    [output, logarithms]: [&[f32]; 2],
    gradient: &[f32],
    grads: [&mut [f32]; 3],
) -> Result<(), KernelError> {
    let set = InstructionSet::best();
    let shape = Shape::of(&given)?;
    shape.check("output", output.len())?;
    shape.check("gradient", gradient.len())?;
    shape.check_rows("logarithms", logarithms.len())?;
    for grad in &grads {
        shape.check("grads", grad.len())?;
    }
    if output.is_empty() {
        return Ok(());
    }
    let work = shape.count(4);
    let head = Head {
        set,
        shape,
        scale,
        output,
        logarithms,
        gradient,
        grads: grads.map(|grad| MatrixMut::of(grad, shape.heads * shape.width)),
    };
    let heads = (0..shape.batch * shape.heads).collect();
    each_task(heads, work, |index| {
        let [queries, keys, values] = given.map(|all| all.at(index));
        with_fast_columns(keys.transposed(), |columns_of_keys| {
            with_fast_columns(values.transposed(), |columns_of_values| {
                head.backward(index, queries, keys, [columns_of_keys, columns_of_values]);
            });
        });
    });
    Ok(())
}

/// What the backward pass of a head is given.
struct Head<'a> {
    set: InstructionSet,
    shape: Shape,
    scale: f32,
    output: &'a [f32],
    logarithms: &'a [f32],
    gradient: &'a [f32],
    grads: [MatrixMut; 3],
}

impl Head<'_> {
    /// Of head `head`, which no other task has. The last tile comes first: it writes the sums for all keys,
    /// to which the others add.
    fn backward(
        &self,
        head: usize,
        queries: Matrix<'_>,
        keys: Matrix<'_>,
        [columns_of_keys, columns_of_values]: [Matrix<'_>; 2],
    ) {
        let Self { shape, set, .. } = *self;
        let (tile, tokens) = (shape.tile(), shape.tokens);
        let logarithms = &self.logarithms[head * tokens..][..tokens];
        with_scratch(2 * tile * tokens, |both| {
            let (shares, grads) = both.split_at_mut(tile * tokens);
            for (index, logarithms) in logarithms.chunks(tile).enumerate().rev() {
                let (first, count) = (index * tile, logarithms.len());
                let seen = first + count;
                let (shares, grads) = (&mut shares[..count * seen], &mut grads[..count * seen]);
                let [output, gradient] = [self.output, self.gradient]
                    .map(|tensor| shape.rows(tensor, head, first, count));
                let queries = queries.rows(first, count);
                product_of(queries, columns_of_keys.columns(0, seen), shares);
                product_of(gradient, columns_of_values.columns(0, seen), grads);
                set.run(SoftmaxBackward {
                    first,
                    scale: self.scale,
                    logarithms,
                    output,
                    gradient,
                    shares,
                    grads,
                });
                let sum = match seen == tokens {
                    true => Sum::New,
                    false => Sum::Added,
                };
                let [shares, grads] =
                    [&*shares, &*grads].map(|values| Matrix::new(values, [count, seen]));
                let [of_queries, of_keys, of_values] = self.grads;
                let of_queries = shape.place(of_queries, head, first, count);
                let [of_keys, of_values] =
                    [of_keys, of_values].map(|grad| shape.place(grad, head, 0, seen));
                // SAFETY: no other task has this head's columns of the three, which are borrowed until all
                // have ended.
                unsafe {
                    multiply_to(grads, keys.rows(0, seen), Sum::New, of_queries);
                    multiply_to(grads.transposed(), queries, sum, of_keys);
                    multiply_to(shares.transposed(), gradient, sum, of_values);
                }
            }
        });
    }
}

/// Calls `body` with the matrix, whose columns are transposed first if they lie one after the other.
fn with_fast_columns<R>(matrix: Matrix<'_>, body: impl FnOnce(Matrix<'_>) -> R) -> R {
    match matrix.lies_transposed() {
        true => matrix.with_rows_side_by_side(body),
        false => body(matrix),
    }
}

fn product_of(left: Matrix<'_>, right: Matrix<'_>, output: &mut [f32]) {
    crate::matmul::multiply(left, right, Sum::New, output);
}

/// The softmax of the scores of a tile, of whose queries the first is number `first`; the others that a
/// query does not see become zero.
struct Softmax<'a> {
    first: usize,
    scale: f32,
    scores: &'a mut [f32],
    logarithms: &'a mut [f32],
}

impl WithSimd for Softmax<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let scale = simd.splat_f32s(self.scale);
        let seen = self.first + self.logarithms.len();
        let rows = self.scores.chunks_mut(seen).zip(self.logarithms);
        for (row, (scores, logarithm)) in rows.enumerate() {
            let (scores, later) = scores.split_at_mut(self.first + row + 1);
            later.fill(0.0);
            let highest = maximum(simd, scores, scale);
            let shift = simd.splat_f32s(highest);
            change(
                simd,
                scores,
                #[inline(always)]
                |x| exp(simd, simd.sub_f32s(simd.mul_f32s(x, scale), shift)),
            );
            let total = sum(
                simd,
                [&*scores],
                #[inline(always)]
                |x: [S::f32s; 1]| x[0],
            );
            let share = simd.splat_f32s((1.0 / total) as f32);
            change(
                simd,
                scores,
                #[inline(always)]
                |x| simd.mul_f32s(x, share),
            );
            *logarithm = (f64::from(highest) + total.ln()) as f32;
        }
    }
}

/// From scores to shares, and from gradients with respect to shares to those with respect to scores.
struct SoftmaxBackward<'a> {
    first: usize,
    scale: f32,
    logarithms: &'a [f32],
    output: Matrix<'a>,
    gradient: Matrix<'a>,
    shares: &'a mut [f32],
    grads: &'a mut [f32],
}

impl WithSimd for SoftmaxBackward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let scale = simd.splat_f32s(self.scale);
        let seen = self.first + self.logarithms.len();
        let rows = self
            .shares
            .chunks_mut(seen)
            .zip(self.grads.chunks_mut(seen));
        for (row, ((shares, grads), &logarithm)) in rows.zip(self.logarithms).enumerate() {
            let (shares, later) = shares.split_at_mut(self.first + row + 1);
            later.fill(0.0);
            let (grads, later) = grads.split_at_mut(shares.len());
            later.fill(0.0);
            let shift = simd.splat_f32s(logarithm);
            change(
                simd,
                shares,
                #[inline(always)]
                |x| exp(simd, simd.sub_f32s(simd.mul_f32s(x, scale), shift)),
            );
            // What the gradient of the output is along the output is the mean of those of the shares.
            let mean = sum(
                simd,
                [self.output.row(row), self.gradient.row(row)],
                #[inline(always)]
                |[output, gradient]| simd.mul_f32s(output, gradient),
            );
            let mean = simd.splat_f32s(mean as f32);
            change_by(
                simd,
                shares,
                grads,
                #[inline(always)]
                |share, grad| simd.mul_f32s(simd.mul_f32s(share, scale), simd.sub_f32s(grad, mean)),
            );
        }
    }
}
