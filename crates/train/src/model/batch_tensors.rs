//! The tensors of a batch, as far as its type is known: numbers with classes, with numbers or alone, and texts.

use std::any::Any;

use burn::prelude::*;
use burn::tensor::Int;

use crate::model::erased::AnyBatch;
use crate::model::supervised::{MaskedTextBatch, TextBatch};

/// Is shown the inputs and the targets of a batch, each with its name.
pub(crate) trait BatchVisitor {
    fn float<const D: usize>(&mut self, name: &'static str, tensor: &Tensor<D>);
    fn int<const D: usize>(&mut self, name: &'static str, tensor: &Tensor<D, Int>);
}

/// Shows `visitor` what `batch` has. Returns whether the batch's type is known.
pub(crate) fn visit_batch(batch: &AnyBatch, visitor: &mut impl BatchVisitor) -> bool {
    visit_tensors(batch.inner(), visitor)
}

/// The same of a batch out of its box.
pub(crate) fn visit_tensors(batch: &dyn Any, visitor: &mut impl BatchVisitor) -> bool {
    text(batch, visitor)
        || masked_text(batch, visitor)
        || numbers::<4>(batch, visitor)
        || numbers::<2>(batch, visitor)
        || numbers::<3>(batch, visitor)
        || numbers::<1>(batch, visitor)
        || numbers::<5>(batch, visitor)
}

/// The batch as a `B`; a task with a loss of its own has no targets beside it.
fn as_type<B: 'static>(batch: &dyn Any) -> Option<&B> {
    let alone = || batch.downcast_ref::<(B, ())>().map(|(batch, ())| batch);
    batch.downcast_ref::<B>().or_else(alone)
}

fn text(batch: &dyn Any, visitor: &mut impl BatchVisitor) -> bool {
    let Some((tokens, next)) = as_type::<TextBatch>(batch) else {
        return false;
    };
    visitor.int("tokens", tokens);
    visitor.int("targets", next);
    true
}

fn masked_text(batch: &dyn Any, visitor: &mut impl BatchVisitor) -> bool {
    let Some((tokens, (next, _))) = as_type::<MaskedTextBatch>(batch) else {
        return false;
    };
    visitor.int("tokens", tokens);
    visitor.int("targets", next);
    true
}

/// What belongs to inputs of numbers.
trait Targets: 'static {
    fn show(&self, visitor: &mut impl BatchVisitor);
}

impl<const D: usize> Targets for Tensor<D> {
    fn show(&self, visitor: &mut impl BatchVisitor) {
        visitor.float("targets", self);
    }
}

impl<const D: usize> Targets for Tensor<D, Int> {
    fn show(&self, visitor: &mut impl BatchVisitor) {
        visitor.int("classes", self);
    }
}

/// Classes of images that may be mixed: the `MixedClasses` of `everburn-datasets`.
type MixedClasses = (Tensor<1, Int>, Option<(Tensor<1, Int>, Tensor<1>)>);

impl Targets for MixedClasses {
    fn show(&self, visitor: &mut impl BatchVisitor) {
        visitor.int("classes", &self.0);
    }
}

impl Targets for () {
    fn show(&self, _: &mut impl BatchVisitor) {}
}

fn numbers<const D: usize>(batch: &dyn Any, visitor: &mut impl BatchVisitor) -> bool {
    numbers_with::<D, Tensor<1, Int>>(batch, visitor)
        || numbers_with::<D, Tensor<2, Int>>(batch, visitor)
        || numbers_with::<D, Tensor<3, Int>>(batch, visitor)
        || numbers_with::<D, Tensor<1>>(batch, visitor)
        || numbers_with::<D, Tensor<2>>(batch, visitor)
        || numbers_with::<D, Tensor<3>>(batch, visitor)
        || numbers_with::<D, Tensor<4>>(batch, visitor)
        || numbers_with::<D, MixedClasses>(batch, visitor)
        || numbers_with::<D, ()>(batch, visitor)
}

fn numbers_with<const D: usize, T: Targets>(
    batch: &dyn Any,
    visitor: &mut impl BatchVisitor,
) -> bool {
    let Some((inputs, targets)) = as_type::<(Tensor<D>, T)>(batch) else {
        return false;
    };
    visitor.float("input", inputs);
    targets.show(visitor);
    true
}
