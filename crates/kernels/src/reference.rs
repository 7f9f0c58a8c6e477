//! Every operation by its definition, for `f32` and `f64`: what the fast ones are tested against,
//! and what runs for `f64` tensors.

mod conv;
mod norm;

pub use conv::{conv2d, conv2d_bias_grad, conv2d_input_grad, conv2d_weight_grad};
pub use norm::{batch_norm, batch_norm_train, batch_norm_train_backward};

use std::ops::{Add, AddAssign, Div, Mul, Sub};

/// `f32` or `f64`.
///
/// ```
/// use everburn_kernels::reference::Float;
///
/// assert_eq!(<f64 as Float>::from_f64(1.5) + f64::ZERO, 1.5);
/// ```
pub trait Float:
    Copy
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + AddAssign
    + Send
    + Sync
    + 'static
{
    /// Nought.
    const ZERO: Self;
    /// The value below all others.
    const NEG_INFINITY: Self;

    /// The nearest value.
    fn from_f64(value: f64) -> Self;

    /// The same value, exactly.
    fn to_f64(self) -> f64;
}

impl Float for f32 {
    const ZERO: Self = 0.0;
    const NEG_INFINITY: Self = Self::NEG_INFINITY;

    fn from_f64(value: f64) -> Self {
        value as Self
    }

    fn to_f64(self) -> f64 {
        f64::from(self)
    }
}

impl Float for f64 {
    const ZERO: Self = 0.0;
    const NEG_INFINITY: Self = Self::NEG_INFINITY;

    fn from_f64(value: f64) -> Self {
        value
    }

    fn to_f64(self) -> f64 {
        self
    }
}
