//! A step of Adam or AdamW.

use burn::backend::{BackendTensor, DispatchKindConversion, DispatchTensor, Flex};
use burn::prelude::*;
use everburn_kernels::Adam;

use super::on_flex::adam_step;

/// A parameter and its two moments after a step, from those before it and a gradient: the bits of Burn's
/// optimizers, in one pass over memory in place of fifteen. Without `moments` the step is the first.
///
/// Only numbers close to 0 differ from Burn's: gradients below 2^-58 and moments below the smallest normal number count as 0,
/// because a CPU takes several times as long with subnormal numbers.
///
/// `None` unless all are `f32`, of one shape and on a CPU, without autodiff: Burn's own operations then have
/// their say.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use burn::prelude::*;
/// use everburn::nn::{Adam, WeightDecay};
///
/// let device = Device::flex();
/// let [weight, gradient] = [1.0, 4.0].map(|x| Tensor::<1>::from_floats([x], &device));
/// let step = Adam {
///     betas: [0.9, 0.999],
///     epsilon: 1e-8,
///     learning_rate: 0.5,
///     weight_decay: 0.0,
///     decays: WeightDecay::Parameter,
///     time: 1,
/// };
/// let [weight, _, _] = everburn::nn::adam(&step, weight, gradient, None).unwrap();
/// let weight: f32 = weight.into_scalar();
/// assert!((weight - 0.5).abs() < 1e-6);
/// ```
pub fn adam<const D: usize>(
    step: &Adam,
    parameter: Tensor<D>,
    gradient: Tensor<D>,
    moments: Option<[Tensor<D>; 2]>,
) -> Option<[Tensor<D>; 3]> {
    let on_flex = |tensor: Tensor<D>| {
        let tensor = tensor.into_dispatch();
        match <DispatchTensor as DispatchKindConversion<Flex>>::try_into_backend(tensor).ok()? {
            BackendTensor::Float(tensor) => Some(tensor),
            _ => None,
        }
    };
    let (parameter, gradient) = (on_flex(parameter)?, on_flex(gradient)?);
    let moments = match moments {
        Some([first, second]) => Some([on_flex(first)?, on_flex(second)?]),
        None => None,
    };
    let updated = adam_step(step, &parameter, &gradient, moments.as_ref())?;
    Some(updated.map(|tensor| {
        let tensor = BackendTensor::Float(tensor);
        Tensor::from_dispatch(
            <DispatchTensor as DispatchKindConversion<Flex>>::from_backend(tensor),
        )
    }))
}
