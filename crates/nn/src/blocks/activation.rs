//! What passes from one block to the next.

use burn::backend::DispatchTensor;
use burn::prelude::*;
use burn::tensor::{Gradients, Int, TensorData};

/// What may pass from one block to the next: a tensor of numbers, a tensor of whole numbers, or a
/// pair of what may pass.
///
/// Where a model is cut between two devices or processes, it is taken apart into tensors, moved,
/// and put together again. Whole numbers have no gradient.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use burn::prelude::*;
/// use everburn::nn::Activation;
///
/// let device = Device::flex().autodiff();
/// let x = Tensor::<1>::from_floats([1.0, 2.0], &device);
/// let values = (x, Tensor::<1, Int>::from_ints([7], &device)).values().unwrap();
/// assert_eq!(values.len(), 2);
///
/// let leaf = <(Tensor<1>, Tensor<1, Int>)>::from_values(values, &device).unwrap();
/// let gradients = leaf.0.clone().powi_scalar(2).sum().backward();
/// let gradient = leaf.gradients(&gradients).unwrap().remove(0).unwrap();
/// assert_eq!(gradient.try_into_vec::<f32>().unwrap(), [2.0, 4.0]);
/// ```
pub trait Activation: Clone + Send + 'static {
    /// How many tensors it consists of.
    const TENSORS: usize;

    /// The numbers of its tensors, in host memory.
    ///
    /// # Errors
    /// If a tensor cannot be read from its device.
    fn values(&self) -> Result<Vec<TensorData>, ActivationError>;

    /// Puts it together from the numbers of its tensors, as leaves of a graph where `device` has
    /// one: their gradients can be asked for after the backward pass.
    ///
    /// # Errors
    /// If there are more or fewer tensors, or tensors of other dimensions.
    fn from_values(values: Vec<TensorData>, device: &Device) -> Result<Self, ActivationError>;

    /// The gradients of its tensors; `None` for tensors without one.
    ///
    /// # Errors
    /// If a gradient cannot be read from its device.
    fn gradients(&self, gradients: &Gradients) -> Result<Vec<Option<TensorData>>, ActivationError>;

    /// The number whose gradients with regard to these tensors are `gradients`: the start of a
    /// backward pass that continues from another device. `None` if no tensor has a gradient.
    ///
    /// # Errors
    /// If there are more or fewer gradients than tensors, or gradients of other shapes.
    fn seed(
        &self,
        gradients: Vec<Option<TensorData>>,
    ) -> Result<Option<Tensor<1>>, ActivationError>;

    /// The same on `device`; gradients find their way back by themselves.
    #[must_use]
    fn to_device(self, device: &Device) -> Self;

    /// The part of the rows `range` along the first dimension of each tensor.
    #[must_use]
    fn rows(&self, range: std::ops::Range<usize>) -> Self;

    /// The number of rows: the first dimension of the first tensor.
    fn num_rows(&self) -> usize;

    /// Shapes, for messages.
    fn shapes(&self) -> Vec<Vec<usize>>;

    /// The same with each tensor of numbers replaced by what `map` makes of it, in their order; whole
    /// numbers stay.
    #[must_use]
    fn map_floats(self, map: &mut dyn FnMut(DispatchTensor) -> DispatchTensor) -> Self;
}

/// What is wrong with an activation that came from elsewhere.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use everburn::nn::ActivationError;
///
/// let error = ActivationError::Count { expected: 1, found: 2 };
/// assert_eq!(error.to_string(), "2 tensors have come where the block takes 1");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ActivationError {
    /// Another number of tensors.
    #[error("{found} tensors have come where the block takes {expected}")]
    Count {
        /// What the block takes.
        expected: usize,
        /// What has come.
        found: usize,
    },
    /// Another number of dimensions, or another shape.
    #[error("a tensor of shape {found:?} has come where the block takes {expected}")]
    Shape {
        /// What the block takes.
        expected: String,
        /// What has come.
        found: Vec<usize>,
    },
    /// The device did not hand a tensor out.
    #[error("a tensor cannot be read from its device: {0}")]
    Device(String),
}

fn count<T>(parts: &[T], expected: usize) -> Result<(), ActivationError> {
    if parts.len() == expected {
        return Ok(());
    }
    Err(ActivationError::Count {
        expected,
        found: parts.len(),
    })
}

fn dimensions(data: &TensorData, expected: usize) -> Result<(), ActivationError> {
    if data.shape().num_dims() == expected {
        return Ok(());
    }
    Err(ActivationError::Shape {
        expected: format!("{expected} dimensions"),
        found: data.shape().to_vec(),
    })
}

/// What is the same for tensors of all kinds.
macro_rules! of_one_tensor {
    () => {
        const TENSORS: usize = 1;

        fn to_device(self, device: &Device) -> Self {
            Tensor::to_device(self, device)
        }

        fn rows(&self, range: std::ops::Range<usize>) -> Self {
            self.clone().slice_dim(0, range)
        }

        fn num_rows(&self) -> usize {
            self.dims()[0]
        }

        fn shapes(&self) -> Vec<Vec<usize>> {
            vec![self.dims().to_vec()]
        }
    };
}

