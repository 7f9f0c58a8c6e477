//! Models in blocks, checkpointed.

use std::num::NonZeroUsize;
use std::ops::Range;

use burn::module::Module;

use super::{Randomness, checkpoint_with};
use crate::blocks::{AnyActivation, Blocks, InBlocks};

/// Runs all blocks of `model`, `every` of them as one checkpointed segment ([`checkpoint`](super::checkpoint)).
/// The last segment may be shorter; it is not checkpointed, because its activations would be needed again
/// at once.
///
/// With segments of one block the backward pass holds what goes from block to block and the activations of
/// one block; with longer ones less of the former and more of the latter.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use burn::nn::{Linear, LinearConfig};
/// use burn::prelude::*;
/// use everburn::nn::{Blocks, InBlocks, Randomness, checkpointed_forward};
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
    let blocks = model.blocks();
    let input: Box<dyn AnyActivation> = Box::new(input);
    let last = (blocks.len() - 1) / every * every.get();
    let before = checkpointed_run(&blocks, model, 0..last, input, every, randomness);
    crate::blocks::typed(blocks.run(model, last..blocks.len(), before))
}

/// Runs the blocks of `range`, `every` of them as one checkpointed segment, the last ones too: for a part of
/// a model, whose backward pass does not follow at once.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use burn::nn::{Linear, LinearConfig};
/// use burn::prelude::*;
/// use everburn::nn::{Blocks, Randomness, checkpointed_run};
///
/// type Layers = Vec<Linear>;
///
/// let device = Device::flex().autodiff();
/// let layers: Layers = (0..4).map(|_| LinearConfig::new(3, 3).init(&device)).collect();
/// let blocks = Blocks::first("0", ["0"], |layers: &Layers, x: Tensor<2>| layers[0].forward(x))
///     .then("1", ["1"], |layers, x| layers[1].forward(x))
///     .then("2", ["2"], |layers, x: Tensor<2>| layers[2].forward(x));
/// let x = Tensor::<2>::ones([1, 3], &device);
/// let every = 2.try_into().unwrap();
/// let part = checkpointed_run(&blocks, &layers, 1..3, Box::new(x), every, Randomness::Unused);
/// assert_eq!(part.shapes(), [vec![1, 3]]);
/// ```
///
/// # Panics
/// As [`checkpoint`](super::checkpoint), and as [`Blocks::run`].
pub fn checkpointed_run<M: Module + 'static, I, O>(
    blocks: &Blocks<M, I, O>,
    model: &M,
    range: Range<usize>,
    mut activation: Box<dyn AnyActivation>,
    every: NonZeroUsize,
    randomness: Randomness,
) -> Box<dyn AnyActivation> {
    for start in range.clone().step_by(every.get()) {
        let runs = blocks.runs(start..range.end.min(start + every.get()));
        let segment =
            move |model: &M, input| runs.iter().fold(input, |input, run| run(model, input));
        activation = checkpoint_with(randomness, model, activation, segment);
    }
    activation
}
