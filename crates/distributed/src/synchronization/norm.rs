//! The norm of all gradients of a step.

use burn::prelude::*;

use crate::bucket::BucketEntry;
use crate::error::DdpError;

/// Added to the norm before clipping compares it with the limit, as in PyTorch.
const NORM_EPSILON: f64 = 1e-6;

/// The factor that clips gradients whose norm is `norm` to `max`: 1 where they stay as they are.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use everburn::distributed::clip_coefficient;
///
/// assert_eq!(clip_coefficient(1.0, 2.0), 1.0);
/// assert!((clip_coefficient(4.0, 2.0) - 0.5).abs() < 1e-6);
/// ```
pub fn clip_coefficient(norm: f64, max: f64) -> f64 {
    (max / (norm + NORM_EPSILON)).min(1.0)
}

pub(super) fn clip_coefficient_on_device(norm: Tensor<1>, max: f64) -> Tensor<1> {
    ((norm + NORM_EPSILON).recip() * max).clamp_max(1.0)
}

/// The norm of all gradients together, and the factor that clips them to `max`. `squares` has the sum of squares of each
/// gradient with the number of its parameter, in the order of registration: the order decides the bits.
pub(crate) fn total_norm(
    squares: impl Iterator<Item = (usize, f64)>,
    parameters: &[BucketEntry],
    max: f32,
) -> Result<(GradientNorm, f64), DdpError> {
    let mut sum = 0.0_f64;
    for (number, squares) in squares {
        if !squares.is_finite() {
            let parameter = parameters[number].path.clone();
            return Err(DdpError::GradientNotFinite { parameter });
        }
        sum += squares;
    }
    let norm = sum.sqrt();
    let factor = clip_coefficient(norm, f64::from(max));
    Ok((GradientNorm::known(norm), factor))
}

/// The norm of all gradients of a step, before clipping.
///
/// With gradients on a GPU it stays there until [`read`](Self::read) waits for it.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use everburn::distributed::GradientNorm;
///
/// assert_eq!(GradientNorm::known(2.5).read()?, 2.5);
/// # Ok::<(), everburn_distributed::DdpError>(())
/// ```
#[derive(Debug, Clone)]
pub struct GradientNorm(NormValue);

#[derive(Debug, Clone)]
enum NormValue {
    Host(f64),
    Device { norm: Box<Tensor<1>>, step: u64 },
}

impl GradientNorm {
    /// A norm on the host.
    #[must_use]
    pub fn known(norm: f64) -> Self {
        Self(NormValue::Host(norm))
    }

    pub(super) fn on_device(norm: Tensor<1>, step: u64) -> Self {
        let norm = Box::new(norm);
        Self(NormValue::Device { norm, step })
    }

    /// The norm; waits for the device.
    ///
    /// # Errors
    /// [`DdpError::NormNotFinite`] if the norm turns out not to be finite;
    /// [`DdpError::Read`] if it cannot be read.
    pub fn read(&self) -> Result<f64, DdpError> {
        let (norm, step) = match &self.0 {
            NormValue::Host(norm) => return Ok(*norm),
            NormValue::Device { norm, step } => (norm, *step),
        };
        let refused = |reason: String| DdpError::Read {
            parameter: "the norm of all gradients".to_string(),
            reason,
        };
        let data = Tensor::clone(norm).try_into_data();
        let data = data.map_err(|error| refused(error.to_string()))?;
        let norm = data.iter::<f64>().next();
        match norm.ok_or_else(|| refused("it is empty".to_string()))? {
            norm if norm.is_finite() => Ok(norm),
            norm => Err(DdpError::NormNotFinite { norm, step }),
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::DType;

    use super::*;

    #[test]
    fn squares_are_summed_in_their_order_and_the_first_that_is_not_finite_is_named() {
        let parameters = [1, 2, 3].map(|length| BucketEntry::of_shape(&[length], DType::F32));
        let of = |squares: [f64; 3]| {
            let found = total_norm(squares.into_iter().enumerate(), &parameters, 1.0);
            found.map(|(norm, factor)| (norm.read().unwrap(), factor))
        };
        assert_eq!(
            of([9.0, 0.0, 16.0]).unwrap(),
            (5.0, clip_coefficient(5.0, 1.0))
        );
        // In another order the ones would count.
        assert_eq!(of([1e16, 1.0, 1.0]).unwrap().0, 1e8);
        assert!(of([1.0, 1.0, 1e16]).unwrap().0 > 1e8);
        let error = of([1.0, f64::INFINITY, f64::NAN]).unwrap_err();
        let named =
            matches!(&error, DdpError::GradientNotFinite { parameter } if parameter == "[2]");
        assert!(named, "{error}");
    }

    #[test]
    fn the_coefficient_is_the_same_on_the_host_and_on_a_device() {
        let device = Device::flex();
        for (norm, clipped) in [(0.0, 1.0), (1.5, 1.0), (2.0, 2.0 / 2.000001), (8.0, 0.25)] {
            let there = Tensor::from_floats([norm as f32], &device);
            let there = clip_coefficient_on_device(there, 2.0).into_scalar::<f64>();
            for found in [clip_coefficient(norm, 2.0), there] {
                assert!((found - clipped).abs() < 1e-6, "{norm}: {found}");
            }
        }
    }

    #[test]
    fn a_norm_on_a_device_is_read_when_it_is_asked_for() {
        let device = Device::flex();
        let of = |norm| GradientNorm::on_device(Tensor::<1>::from_floats([norm], &device), 7);
        assert_eq!(of(1.5).read().unwrap(), 1.5);
        let error = of(f32::INFINITY).read().unwrap_err().to_string();
        assert!(
            error.starts_with("the gradients of step 7 have the norm inf"),
            "{error}"
        );
    }
}
