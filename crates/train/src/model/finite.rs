//! A training that has diverged is an error, not a result.

use burn::module::{Module, ModuleVisitor, Param};
use burn::prelude::*;

use crate::error::TrainError;

/// A sample with a number that is NaN or infinite, and what that has led to.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::NotFiniteInput;
///
/// let input = NotFiniteInput {
///     effect: "the training loss is NaN after step 5".into(),
///     step: 5,
///     sample: 17,
///     name: Some("houses.csv, line 19".into()),
///     of: "the training",
///     rank: 1,
///     tensor: "input".into(),
///     is_nan: true,
///     others: vec![3, 40],
/// };
/// let text = "the training loss is NaN after step 5: the input of sample 17 (houses.csv, line 19) of the training, which rank 1 \
///             has read, has a NaN; so do samples 3, 40 of that batch";
/// assert!(input.to_string().starts_with(text));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{effect}: the {tensor} of sample {sample}{} of {of}, which rank {rank} has read, has {}{}; samples are \
     counted from 0: repair this one, or leave it out",
    .name.as_ref().map_or_else(String::new, |name| format!(" ({name})")),
    if *.is_nan { "a NaN" } else { "an infinite number" },
    others_in_words(.others)
)]
pub struct NotFiniteInput {
    /// What is not finite, and when: "the training loss is NaN after step 5" say.
    pub effect: String,
    /// The step, counted from 1 over all epochs.
    pub step: usize,
    /// The sample's number in its data set, counted from 0.
    pub sample: usize,
    /// What the task calls it ([`Predict::sample_name`](crate::Predict::sample_name)): its file or line.
    pub name: Option<String>,
    /// What the set is for, `the training` say.
    pub of: &'static str,
    /// The rank that has read it.
    pub rank: usize,
    /// Which of the sample's tensors: `input` or `targets`.
    pub tensor: String,
    /// It is a NaN, and no infinity.
    pub is_nan: bool,
    /// The numbers of all other samples of that global batch with such a number.
    pub others: Vec<usize>,
}

/// The most samples that are named besides the first.
const OTHERS: usize = 8;

fn others_in_words(others: &[usize]) -> String {
    let named: Vec<_> = others.iter().take(OTHERS).map(usize::to_string).collect();
    match (named.join(", "), others.len()) {
        (_, 0) => String::new(),
        (one, 1) => format!("; so does sample {one} of that batch"),
        (some, ..=OTHERS) => format!("; so do samples {some} of that batch"),
        (some, all) => format!(
            "; so do samples {some} and {} more of that batch",
            all - OTHERS
        ),
    }
}

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
        inputs_are_finite: false,
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
