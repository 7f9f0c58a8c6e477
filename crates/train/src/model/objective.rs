//! What a model's output is measured by.

mod class_targets;

use std::borrow::Cow;
use std::fmt::Debug;
use std::marker::PhantomData;

use burn::data::dataloader::Progress;
use burn::prelude::*;
use burn::tensor::Int;
use burn_train::metric::{Metric, MetricMetadata, Numeric};
use everburn_nn::WrongTarget;

pub use self::class_targets::ClassTargets;
use crate::metrics::named_sum::{Amount, NamedSum};
use crate::metrics::step_report::StepReport;
use crate::metrics::sums::ACCURACY;
use crate::model::predictions::Classes;

/// What is trained for: how far a model's output is from what it should be.
///
/// It needs the output only, not the model: the last stage of a model that is cut over several
/// devices can call it on what has come to it.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use burn::prelude::*;
/// use everburn::train::{NextToken, Objective};
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
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use burn::prelude::*;
/// use everburn::train::Loss;
///
/// let device = Device::flex();
/// let off = Tensor::<1>::from_floats([0.5, -1.5], &device);
/// let squared = off.clone().powi_scalar(2).mean();
/// let loss = Loss::new(squared, 2).with_metric("mae", off.abs().sum(), 2);
/// let sums = loss.report().sums().unwrap();
/// assert_eq!((sums.mean_loss(), sums.mean("mae")), (1.25, Some(1.0)));
/// ```
#[derive(Debug, Clone)]
pub struct Loss {
    /// The mean loss of a prediction, shape `[1]`: what gradients are taken of. Of a cross entropy, in nats.
    pub mean: Tensor<1>,
    /// How many predictions there were; by these the mean is weighted over micro-batches, ranks and steps.
    pub predictions: usize,
    /// How many samples there were; by these the ranks' gradients are weighted, unless samples have weights of their own
    /// ([`TrainingData::weighted_by`](crate::TrainingData::weighted_by)).
    pub samples: usize,
    /// What else is measured, the same metrics in each batch and on each rank.
    pub metrics: Vec<NamedSum>,
    /// Which class each sample is of, and which it was taken for, where there are classes.
    pub classes: Option<Classes>,
}

impl Loss {
    /// The mean loss of this many samples, each a prediction.
    ///
    /// # Shapes
    /// - mean: `[1]`
    ///
    /// # Panics
    /// Panics if `mean` has several values: a loss of each sample is none of the batch.
    #[track_caller]
    pub fn new(mean: Tensor<1>, samples: usize) -> Self {
        let values = mean.dims()[0];
        assert_eq!(
            values, 1,
            "the loss has {values} values, and a training follows one: take the mean over the samples, `loss.mean()`"
        );
        Self {
            mean,
            predictions: samples,
            samples,
            metrics: Vec::new(),
            classes: None,
        }
    }

    /// The same, of this many predictions: more than samples, where each has several, as texts have tokens.
    #[must_use]
    pub fn with_predictions(self, predictions: usize) -> Self {
        Self {
            predictions,
            ..self
        }
    }

    /// The same, with a metric that is recorded, shown and can be chosen by (`--best-by`): `sum` divided by
    /// `weight`, both over all samples of all ranks. Where there is nothing to measure in a batch, both are zero.
    ///
    /// # Panics
    /// Panics if `name` is none for a metric, or an amount has several values: see [`NamedSum::new`].
    #[must_use]
    #[track_caller]
    pub fn with_metric(
        mut self,
        name: impl Into<Cow<'static, str>>,
        sum: impl Into<Amount>,
        weight: impl Into<Amount>,
    ) -> Self {
        self.metrics.push(NamedSum::new(name, sum, weight));
        self
    }

    /// The same, with the share of its predictions that were correct as metric [`ACCURACY`].
    ///
    /// # Shapes
    /// - correct: `[1]`
    ///
    /// # Panics
    /// Panics if `correct` has several values: `.sum()` makes one of them.
    #[must_use]
    #[track_caller]
    pub fn with_accuracy(self, correct: Tensor<1, Int>) -> Self {
        let predictions = self.predictions;
        self.with_metric(ACCURACY, correct, predictions)
    }

    /// The same, with what a metric of burn-train's makes of this batch, weighted by the predictions: a mean over
    /// predictions (accuracy, top-k accuracy, word error rate) is exact, over ranks too; another number is the mean over
    /// batches. The device is waited for in each step, so on a GPU [`with_metric`](Self::with_metric) is faster.
    ///
    /// ```
    /// # mod everburn { pub use everburn_train as train; }
    /// use burn::prelude::*;
    /// use burn_train::metric::{AccuracyInput, AccuracyMetric};
    /// use everburn::train::Loss;
    ///
    /// let device = Device::flex();
    /// let scores = Tensor::<2>::from_floats([[0.9, 0.1], [0.2, 0.8]], &device);
    /// let classes = Tensor::<1, Int>::from_ints([0, 0], &device);
    /// let loss = Loss::new(Tensor::ones([1], &device), 2);
    /// let loss = loss.with_burn_metric(AccuracyMetric::new(), &AccuracyInput::new(scores, classes));
    /// assert_eq!(loss.report().sums().unwrap().mean("Accuracy"), Some(50.0));
    /// ```
    ///
    /// # Panics
    /// Panics if the metric cannot read its input from the device, or has a name as [`NamedSum::new`] refuses.
    #[must_use]
    #[track_caller]
    pub fn with_burn_metric<M: Metric + Numeric>(self, mut metric: M, input: &M::Input) -> Self {
        let metadata = MetricMetadata {
            progress: Progress::new(self.samples, self.samples, None),
            iteration: None,
            lr: None,
        };
        metric.clear();
        let computed = metric.update(input, &metadata);
        if let Err(error) = computed.and_then(|_| metric.compute()) {
            panic!("the metric `{}` has no value: {error}", metric.name());
        }
        let value = metric.value().unwrap_or_else(|| metric.final_value());
        let (name, weight) = (metric.name().as_ref().clone(), self.predictions);
        self.with_metric(name, value.current() * weight as f64, weight)
    }

