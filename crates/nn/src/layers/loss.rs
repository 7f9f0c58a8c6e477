//! Losses.

use burn::backend::Dispatch;
use burn::config::Config;
use burn::nn::loss as burns;
use burn::prelude::*;
use burn::tensor::{DType, assert_shape};

use super::drop_in::drop_in;
use super::operations::LayerOps;
use crate::targets::check_targets;

/// The mean over all rows of how unlikely the target is by the softmax of the logits:
/// [`burn::nn::loss::CrossEntropyLoss`] of its default configuration but for rounding, with the
/// kernels of `everburn-kernels` on CPUs.
///
/// # Shapes
/// - logits: `[rows, classes]`
/// - targets: `[rows]`, counted from 0
/// - output: `[1]`; not-a-number of no rows
///
/// # Panics
/// Panics if there are not as many targets as rows, or one is no class: see [`WrongTarget`](crate::WrongTarget).
pub fn cross_entropy(logits: Tensor<2>, targets: Tensor<1, Int>) -> Tensor<1> {
    let [rows] = targets.dims();
    assert_shape!(logits, [rows, _]);
    check_targets(&targets, logits.dims()[1]);
    let (loss, _) =
        <Dispatch as LayerOps>::cross_entropy(logits.into_dispatch(), targets.into_dispatch());
    Tensor::from_dispatch(loss)
}

/// The class of the largest logit of each row: [`Tensor::argmax`] of the classes. No gradient flows through it.
///
/// # Shapes
/// - logits: `[rows, classes]`
/// - output: `[rows]`; of equal logits the first
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use burn::prelude::*;
///
/// let device = Device::flex();
/// let logits = Tensor::<2>::from_floats([[0.0, 2.0, 2.0], [1.0, 0.0, 0.0]], &device);
/// let classes = everburn::nn::argmax(logits).into_data();
/// assert_eq!(classes.iter::<i64>().collect::<Vec<_>>(), [1, 0]);
/// ```
pub fn argmax(logits: Tensor<2>) -> Tensor<1, Int> {
    let dtype = logits.device().settings().int_dtype;
    let classes = <Dispatch as LayerOps>::argmax(logits.detach().into_dispatch(), dtype);
    Tensor::from_dispatch(classes)
}

/// Configuration of [`CrossEntropyLoss`]: the same as [`burn::nn::loss::CrossEntropyLossConfig`].
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// let config = everburn::nn::loss::CrossEntropyLossConfig::new().with_smoothing(Some(0.1));
/// let _loss = config.init(&burn::prelude::Device::flex());
/// ```
#[derive(Config, Debug)]
pub struct CrossEntropyLossConfig {
    /// Targets that do not count.
    pub pad_tokens: Option<Vec<usize>>,
    /// How much each class counts; all are positive.
    pub weights: Option<Vec<f32>>,
    /// The share of a target that is spread over all classes, in `0..=1`.
    pub smoothing: Option<f32>,
    /// Whether logits come in; else probabilities.
    #[config(default = true)]
    pub logits: bool,
}

impl CrossEntropyLossConfig {
    /// Initialises the loss on `device`.
    ///
    /// # Panics
    /// Panics if the smoothing is not in `0..=1`, or a weight is not positive.
    pub fn init(&self, device: &Device) -> CrossEntropyLoss {
        burns::CrossEntropyLossConfig::new()
            .with_pad_tokens(self.pad_tokens.clone())
            .with_weights(self.weights.clone())
            .with_smoothing(self.smoothing)
            .with_logits(self.logits)
            .init(device)
            .into()
    }
}

/// Burn's [`burn::nn::loss::CrossEntropyLoss`], with the kernels of `everburn-kernels` on CPUs where logits of `f32`
/// come in and neither padding, weights nor smoothing are asked for; else it *is* Burn's.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use burn::prelude::*;
/// use everburn::nn::loss::CrossEntropyLossConfig;
///
/// let device = Device::flex();
/// let loss = CrossEntropyLossConfig::new().init(&device);
/// let targets = Tensor::<1, Int>::from_ints([1, 0], &device);
/// let loss = loss.forward(Tensor::zeros([2, 4], &device), targets).into_scalar::<f32>();
/// assert!((loss - 4.0_f32.ln()).abs() < 1e-6);
/// ```
#[derive(Debug, Clone)]
pub struct CrossEntropyLoss {
    loss: burns::CrossEntropyLoss,
}

