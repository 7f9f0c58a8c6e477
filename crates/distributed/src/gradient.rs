//! A gradient where the backward pass has left it.

use std::collections::HashMap;

use burn::backend::ops::FloatTensorOps;
use burn::backend::{
    Backend, BackendTensor, Dispatch, DispatchKindConversion, DispatchTensor, ExecutionError,
    TensorMetadata,
};
use burn::module::{ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::prelude::*;
use burn::tensor::{DType, TensorData, try_read_sync};

/// A finished gradient, of any number of dimensions, on the device of its parameter.
#[derive(Debug, Clone)]
pub(crate) struct Gradient(DispatchTensor);

impl Gradient {
    /// Of a back end's tensor, which has no graph.
    pub(crate) fn of_backend<B: Backend>(tensor: B::FloatTensorPrimitive) -> Self
    where
        DispatchTensor: DispatchKindConversion<B>,
    {
        Self(DispatchTensor::from_backend(BackendTensor::Float(tensor)))
    }

    /// Of a tensor, without its graph.
    pub(crate) fn of_tensor<const D: usize>(tensor: Tensor<D>) -> Self {
        Self(tensor.without_autodiff().into_dispatch())
    }

    /// Of numbers in host memory, on `device`.
    pub(crate) fn of_data(data: TensorData, device: &Device) -> Self {
        Self(Dispatch::float_from_data(data, device.as_dispatch()))
    }

    /// Its numbers, in host memory; waits for the device.
    pub(crate) fn read(self) -> Result<TensorData, String> {
        wait_for_data(Dispatch::float_into_data(self.0))
    }

    pub(crate) fn shape(&self) -> Vec<usize> {
        self.0.shape().to_vec()
    }

    pub(crate) fn dtype(&self) -> DType {
        self.0.dtype()
    }

    pub(crate) fn device(&self) -> Device {
        Device::new(self.0.device())
    }

    /// The same numbers in one row.
    pub(crate) fn flat(self) -> Tensor<1> {
        let length = self.0.shape().num_elements();
        Tensor::from_dispatch(Dispatch::float_reshape(self.0, Shape::new([length])))
    }

    pub(crate) fn shaped(self, shape: &[usize]) -> Self {
        Self(Dispatch::float_reshape(self.0, Shape::from(shape.to_vec())))
    }

    /// The tensor, of the parameter's number of dimensions.
    pub(crate) fn tensor<const D: usize>(self) -> Tensor<D> {
        Tensor::from_dispatch(self.0)
    }

    /// `factor` times the numbers, rounded once.
    pub(crate) fn times(self, factor: f64) -> Self {
        if factor == 1.0 {
            return self;
        }
        let shape = self.0.shape();
        let scaled = times(self.flat(), factor);
        Self(Dispatch::float_reshape(scaled.into_dispatch(), shape))
    }

    /// The sum of these numbers and `factor` times those of `other`.
    pub(crate) fn plus(self, other: Self, factor: f64) -> Self {
        let (shape, dtype) = (self.0.shape(), self.dtype());
        let (own, other) = (wide(self.flat()), wide(other.flat()));
        let sum = (own + other.mul_scalar(factor)).cast(dtype);
        Self(Dispatch::float_reshape(sum.into_dispatch(), shape))
    }

    #[cfg(feature = "gpu")]
    pub(crate) fn into_dispatch(self) -> DispatchTensor {
        self.0
    }
}

/// Waits for numbers that a device copies to host memory.
pub(crate) fn wait_for_data(
    data: impl Future<Output = Result<TensorData, ExecutionError>>,
) -> Result<TensorData, String> {
    match try_read_sync(data) {
        Some(Ok(data)) => Ok(data),
        Some(Err(error)) => Err(error.to_string()),
        None => Err("this platform cannot wait for a device".to_string()),
    }
}

/// Takes what `numbers` has of parameters of `model` as gradients for an optimizer. `gradient` makes them, on the device of
/// their parameter.
pub(crate) fn take_for_parameters<M: Module, T>(
    model: &M,
    numbers: &mut HashMap<ParamId, T>,
    gradient: fn(T, &Device) -> Gradient,
) -> GradientsParams {
    struct Take<'a, T> {
        numbers: &'a mut HashMap<ParamId, T>,
        gradient: fn(T, &Device) -> Gradient,
        taken: GradientsParams,
    }
    impl<T> ModuleVisitor for Take<'_, T> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            // A parameter in two places has one gradient, which the first place takes.
            if let Some(numbers) = self.numbers.remove(&param.id) {
                let gradient = (self.gradient)(numbers, &param.lazy_device().inner());
                self.taken.register(param.id, gradient.tensor::<D>());
            }
        }
    }
    let mut take = Take {
        numbers,
        gradient,
        taken: GradientsParams::new(),
    };
    model.visit(&mut take);
    take.taken
}

/// `factor` times `numbers`: half types compute in f32, as the host does.
pub(crate) fn times(numbers: Tensor<1>, factor: f64) -> Tensor<1> {
    if factor == 1.0 {
        return numbers;
    }
    let dtype = numbers.dtype();
    wide(numbers).mul_scalar(factor).cast(dtype)
}

/// `tensor` on `device`; as it is, if it is there.
pub(crate) fn moved<const D: usize>(tensor: Tensor<D>, device: &Device) -> Tensor<D> {
    match tensor.device() == *device {
        true => tensor,
        false => tensor.to_device(device),
    }
}

/// The numbers in f32, where they are shorter.
pub(crate) fn wide(numbers: Tensor<1>) -> Tensor<1> {
    match numbers.dtype() {
        DType::F16 | DType::BF16 => numbers.cast(DType::F32),
        _ => numbers,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gradients_are_scaled_and_added_as_in_host_memory() {
        let device = Device::flex();
        let of = |numbers: [f32; 3], dtype| {
            Gradient::of_tensor(Tensor::<1>::from_floats(numbers, &device).cast(dtype))
        };
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let sum = of([1.0, -2.0, 0.5], dtype)
                .times(0.5)
                .plus(of([2.0, 4.0, 8.0], dtype), 0.25);
            assert_eq!((sum.dtype(), sum.shape()), (dtype, vec![3]));
            let values = sum.read().unwrap().iter::<f32>().collect::<Vec<_>>();
            assert_eq!(values, [1.0, 0.0, 2.25]);
        }
    }
}
