//! Updates of parameters.

use burn::backend::TensorMetadata;
use everburn_kernels::{Adam, adam};

use super::tensors::{Tensor, attempt, contiguous, float, values};
use crate::layers::buffers::take;

/// A parameter and its moments after a step of Adam.
pub(in crate::layers) fn adam_step(
    step: &Adam,
    parameter: &Tensor,
    gradient: &Tensor,
    moments: Option<&[Tensor; 2]>,
) -> Option<[Tensor; 3]> {
    let shape = parameter.shape();
    let moments = match moments {
        Some([first, second]) => contiguous([first, second])?,
        // The kernel does not read them.
        None => contiguous([gradient, gradient])?,
    };
    let [parameter, gradient] = contiguous([parameter, gradient])?;
    if gradient.shape() != shape || moments.iter().any(|moment| moment.shape() != shape) {
        return None;
    }
    let mut updated = [(); 3].map(|()| take(shape.num_elements()));
    attempt(|| {
        let [new, first, second] = &mut updated;
        let given = [values(&parameter), values(&gradient)];
        let before = moments.each_ref().map(values);
        adam(step, given, before, [new, first, second])?;
        Ok(updated.map(|values| float(values, shape.clone(), &parameter)))
    })
}
