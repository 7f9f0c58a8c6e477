//! What is kept of a text while it is being written, token by token.

use burn::prelude::*;

/// A tensor that is kept from one token to the next: [`burn::nn::cache::TensorCache`] of this crate's transformers.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// let _nothing_yet = everburn::nn::cache::TensorCache::<3>::empty();
/// ```
#[derive(Debug, Clone)]
pub struct TensorCache<const D: usize> {
    kept: Option<Tensor<D>>,
}

impl<const D: usize> TensorCache<D> {
    /// Nothing is kept yet.
    pub fn empty() -> Self {
        Self { kept: None }
    }

    /// `compute` of all tokens: what is kept, and after it that of the last token of `input`; at first of all `input`.
    ///
    /// # Shapes
    /// - input: `[B, T, E]`, one token more each time
    /// - output: as `compute` has it, with tokens along `tokens`
    pub(super) fn append(
        &mut self,
        input: Tensor<3>,
        tokens: usize,
        compute: impl Fn(Tensor<3>) -> Tensor<D>,
    ) -> Tensor<D> {
        let output = match self.kept.take() {
            None => compute(input),
            Some(kept) => {
                let [_, length, _] = input.dims();
                Tensor::cat(vec![kept, compute(input.narrow(1, length - 1, 1))], tokens)
            }
        };
        self.kept = Some(output.clone());
        output
    }

    /// What is kept; at first `compute` of `input`.
    pub(super) fn once(
        &mut self,
        input: Tensor<3>,
        compute: impl Fn(Tensor<3>) -> Tensor<D>,
    ) -> Tensor<D> {
        self.kept.get_or_insert_with(|| compute(input)).clone()
    }
}
