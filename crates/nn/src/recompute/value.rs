//! What goes into a segment and comes out of it.

use burn::backend::DispatchTensor;

use crate::blocks::{Activation, AnyActivation};

/// What goes into a checkpointed segment or comes out of it: any [`Activation`], also one whose type only
/// the blocks on its sides know.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use burn::prelude::*;
/// use everburn::nn::SegmentValue;
///
/// fn takes(_: impl SegmentValue) {}
///
/// takes(Tensor::<2>::ones([4, 8], &Device::flex()));
/// ```
pub trait SegmentValue: Send + 'static + sealed::Sealed {
    /// A copy that shares the tensors.
    #[must_use]
    fn copy(&self) -> Self;

    /// The same with each tensor of numbers replaced by what `map` makes of it; whole numbers stay.
    #[must_use]
    fn map_floats(self, map: &mut dyn FnMut(DispatchTensor) -> DispatchTensor) -> Self;
}

mod sealed {
    pub trait Sealed {}
}

impl<A: Activation> sealed::Sealed for A {}

impl<A: Activation> SegmentValue for A {
    fn copy(&self) -> Self {
        self.clone()
    }

    fn map_floats(self, map: &mut dyn FnMut(DispatchTensor) -> DispatchTensor) -> Self {
        Activation::map_floats(self, map)
    }
}

impl sealed::Sealed for Box<dyn AnyActivation> {}

impl SegmentValue for Box<dyn AnyActivation> {
    fn copy(&self) -> Self {
        self.boxed_clone()
    }

    fn map_floats(self, map: &mut dyn FnMut(DispatchTensor) -> DispatchTensor) -> Self {
        AnyActivation::map_floats(self, map)
    }
}
