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
