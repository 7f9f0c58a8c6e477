//! What a model's output is measured by.

use std::fmt::Debug;

use burn::prelude::*;
use burn::tensor::Int;

use crate::predictions::Classes;
use crate::tally::StepReport;

/// What is trained for: how far a model's output is from what it should be.
///
/// It needs the output only, not the model: the last stage of a model that is cut over several
/// devices can call it on what has come to it.
///
/// ```
/// use burn::prelude::*;
/// use everburn_train::{NextToken, Objective};
///
/// let device = Device::flex();
/// let logits = Tensor::<3>::zeros([2, 5, 10], &device); // two texts of five tokens
/// let next = Tensor::<2, Int>::zeros([2, 5], &device);
/// let loss = NextToken::loss(logits, next);
/// assert_eq!((loss.samples, loss.predictions), (2, 10));
/// let nats = loss.mean.into_scalar::<f64>();
/// assert!((nats - 10.0_f64.ln()).abs() < 1e-5, "all ten tokens are as likely");
/// ```
pub trait Objective: Debug + Clone + Send + Sync + 'static {
    /// What the model takes.
    type Input: Send + 'static;
    /// What the model yields.
    type Output;
    /// What the model should have yielded.
    type Targets: Send + 'static;

    /// Compares a batch of outputs with what they should be.
    ///
    /// # Panics
    /// Panics if there are more or fewer outputs than targets.
    fn loss(output: Self::Output, targets: Self::Targets) -> Loss;
}

/// How far a batch of outputs is from what it should be.
#[derive(Debug, Clone)]
pub struct Loss {
    /// The mean loss of a prediction in nats, shape `[1]`: what gradients are taken of.
    pub mean: Tensor<1>,
    /// How many predictions were correct, shape `[1]`.
    pub correct: Tensor<1, Int>,
    /// How many predictions there were.
    pub predictions: usize,
    /// How many samples there were; by these the ranks' gradients are weighted.
    pub samples: usize,
    /// Which class each sample is of, and which it was taken for, where there are classes.
    pub classes: Option<Classes>,
}

impl Loss {
    /// The numbers alone, without the graph behind them.
    pub fn report(&self) -> StepReport {
        StepReport::Local {
            loss: self.mean.clone().detach(),
            correct: self.correct.clone(),
            predictions: self.predictions,
            samples: self.samples,
            forward: None,
            classes: self.classes.clone(),
        }
    }
}

/// One class for each sample, by cross entropy: a prediction is a sample's class.
///
/// # Shapes
/// - output: logits `[B, classes]`
/// - targets: class indices `[B]`
///
/// ```
/// use burn::prelude::*;
/// use everburn_train::{Classification, Objective};
///
/// let device = Device::flex();
/// let logits = Tensor::<2>::from_floats([[0.0, 9.0], [0.0, 9.0]], &device);
/// let classes = Tensor::<1, Int>::from_ints([1, 0], &device);
/// let loss = Classification::<4>::loss(logits, classes);
/// assert_eq!(loss.correct.into_scalar::<i64>(), 1);
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Classification<const D: usize>;

impl<const D: usize> Objective for Classification<D> {
    type Input = Tensor<D>;
    type Output = Tensor<2>;
    type Targets = Tensor<1, Int>;

    fn loss(logits: Tensor<2>, classes: Tensor<1, Int>) -> Loss {
        let samples = classes.dims()[0];
        let count = logits.dims()[1];
        let (loss, predicted) = cross_entropy(logits, classes.clone(), samples);
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

/// The token that follows each token of a text, by cross entropy: a prediction is a token.
///
/// # Shapes
/// - output: logits `[B, T, V]`
/// - targets: the tokens that really followed, `[B, T]`
///
/// ```
/// use burn::prelude::*;
/// use everburn_train::{NextToken, Objective};
///
/// let device = Device::flex();
/// let logits = Tensor::<3>::from_floats([[[0.0, 9.0], [0.0, 9.0]]], &device);
/// let next = Tensor::<2, Int>::from_ints([[1, 0]], &device);
/// assert_eq!(NextToken::loss(logits, next).correct.into_scalar::<i64>(), 1);
/// ```
#[derive(Debug, Clone, Copy)]
pub struct NextToken;

impl Objective for NextToken {
    type Input = Tensor<2, Int>;
    type Output = Tensor<3>;
    type Targets = Tensor<2, Int>;

    fn loss(logits: Tensor<3>, next: Tensor<2, Int>) -> Loss {
        let samples = next.dims()[0];
        cross_entropy(logits.flatten(0, 1), next.flatten(0, 1), samples).0
    }
}

/// The mean over the rows of `logits`, and which class each row was taken for.
fn cross_entropy(
    logits: Tensor<2>,
    targets: Tensor<1, Int>,
    samples: usize,
) -> (Loss, Tensor<1, Int>) {
    let predictions = targets.dims()[0];
    // A model that lies on several devices yields its output on the last of them.
    let targets = targets.to_device(&logits.device());
    let mean = everburn_nn::cross_entropy(logits.clone(), targets.clone());
    let predicted = logits.detach().argmax(1).squeeze_dim::<1>(1);
    let loss = Loss {
        mean,
        correct: predicted.clone().equal(targets).int().sum(),
        predictions,
        samples,
        classes: None,
    };
    (loss, predicted)
}
