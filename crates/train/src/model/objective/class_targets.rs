//! What the scores of classes are compared with.

use std::fmt::Debug;

use burn::prelude::*;
use burn::tensor::activation::log_softmax;
use burn::tensor::{DType, FloatDType, Int};
use everburn_nn::WrongTarget;

use super::{Loss, cross_entropy};
use crate::model::predictions::Classes;

/// What logits are compared with: classes, or classes of samples that are mixed of two.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use burn::prelude::*;
/// use everburn::train::ClassTargets;
///
/// let device = Device::flex();
/// let logits = Tensor::<2>::from_floats([[0.0, 0.0]], &device);
/// let class = Tensor::<1, Int>::from_ints([1], &device);
/// let mixed = (class.clone(), Some((Tensor::<1, Int>::zeros([1], &device), Tensor::from_floats([0.25], &device))));
/// let difference = class.loss(logits.clone()).mean - mixed.loss(logits).mean;
/// assert!(difference.into_scalar::<f32>().abs() < 1e-6, "both classes are as likely");
/// ```
pub trait ClassTargets: Debug + Clone + Send + 'static {
    /// The cross entropy of logits `[B, classes]`.
    ///
    /// # Panics
    /// Panics if there are more or fewer logits than targets.
    fn loss(self, logits: Tensor<2>) -> Loss;
}

impl ClassTargets for Tensor<1, Int> {
    fn loss(self, logits: Tensor<2>) -> Loss {
        let samples = self.dims()[0];
        let count = logits.dims()[1];
        let (loss, predicted) = cross_entropy(logits, self.clone(), samples);
        Loss {
            classes: Some(Classes {
                count,
                predicted,
                actual: self,
            }),
            ..loss
        }
    }
}

/// The classes `[B]`, and of a batch of mixed samples (mixup, cutmix) the other class of each `[B]` and its share `[B]`:
/// the loss of a sample is `(1 - share) * CE(class) + share * CE(other)`. A prediction of the class is correct.
impl ClassTargets for (Tensor<1, Int>, Option<(Tensor<1, Int>, Tensor<1>)>) {
    fn loss(self, logits: Tensor<2>) -> Loss {
        let (classes, mixed) = self;
        let Some((others, shares)) = mixed else {
            return classes.loss(logits);
        };
        let device = logits.device();
        let count = logits.dims()[1];
        for classes in [&classes, &others] {
            if let Some(wrong) = WrongTarget::find(classes, count) {
                wrong.raise();
            }
        }
        let log_probabilities = log_softmax(in_single(logits.clone()), 1);
        let of = |classes: Tensor<1, Int>| {
            let classes = classes.to_device(&device).unsqueeze_dim::<2>(1);
            log_probabilities
                .clone()
                .gather(1, classes)
                .squeeze_dim::<1>(1)
        };
        let (own, other) = (of(classes.clone()), of(others));
        let shares = shares.to_device(&device);
        let mean = (own.clone() + shares * (other - own)).mean().neg();
        let samples = classes.dims()[0];
        let predicted = everburn_nn::argmax(logits);
        let correct = predicted.clone().equal(classes.clone().to_device(&device));
        let loss = Loss::new(mean, samples).with_accuracy(correct.int().sum());
        Loss {
            classes: Some(Classes {
                count,
                predicted,
                actual: classes,
            }),
            ..loss
        }
    }
}

/// A loss in half precision would be rounded to steps of a hundredth.
fn in_single(logits: Tensor<2>) -> Tensor<2> {
    match logits.dtype() {
        DType::F16 | DType::BF16 => logits.cast(FloatDType::F32),
        _ => logits,
    }
}
