//! A training that has diverged is an error, not a result.

use burn::module::{Module, ModuleVisitor, Param};
use burn::prelude::*;

use crate::error::TrainError;

/// # Errors
/// [`TrainError::LossNotFinite`] if the loss is infinite or not a number. It is the same on every
/// rank, and so is the verdict.
pub(crate) fn require_finite_loss(
    what: &'static str,
    loss: f64,
    epoch: usize,
    step: usize,
) -> Result<(), TrainError> {
    if loss.is_finite() {
        return Ok(());
    }
    Err(TrainError::LossNotFinite {
        what,
        loss,
        step,
        epoch,
    })
}

/// Without a validation nothing else would keep a broken model out of a checkpoint.
pub(crate) fn require_finite<M: Module>(
    model: &M,
    epoch: usize,
    step: usize,
) -> Result<(), TrainError> {
    struct Sum(f64);
    impl ModuleVisitor for Sum {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if param.base().shape().num_elements() == 0 {
                // Another rank has it, and looks at it.
                return;
            }
            let sum = param.base().without_autodiff().abs().mean();
            self.0 += sum.try_into_scalar::<f64>().unwrap_or(f64::NAN);
        }
    }
    let mut sum = Sum(0.0);
    model.visit(&mut sum);
    require_finite_loss("mean of the parameters", sum.0, epoch, step)
}
