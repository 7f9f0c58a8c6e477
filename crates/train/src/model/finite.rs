//! A training that has diverged is an error, not a result.

use std::fmt;

use burn::module::{Module, ModuleVisitor, Param};
use burn::prelude::*;
use everburn_record::units::significant;
use serde::{Deserialize, Serialize};

use crate::error::{TEST_LOSS, TrainError, VALIDATION_LOSS};

/// A sample with a number that is NaN or infinite, and what that has led to.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::NotFiniteInput;
///
/// let input = NotFiniteInput {
///     effect: "the training loss is NaN after step 5".into(),
///     step: Some(5),
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
    /// The step, counted from 1 over all epochs; `None` outside a training.
    pub step: Option<usize>,
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

/// What shows that a training had diverged before a loss was NaN or infinite.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::DivergenceSign;
///
/// let sign = DivergenceSign::Loss { first: 2.3, newest: 4.1e18 };
/// assert_eq!(sign.to_string(), "the training loss has risen from 2.3 to 4.1e18");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum DivergenceSign {
    /// Parameters of the model are NaN or infinite.
    Parameters,
    /// The training loss has risen to more than ten times its first value, in a run that was not resumed.
    Loss {
        /// The loss of the first step.
        first: f64,
        /// The loss of the newest step.
        newest: f64,
    },
}

/// A training loss of this many times the first one is that of a training that has diverged.
const RISE: f64 = 10.0;

impl DivergenceSign {
    /// What the parameters of `model` show, and the training losses of the first and the newest step.
    pub(crate) fn find<M: Module>(model: &M, losses: Option<[f64; 2]>) -> Option<Self> {
        if !mean_of_parameters(model).is_finite() {
            return Some(Self::Parameters);
        }
        Self::of_losses(losses?)
    }

    /// The same by the losses alone.
    pub(crate) fn of_losses([first, newest]: [f64; 2]) -> Option<Self> {
        (newest > RISE * first.abs()).then_some(Self::Loss { first, newest })
    }
}

impl fmt::Display for DivergenceSign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Parameters => f.write_str("parameters of the model are NaN or infinite"),
            Self::Loss { first, newest } => write!(
                f,
                "the training loss has risen from {} to {}",
                significant(*first, 3),
                significant(*newest, 3)
            ),
        }
    }
}

const MODEL_OR_LOSS: &str =
    "the model or the loss makes it (a logarithm or a root of a number below 0, a division by 0)";

pub(crate) const LOWER_RATE: &str = "try a lower `training.optimizer.learning_rate`";

/// What may have made a loss NaN or infinite, the likeliest first, and what to do.
pub(crate) fn suspects(
    what: &str,
    step: Option<usize>,
    inputs_are_finite: bool,
    sign: Option<DivergenceSign>,
) -> String {
    let Some(step) = step else {
        return suspects_of_evaluation(inputs_are_finite, sign.is_none());
    };
    let measured = match what {
        VALIDATION_LOSS => Some("validation"),
        TEST_LOSS => Some("test"),
        _ => None,
    };
    match (measured, sign, inputs_are_finite) {
        (Some(_), Some(sign), true) => {
            format!("the training has diverged ({sign}): {LOWER_RATE}")
        }
        (Some(of), Some(sign), false) => format!(
            "the training has diverged ({sign}): {LOWER_RATE}; if that changes nothing, look for a NaN or an infinite number in \
             the {of} data"
        ),
        (Some(_), None, true) => format!(
            "the training loss was finite, and so are the inputs of that batch, so the training has diverged since ({LOWER_RATE}), or \
             {MODEL_OR_LOSS}"
        ),
        (Some(of), None, false) => format!(
            "the training loss was finite, so look for a NaN or an infinite number in the {of} data first; if there is none, the \
             training has diverged: {LOWER_RATE}"
        ),
        // Nothing has been learned yet.
        (None, _, true) if step == 1 => format!("the inputs are finite, so {MODEL_OR_LOSS}"),
        (None, _, false) if step == 1 => {
            "the model, the loss or the data make it (a logarithm or a root of a number below 0, a division by 0)"
                .to_owned()
        }
        (None, _, true) => format!(
            "the inputs of that batch are finite, so the training has diverged; {LOWER_RATE}"
        ),
        (None, _, false) => format!(
            "the training has diverged, or the data have a NaN or an infinite number; {LOWER_RATE}, and look for such numbers in the \
             inputs"
        ),
    }
}

/// The same of the loss of an evaluation, which comes after no step.
fn suspects_of_evaluation(inputs_are_finite: bool, weights_are_finite: bool) -> String {
    match (weights_are_finite, inputs_are_finite) {
        (false, _) => "parameters of the model are NaN or infinite: take weights of before the training diverged (another checkpoint)"
            .to_owned(),
        (true, true) => format!(
            "the inputs of that batch are finite, so {MODEL_OR_LOSS}, or the training had diverged (take another checkpoint)"
        ),
        (true, false) => format!(
            "look for a NaN or an infinite number in the test data first; if there is none, {MODEL_OR_LOSS}, or the training had \
             diverged (take another checkpoint)"
        ),
    }
}

/// # Errors
/// [`TrainError::LossNotFinite`] if the loss is infinite or not a number. It is the same on every
/// rank, and so is the verdict. `after` is the epoch and the step, in a training.
pub(crate) fn require_finite_loss(
    what: &'static str,
    loss: f64,
    after: Option<(usize, usize)>,
) -> Result<(), TrainError> {
    if loss.is_finite() {
        return Ok(());
    }
    let (epoch, step) = after.unzip();
    Err(TrainError::LossNotFinite {
        what,
        loss,
        step,
        epoch,
        inputs_are_finite: false,
        sign: None,
    })
}

/// Without a validation nothing else would keep a broken model out of a checkpoint.
pub(crate) fn require_finite<M: Module>(
    model: &M,
    epoch: usize,
    step: usize,
) -> Result<(), TrainError> {
    let mean = mean_of_parameters(model);
    require_finite_loss("mean of the parameters", mean, Some((epoch, step)))
}

/// The sum over the parameters of the mean of each: NaN or infinite where a parameter is.
fn mean_of_parameters<M: Module>(model: &M) -> f64 {
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
    sum.0
}