impl<const D: usize> Activation for Tensor<D> {
    of_one_tensor!();

    fn values(&self) -> Result<Vec<TensorData>, ActivationError> {
        let data = self.clone().without_autodiff().try_into_data();
        data.map(|data| vec![data])
            .map_err(|error| ActivationError::Device(error.to_string()))
    }

    fn from_values(mut values: Vec<TensorData>, device: &Device) -> Result<Self, ActivationError> {
        count(&values, 1)?;
        let data = values.remove(0);
        dimensions(&data, D)?;
        let dtype = data.dtype();
        let tensor = Self::from_data(data, (device, dtype));
        Ok(if device.is_autodiff() {
            tensor.require_grad()
        } else {
            tensor
        })
    }

    fn gradients(&self, gradients: &Gradients) -> Result<Vec<Option<TensorData>>, ActivationError> {
        let gradient = self.grad(gradients).map(Tensor::try_into_data).transpose();
        gradient
            .map(|gradient| vec![gradient])
            .map_err(|error| ActivationError::Device(error.to_string()))
    }

    fn seed(
        &self,
        mut gradients: Vec<Option<TensorData>>,
    ) -> Result<Option<Tensor<1>>, ActivationError> {
        count(&gradients, 1)?;
        let Some(gradient) = gradients.remove(0) else {
            return Ok(None);
        };
        if gradient.shape() != &self.shape() {
            return Err(ActivationError::Shape {
                expected: format!("a gradient of shape {:?}", self.dims()),
                found: gradient.shape().to_vec(),
            });
        }
        let gradient = Self::from_data(gradient, (&self.device(), self.dtype()));
        Ok(Some((self.clone() * gradient).sum()))
    }

    fn map_floats(self, map: &mut dyn FnMut(DispatchTensor) -> DispatchTensor) -> Self {
        Self::from_dispatch(map(self.into_dispatch()))
    }
}

impl<const D: usize> Activation for Tensor<D, Int> {
    of_one_tensor!();

    fn values(&self) -> Result<Vec<TensorData>, ActivationError> {
        let data = self.clone().try_into_data();
        data.map(|data| vec![data])
            .map_err(|error| ActivationError::Device(error.to_string()))
    }

    fn from_values(mut values: Vec<TensorData>, device: &Device) -> Result<Self, ActivationError> {
        count(&values, 1)?;
        let data = values.remove(0);
        dimensions(&data, D)?;
        let dtype = data.dtype();
        Ok(Self::from_data(data, (device, dtype)))
    }

    fn gradients(
        &self,
        _gradients: &Gradients,
    ) -> Result<Vec<Option<TensorData>>, ActivationError> {
        Ok(vec![None])
    }

    fn seed(
        &self,
        gradients: Vec<Option<TensorData>>,
    ) -> Result<Option<Tensor<1>>, ActivationError> {
        count(&gradients, 1)?;
        Ok(None)
    }

    fn map_floats(self, _map: &mut dyn FnMut(DispatchTensor) -> DispatchTensor) -> Self {
        self
    }
}

impl<A: Activation, B: Activation> Activation for (A, B) {
    const TENSORS: usize = A::TENSORS + B::TENSORS;

    fn values(&self) -> Result<Vec<TensorData>, ActivationError> {
        let mut values = self.0.values()?;
        values.extend(self.1.values()?);
        Ok(values)
    }

    fn from_values(mut values: Vec<TensorData>, device: &Device) -> Result<Self, ActivationError> {
        count(&values, Self::TENSORS)?;
        let second = values.split_off(A::TENSORS);
        Ok((
            A::from_values(values, device)?,
            B::from_values(second, device)?,
        ))
    }

    fn gradients(&self, gradients: &Gradients) -> Result<Vec<Option<TensorData>>, ActivationError> {
        let mut all = self.0.gradients(gradients)?;
        all.extend(self.1.gradients(gradients)?);
        Ok(all)
    }

    fn seed(
        &self,
        mut gradients: Vec<Option<TensorData>>,
    ) -> Result<Option<Tensor<1>>, ActivationError> {
        count(&gradients, Self::TENSORS)?;
        let second = gradients.split_off(A::TENSORS);
        let seeds = (self.0.seed(gradients)?, self.1.seed(second)?);
        Ok(match seeds {
            (Some(first), Some(second)) => {
                let device = first.device();
                Some(first + second.to_device(&device))
            }
            (first, second) => first.or(second),
        })
    }

    fn to_device(self, device: &Device) -> Self {
        (self.0.to_device(device), self.1.to_device(device))
    }

    fn rows(&self, range: std::ops::Range<usize>) -> Self {
        (self.0.rows(range.clone()), self.1.rows(range))
    }

    fn num_rows(&self) -> usize {
        self.0.num_rows()
    }

    fn shapes(&self) -> Vec<Vec<usize>> {
        let mut shapes = self.0.shapes();
        shapes.extend(self.1.shapes());
        shapes
    }

    fn map_floats(self, map: &mut dyn FnMut(DispatchTensor) -> DispatchTensor) -> Self {
        let first = self.0.map_floats(map);
        (first, self.1.map_floats(map))
    }
}