drop_in!(CrossEntropyLoss, loss: burns::CrossEntropyLoss);

impl CrossEntropyLoss {
    /// The loss of logits, in which targets of `pad_index` do not count.
    pub fn new(pad_index: Option<usize>, device: &Device) -> Self {
        burns::CrossEntropyLoss::new(pad_index, device).into()
    }

    /// The mean over all rows of how unlikely the target is.
    ///
    /// # Shapes
    /// - logits: `[rows, classes]`
    /// - targets: `[rows]`, counted from 0
    /// - output: `[1]`; not-a-number of no rows
    ///
    /// # Panics
    /// Panics if there are not as many targets as rows, or one is no class: see [`WrongTarget`](crate::WrongTarget).
    pub fn forward(&self, logits: Tensor<2>, targets: Tensor<1, Int>) -> Tensor<1> {
        let Self { loss } = self;
        let is_plain = loss.pad_tokens.is_none()
            && loss.weights.is_none()
            && loss.smoothing.is_none()
            && loss.logits;
        match is_plain && logits.dtype() == DType::F32 {
            true => cross_entropy(logits, targets),
            false => {
                check_targets(&targets, logits.dims()[1]);
                loss.forward(logits, targets)
            }
        }
    }
}

/// Burn's [`burn::nn::loss::MseLoss`], which refuses targets of another shape than the outputs: `[B, 1]` less `[1, B]` would
/// be `[B, B]`, and each output learn the mean of all targets.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use burn::prelude::*;
/// use everburn::nn::loss::{MseLoss, Reduction};
///
/// let outputs = Tensor::<2>::from_floats([[1.0], [3.0]], &Device::flex());
/// let loss = MseLoss::new().forward(outputs.clone(), outputs + 2.0, Reduction::Mean);
/// assert_eq!(loss.into_scalar::<f32>(), 4.0);
/// ```
#[derive(Debug, Clone, Default)]
pub struct MseLoss {
    loss: burns::MseLoss,
}

drop_in!(MseLoss, loss: burns::MseLoss);

impl MseLoss {
    /// The loss.
    pub fn new() -> Self {
        Self::default()
    }

    /// The mean of all squared differences, or their sum.
    ///
    /// # Shapes
    /// - outputs, targets: `[B, ...]`, both alike
    /// - output: `[1]`
    ///
    /// # Panics
    /// Panics if the shapes differ, or Burn does not have the reduction.
    #[track_caller]
    pub fn forward<const D: usize>(
        &self,
        outputs: Tensor<D>,
        targets: Tensor<D>,
        reduction: burns::Reduction,
    ) -> Tensor<1> {
        require_one_shape(&outputs, &targets);
        self.loss.forward(outputs, targets, reduction)
    }

    /// All squared differences.
    ///
    /// # Shapes
    /// - outputs, targets, output: `[B, ...]`, all alike
    ///
    /// # Panics
    /// Panics if the shapes differ.
    #[track_caller]
    pub fn forward_no_reduction<const D: usize>(
        &self,
        outputs: Tensor<D>,
        targets: Tensor<D>,
    ) -> Tensor<D> {
        require_one_shape(&outputs, &targets);
        self.loss.forward_no_reduction(outputs, targets)
    }
}

#[track_caller]
fn require_one_shape<const D: usize>(outputs: &Tensor<D>, targets: &Tensor<D>) {
    let (outputs, targets) = (outputs.dims(), targets.dims());
    assert!(
        outputs == targets,
        "the mean squared error of outputs of the shape {outputs:?} and targets of the shape {targets:?}: both must have one \
         shape, as `targets.reshape({outputs:?})` has"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "outputs of the shape [4, 1] and targets of the shape [1, 4]")]
    fn targets_of_another_shape_are_refused() {
        let device = Device::flex();
        let (outputs, targets) = (
            Tensor::<2>::ones([4, 1], &device),
            Tensor::<2>::ones([1, 4], &device),
        );
        MseLoss::new().forward(outputs, targets, burns::Reduction::Mean);
    }
}
