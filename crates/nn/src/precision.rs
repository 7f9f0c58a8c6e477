//! Products in half precision, everything else in the type that it comes in.
//!
//! [`compute_in`] says in which type the layers of this crate multiply while a piece of work runs on this
//! thread. The rule is one for all of them (after Micikevicius et al. 2018, "Mixed Precision Training",
//! section 3, and PyTorch's autocast):
//!
//! - What is a sum of products ([`Linear`](crate::Linear), [`Conv2d`](crate::conv::Conv2d),
//!   [`matmul`](crate::matmul) and the functions beside them) rounds its factors to the low type,
//!   multiplies, and rounds the result; sums within are of `f32`, on CPUs and on GPUs.
//! - **A layer hands back the type that it was given.** So a model whose activations are `f32` keeps them so,
//!   and nothing of two types ever meets, whatever other modules it is made of. A model whose activations
//!   are to be low throughout calls [`lowered`] on its input once; then all that flows is low, in half the
//!   memory.
//! - Norms, softmax and losses compute in `f32` between two roundings, whatever comes in. Losses stay `f32`.
//!
//! Parameters are `f32` and stay so: what is multiplied is a rounded copy, through which their gradient
//! flows back and is `f32` again (the *master weights* of the paper). So optimizers, the exchange of
//! gradients, checkpoints and a model's code know nothing of it.
//!
//! The type is a variable of the thread, as it has to reach layers through code that knows nothing of it.
//! A checkpointed segment remembers it for its backward pass.

use std::cell::Cell;

use burn::prelude::*;
use burn::tensor::{DType, FloatDType};

/// The type of number in which layers multiply.
///
/// ```
/// use burn::tensor::FloatDType;
/// use everburn_nn::ComputeType;
///
/// assert_eq!(ComputeType::Bf16.low(), Some(FloatDType::BF16));
/// assert_eq!(ComputeType::F32.low(), None);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ComputeType {
    /// As the tensors are: no rounding.
    #[default]
    F32,
    /// 16 bits with the exponent of `f32`: 8 significant binary digits.
    Bf16,
    /// 16 bits with a 5-bit exponent: 11 significant binary digits, and nothing above 65,504.
    F16,
}

impl ComputeType {
    /// The type of 16 bits, if it is one.
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
    /// How many products this thread has computed in a low type.
    static PRODUCTS: Cell<u64> = const { Cell::new(0) };
}

/// Lets the layers of this crate multiply in `compute` while `work` runs on this thread.
///
/// ```
/// use burn::prelude::*;
/// use burn::tensor::DType;
/// use everburn_nn::{ComputeType, LinearConfig, compute_in, lowered};
///
/// let device = Device::flex();
/// let linear = LinearConfig::new(3, 2).init(&device);
/// let input = || Tensor::<2>::ones([4, 3], &device);
/// let exact = linear.forward(input());
/// let (output, low) = compute_in(ComputeType::Bf16, || {
///     (linear.forward(input()), linear.forward(lowered(input())))
/// });
/// // The same but for rounding, in the type that came in.
/// assert_eq!((output.dtype(), low.dtype()), (DType::F32, DType::BF16));
/// let error = (output - exact).abs().max().into_scalar::<f32>();
/// assert!(error < 0.02, "{error}");
/// ```
pub fn compute_in<R>(compute: ComputeType, work: impl FnOnce() -> R) -> R {
    /// Sets it back, also when the work panics.
    struct Before(ComputeType);
    impl Drop for Before {
        fn drop(&mut self) {
            NOW.set(self.0);
        }
    }
    let _before = Before(NOW.replace(compute));
    work()
}

/// In what the layers of this crate multiply at present, on this thread.
///
/// ```
/// use everburn_nn::{ComputeType, compute_in, compute_type};
///
/// assert_eq!(compute_type(), ComputeType::F32);
/// compute_in(ComputeType::F16, || assert_eq!(compute_type(), ComputeType::F16));
/// ```
#[must_use]
pub fn compute_type() -> ComputeType {
    NOW.get()
}

/// How many products this thread has computed in a low type since it began: a model of which none is, has no
/// layer that [`compute_in`] could reach.
#[must_use]
pub fn low_products() -> u64 {
    PRODUCTS.get()
}

/// The input of a model that wants its activations in the low type, where there is one at present; else
/// `input` itself.
///
/// # Shapes
/// - input, output: any
///
/// ```
/// use burn::prelude::*;
/// use burn::tensor::DType;
/// use everburn_nn::{ComputeType, compute_in, lowered};
///
/// let input = Tensor::<1>::ones([2], &Device::flex());
/// assert_eq!(lowered(input.clone()).dtype(), DType::F32);
/// let low = compute_in(ComputeType::Bf16, || lowered(input));
/// assert_eq!(low.dtype(), DType::BF16);
/// ```
#[must_use]
pub fn lowered<const D: usize>(input: Tensor<D>) -> Tensor<D> {
    match compute_type().low() {
        Some(low) => input.cast(low),
        None => input,
    }
}

/// A product of `factors`, of which the first says in which type it is handed back.
pub(crate) struct LowProduct {
    /// The type in which is multiplied, where it is another one than the factors'.
    low: Option<FloatDType>,
    given: FloatDType,
}

impl LowProduct {
    /// Of a product whose first factor is `input`.
    pub(crate) fn of<const D: usize>(input: &Tensor<D>) -> Self {
        let given = input.dtype();
        let is_ours = matches!(given, DType::F32 | DType::F16 | DType::BF16);
        // Products of f64 are asked for by those who want more digits, not fewer.
        let low = compute_type().low().filter(|_| is_ours);
        if low.is_some() {
            PRODUCTS.set(PRODUCTS.get() + 1);
        }
        Self {
            // Outside of `compute_in`, what a half-precision input meets must be as it is.
            low: low.or_else(|| is_half(given).then(|| given.into())),
            given: given.into(),
        }
    }

    /// A factor, or what is added to the product.
    pub(crate) fn factor<const D: usize>(&self, tensor: Tensor<D>) -> Tensor<D> {
        match self.low {
            Some(low) => tensor.cast(low),
            None => tensor,
        }
    }

    /// The product in the type that came in.
    pub(crate) fn result<const D: usize>(&self, product: Tensor<D>) -> Tensor<D> {
        match self.low {
            Some(_) => product.cast(self.given),
            None => product,
        }
    }
}

/// Whether a number of this type has 16 bits.
pub(crate) fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

/// `compute` on `input` as `f32`, and the result in the type of `input` where that has 16 bits: for sums and
/// means of a model's own. The norms of this crate, its softmax and its losses do it by themselves.
///
/// # Shapes
/// - input: any
/// - output: as `compute` has it
///
/// ```
/// use burn::prelude::*;
/// use burn::tensor::{DType, FloatDType};
/// use everburn_nn::in_f32;
///
/// let low = Tensor::<2>::ones([1, 1000], &Device::flex()).cast(FloatDType::BF16);
/// let sum = in_f32(low, |row| row.sum_dim(1));
/// assert_eq!((sum.dtype(), sum.into_scalar::<f32>()), (DType::BF16, 1000.0));
/// ```
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
