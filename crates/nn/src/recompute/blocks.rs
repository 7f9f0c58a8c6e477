//! Models in blocks, checkpointed.

use std::num::NonZeroUsize;
use std::sync::Arc;

use super::{Randomness, checkpoint_with};
use crate::blocks::{AnyActivation, InBlocks};

/// Runs all blocks of `model`, `every` of them as one checkpointed segment ([`checkpoint`](super::checkpoint)).
/// The last segment may be shorter; it is not checkpointed, because its activations would be needed again
/// at once.
///
/// With segments of one block the backward pass holds what goes from block to block and the activations of
/// one block; with longer ones less of the former and more of the latter.
///
/// ```
/// use burn::nn::{Linear, LinearConfig};
/// use burn::prelude::*;
/// use everburn_nn::{Blocks, InBlocks, Randomness, checkpointed_forward};
///
/// #[derive(Module, Debug)]
/// struct Mlp {
///     layers: Vec<Linear>,
/// }
///
/// impl InBlocks for Mlp {
///     type Input = Tensor<2>;
///     type Output = Tensor<2>;
///
///     fn blocks(&self) -> Blocks<Self, Tensor<2>, Tensor<2>> {
///         Blocks::first("start", [""; 0], |_: &Mlp, x: Tensor<2>| x)
///             .each("layers", self.layers.len(), |mlp, i, x| mlp.layers[i].forward(x).tanh())
///     }
/// }
///
/// let device = Device::flex().autodiff();
/// let layers = (0..4).map(|_| LinearConfig::new(3, 3).init(&device)).collect();
/// let mlp = Mlp { layers };
/// let x = Tensor::<2>::ones([1, 3], &device);
/// let y = checkpointed_forward(&mlp, x.clone(), 2.try_into().unwrap(), Randomness::Replayed);
/// y.into_data().assert_eq(&mlp.blocks().forward(&mlp, x).into_data(), true);
/// ```
///
/// # Panics
/// As [`checkpoint`](super::checkpoint).
pub fn checkpointed_forward<M: InBlocks + 'static>(
    model: &M,
    input: M::Input,
    every: NonZeroUsize,
    randomness: Randomness,
) -> M::Output {
    let blocks = Arc::new(model.blocks());
    let (len, every) = (blocks.len(), every.get());
    let mut activation: Box<dyn AnyActivation> = Box::new(input);
    for start in (0..len).step_by(every) {
        let range = start..len.min(start + every);
        if range.end == len {
            activation = blocks.run(model, range, activation);
            continue;
        }
        let blocks = Arc::clone(&blocks);
        let segment = move |model: &M, input| blocks.run(model, range.clone(), input);
        activation = checkpoint_with(randomness, model, activation, segment);
    }
    crate::blocks::typed(activation)
}