    /// The numbers alone, without the graph behind them.
    pub fn report(&self) -> StepReport {
        StepReport::Local {
            loss: self.mean.clone().detach(),
            predictions: self.predictions,
            samples: self.samples,
            metrics: self.metrics.clone(),
            forward: None,
            classes: self.classes.clone(),
        }
    }
}

/// One class for each sample, by cross entropy: a prediction is a sample's class.
///
/// # Shapes
/// - output: logits `[B, classes]`
/// - targets: class indices `[B]`, or other [`ClassTargets`]
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use burn::prelude::*;
/// use everburn::train::{Classification, Objective};
///
/// let device = Device::flex();
/// let logits = Tensor::<2>::from_floats([[0.0, 9.0], [0.0, 9.0]], &device);
/// let classes = Tensor::<1, Int>::from_ints([1, 0], &device);
/// let loss = Classification::<4>::loss(logits, classes);
/// assert_eq!(loss.report().sums().unwrap().correct(), Some(1));
/// ```
#[derive(Debug, Clone)]
pub struct Classification<const D: usize, T = Tensor<1, Int>>(PhantomData<fn() -> T>);

impl<const D: usize, T: ClassTargets> Objective for Classification<D, T> {
    type Input = Tensor<D>;
    type Output = Tensor<2>;
    type Targets = T;

    fn loss(logits: Tensor<2>, targets: T) -> Loss {
        targets.loss(logits)
    }
}

/// The token that follows each token of a text, by cross entropy: a prediction is a token.
///
/// # Shapes
/// - output: logits `[B, T, V]`
/// - targets: the tokens that really followed, `[B, T]`
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use burn::prelude::*;
/// use everburn::train::{NextToken, Objective};
///
/// let device = Device::flex();
/// let logits = Tensor::<3>::from_floats([[[0.0, 9.0], [0.0, 9.0]]], &device);
/// let next = Tensor::<2, Int>::from_ints([[1, 0]], &device);
/// let sums = NextToken::loss(logits, next).report().sums().unwrap();
/// assert_eq!(sums.correct(), Some(1));
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

/// As [`NextToken`], where only some of the tokens count: those of answers, say.
///
/// # Shapes
/// - output: logits `[B, T, V]`
/// - targets: the tokens that really followed, `[B, T]`, and which of these count, `[N]` with numbers from 0 to below
///   `B * T`, row by row; all, if absent
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use burn::prelude::*;
/// use everburn::train::{MaskedNextToken, Objective};
///
/// let device = Device::flex();
/// let logits = Tensor::<3>::from_floats([[[0.0, 9.0], [0.0, 9.0], [9.0, 0.0]]], &device);
/// let next = Tensor::<2, Int>::from_ints([[1, 0, 0]], &device);
/// let counting = Tensor::<1, Int>::from_ints([1, 2], &device);
/// let loss = MaskedNextToken::loss(logits, (next, Some(counting)));
/// assert_eq!((loss.samples, loss.predictions), (1, 2));
/// assert_eq!(loss.report().sums().unwrap().correct(), Some(1));
/// ```
#[derive(Debug, Clone, Copy)]
pub struct MaskedNextToken;

impl Objective for MaskedNextToken {
    type Input = Tensor<2, Int>;
    type Output = Tensor<3>;
    type Targets = (Tensor<2, Int>, Option<Tensor<1, Int>>);

    fn loss(logits: Tensor<3>, (next, counting): Self::Targets) -> Loss {
        let Some(counting) = counting else {
            return NextToken::loss(logits, next);
        };
        let [samples, length] = next.dims();
        let next = next.flatten::<1>(0, 1).select(0, counting.clone());
        if let Some(wrong) = WrongTarget::find(&next, logits.dims()[2]) {
            let row = counting.slice(wrong.row..wrong.row + 1);
            let row = row.into_scalar::<i64>() as usize;
            let rows = samples * length;
            WrongTarget { row, rows, ..wrong }.raise();
        }
        // A model on several devices yields its output on the last of them.
        let counting = counting.to_device(&logits.device());
        let logits = logits.flatten::<2>(0, 1).select(0, counting);
        cross_entropy(logits, next, samples).0
    }
}

/// The mean over the rows of `logits`, and which class each row was taken for.
fn cross_entropy(
    logits: Tensor<2>,
    targets: Tensor<1, Int>,
    samples: usize,
) -> (Loss, Tensor<1, Int>) {
    let predictions = targets.dims()[0];
    // A model that is on several devices yields its output on the last of them.
    let targets = targets.to_device(&logits.device());
    let mean = everburn_nn::cross_entropy(logits.clone(), targets.clone());
    let predicted = everburn_nn::argmax(logits);
    let correct = predicted.clone().equal(targets).int().sum();
    let loss = Loss::new(mean, samples).with_predictions(predictions);
    (loss.with_accuracy(correct), predicted)
}

#[cfg(test)]
mod tests;
