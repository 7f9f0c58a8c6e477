//! What passes from one block to the next, whatever its type.

use std::any::Any;

use burn::backend::DispatchTensor;
use burn::prelude::*;
use burn::tensor::{Gradients, TensorData};

use super::activation::{Activation, ActivationError};

/// An [`Activation`] whose type is known to the blocks on both of its sides only.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use burn::prelude::*;
/// use everburn::nn::AnyActivation;
///
/// let activation: Box<dyn AnyActivation> = Box::new(Tensor::<2>::ones([4, 8], &Device::flex()));
/// assert_eq!(activation.shapes(), [[4, 8]]);
/// assert_eq!(activation.values().unwrap().len(), 1);
/// ```
pub trait AnyActivation: Send {
    /// [`Activation::values`]
    ///
    /// # Errors
    /// As there.
    fn values(&self) -> Result<Vec<TensorData>, ActivationError>;

    /// [`Activation::gradients`]
    ///
    /// # Errors
    /// As there.
    fn gradients(&self, gradients: &Gradients) -> Result<Vec<Option<TensorData>>, ActivationError>;

    /// [`Activation::seed`]
    ///
    /// # Errors
    /// As there.
    fn seed(
        &self,
        gradients: Vec<Option<TensorData>>,
    ) -> Result<Option<Tensor<1>>, ActivationError>;

    /// [`Activation::to_device`]
    #[must_use]
    fn to_device(self: Box<Self>, device: &Device) -> Box<dyn AnyActivation>;

    /// A copy that shares the tensors.
    fn boxed_clone(&self) -> Box<dyn AnyActivation>;

    /// [`Activation::shapes`]
    fn shapes(&self) -> Vec<Vec<usize>>;

    /// [`Activation::map_floats`]
    #[must_use]
    fn map_floats(
        self: Box<Self>,
        map: &mut dyn FnMut(DispatchTensor) -> DispatchTensor,
    ) -> Box<dyn AnyActivation>;

    /// For taking the type back.
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
}

impl<A: Activation> AnyActivation for A {
    fn values(&self) -> Result<Vec<TensorData>, ActivationError> {
        Activation::values(self)
    }

    fn gradients(&self, gradients: &Gradients) -> Result<Vec<Option<TensorData>>, ActivationError> {
        Activation::gradients(self, gradients)
    }

    fn seed(
        &self,
        gradients: Vec<Option<TensorData>>,
    ) -> Result<Option<Tensor<1>>, ActivationError> {
        Activation::seed(self, gradients)
    }

    fn to_device(self: Box<Self>, device: &Device) -> Box<dyn AnyActivation> {
        Box::new(Activation::to_device(*self, device))
    }

    fn boxed_clone(&self) -> Box<dyn AnyActivation> {
        Box::new(self.clone())
    }

    fn shapes(&self) -> Vec<Vec<usize>> {
        Activation::shapes(self)
    }

    fn map_floats(
        self: Box<Self>,
        map: &mut dyn FnMut(DispatchTensor) -> DispatchTensor,
    ) -> Box<dyn AnyActivation> {
        Box::new(Activation::map_floats(*self, map))
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
