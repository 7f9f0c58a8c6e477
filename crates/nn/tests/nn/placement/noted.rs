//! Activations that note what happens to them.

use std::sync::{Arc, Mutex};

use burn::backend::DispatchTensor;
use burn::nn::Linear;
use burn::prelude::*;
use burn::tensor::{Gradients, TensorData};
use everburn_nn::{Activation, ActivationError};

/// A tensor that notes what happens to it.
#[derive(Clone)]
pub(super) struct Noted {
    pub(super) tensor: Tensor<2>,
    pub(super) log: Arc<Mutex<Vec<String>>>,
}

impl Noted {
    fn note(&self, what: &str) {
        self.log.lock().unwrap().push(what.to_string());
    }

    pub(super) fn through(self, name: &str, linear: &Linear) -> Self {
        self.note(name);
        Self {
            tensor: linear.forward(self.tensor).tanh(),
            ..self
        }
    }
}

/// As the tensor's own, but that `to_device` is noted.
impl Activation for Noted {
    const TENSORS: usize = 1;

    fn values(&self) -> Result<Vec<TensorData>, ActivationError> {
        Activation::values(&self.tensor)
    }

    fn from_values(values: Vec<TensorData>, device: &Device) -> Result<Self, ActivationError> {
        Ok(Self {
            tensor: Activation::from_values(values, device)?,
            log: Arc::default(),
        })
    }

    fn gradients(&self, gradients: &Gradients) -> Result<Vec<Option<TensorData>>, ActivationError> {
        Activation::gradients(&self.tensor, gradients)
    }

    fn seed(
        &self,
        gradients: Vec<Option<TensorData>>,
    ) -> Result<Option<Tensor<1>>, ActivationError> {
        Activation::seed(&self.tensor, gradients)
    }

    fn to_device(self, device: &Device) -> Self {
        self.note("move");
        Self {
            tensor: self.tensor.to_device(device),
            ..self
        }
    }

    fn rows(&self, range: std::ops::Range<usize>) -> Self {
        Self {
            tensor: Activation::rows(&self.tensor, range),
            ..self.clone()
        }
    }

    fn num_rows(&self) -> usize {
        self.tensor.dims()[0]
    }

    fn shapes(&self) -> Vec<Vec<usize>> {
        Activation::shapes(&self.tensor)
    }

    fn map_floats(self, map: &mut dyn FnMut(DispatchTensor) -> DispatchTensor) -> Self {
        Self {
            tensor: Activation::map_floats(self.tensor, map),
            ..self
        }
    }
}
