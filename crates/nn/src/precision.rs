//! Automatic mixed precision: products in half precision, everything else in the dtype of its input.
//!
//! [`autocast`] sets the dtype in which the layers of this crate multiply while a closure runs on this thread. The
//! rules are those of Micikevicius et al. 2018, "Mixed Precision Training", section 3, and of PyTorch's autocast:
//!
//! - Matrix products and convolutions ([`Linear`](crate::Linear), [`Conv2d`](crate::conv::Conv2d),
//!   [`matmul`](crate::matmul) and their functions) cast their operands to the low dtype, multiply, and cast the
//!   result; they accumulate in `f32`, on CPUs and on GPUs.
//! - **A layer returns the dtype of its input.** So a model with `f32` activations keeps them, and dtypes never mix,
//!   whatever other modules it has. A model that calls [`cast_for_matmul`] once on its input has low activations
//!   throughout, in half the memory.
//! - Norms, softmax and losses compute in `f32` and cast the result. Losses stay `f32`.
//!
//! Parameters stay `f32` (*master weights*): layers multiply a cast copy, through which the gradient flows back as
//! `f32`. So optimizers, the gradient exchange, checkpoints and a model's code do not change.
//!
//! The dtype is a thread-local variable, because it must reach layers through code that does not pass it. A
//! checkpointed segment keeps it for its backward pass.

use std::cell::Cell;

use burn::prelude::*;
use burn::tensor::{DType, FloatDType};

/// The dtype in which layers multiply.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use burn::tensor::FloatDType;
/// use everburn::nn::ComputeType;
///
/// assert_eq!(ComputeType::Bf16.low(), Some(FloatDType::BF16));
/// assert_eq!(ComputeType::F32.low(), None);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ComputeType {
    /// The dtype of the tensors: no casts.
    #[default]
    F32,
    /// 16 bits with the exponent of `f32`: 8 significant binary digits.
    Bf16,
    /// 16 bits with a 5-bit exponent: 11 significant binary digits, and nothing above 65,504.
    F16,
}

impl ComputeType {
    /// The 16-bit dtype, if it is one.
    #[must_use]
    pub fn low(self) -> Option<FloatDType> {
        match self {
            Self::F32 => None,
            Self::Bf16 => Some(FloatDType::BF16),
            Self::F16 => Some(FloatDType::F16),
        }
    }
}

thread_local! {
    static NOW: Cell<ComputeType> = const { Cell::new(ComputeType::F32) };
    /// How many products this thread has computed in a low dtype.
    static PRODUCTS: Cell<u64> = const { Cell::new(0) };
}

/// Runs `work` on this thread, with the layers of this crate multiplying in `compute`.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use burn::prelude::*;
/// use burn::tensor::DType;
/// use everburn::nn::{ComputeType, LinearConfig, autocast, cast_for_matmul};
///
/// let device = Device::flex();
/// let linear = LinearConfig::new(3, 2).init(&device);
/// let input = || Tensor::<2>::ones([4, 3], &device);
/// let exact = linear.forward(input());
/// let (output, low) = autocast(ComputeType::Bf16, || {
///     (linear.forward(input()), linear.forward(cast_for_matmul(input())))
/// });
/// // The same up to rounding, in the dtype of the input.
/// assert_eq!((output.dtype(), low.dtype()), (DType::F32, DType::BF16));
/// let error = (output - exact).abs().max().into_scalar::<f32>();
/// assert!(error < 0.02, "{error}");
/// ```
pub fn autocast<R>(compute: ComputeType, work: impl FnOnce() -> R) -> R {
    /// Restores the dtype, also if the work panics.
    struct Before(ComputeType);
    impl Drop for Before {
        fn drop(&mut self) {
            NOW.set(self.0);
        }
    }
    let _before = Before(NOW.replace(compute));
    work()
}

/// The dtype in which the layers of this crate currently multiply on this thread.
#[must_use]
pub fn compute_type() -> ComputeType {
    NOW.get()
}

/// How many products this thread has computed in a low dtype so far. A model for which it does not grow has no layer
/// that supports [`autocast`].
#[must_use]
pub fn low_products() -> u64 {
    PRODUCTS.get()
}

/// `input` cast to the low dtype of the current [`autocast`], or `input` itself: for a model that wants low
/// activations.
///
/// # Shapes
/// - input, output: any
#[must_use]
pub fn cast_for_matmul<const D: usize>(input: Tensor<D>) -> Tensor<D> {
    match compute_type().low() {
        Some(low) => input.cast(low),
        None => input,
    }
}

/// The casts around a product: operands to the low dtype, the result to the dtype of the first operand.
pub(crate) struct CastMatmul {
    /// The dtype of the product, if the operands must be cast.
    low: Option<FloatDType>,
    given: FloatDType,
}

impl CastMatmul {
    /// The casts of a product whose first operand is `input`.
    pub(crate) fn of<const D: usize>(input: &Tensor<D>) -> Self {
        let given = input.dtype();
        let is_ours = matches!(given, DType::F32 | DType::F16 | DType::BF16);
        // Products of f64 want more digits, not fewer.
        let low = compute_type().low().filter(|_| is_ours);
        if low.is_some() {
            PRODUCTS.set(PRODUCTS.get() + 1);
        }
        Self {
            // Outside of `autocast`, the other operands of a half-precision input must have its dtype.
            low: low.or_else(|| is_half(given).then(|| given.into())),
            given: given.into(),
        }
    }

    /// Casts an operand or a bias.
    pub(crate) fn operand<const D: usize>(&self, tensor: Tensor<D>) -> Tensor<D> {
        match self.low {
            Some(low) => tensor.cast(low),
            None => tensor,
        }
    }

    /// Casts the product to the dtype of the first operand.
    pub(crate) fn result<const D: usize>(&self, product: Tensor<D>) -> Tensor<D> {
        match self.low {
            Some(_) => product.cast(self.given),
            None => product,
        }
    }
}

/// Whether the dtype has 16 bits.
pub(crate) fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

/// Runs `compute` on `input` as `f32` and casts the result back to a 16-bit dtype of `input`: for a model's own sums
/// and means. The norms, softmax and losses of this crate do so themselves.
///
/// # Shapes
/// - input: any
/// - output: that of `compute`
pub fn in_f32<const D: usize>(
    input: Tensor<D>,
    compute: impl FnOnce(Tensor<D>) -> Tensor<D>,
) -> Tensor<D> {
    match input.dtype() {
        dtype if is_half(dtype) => {
            compute(input.cast(FloatDType::F32)).cast(FloatDType::from(dtype))
        }
        _ => compute(input),
    }
}
