//! What a model can do by now, shown while it trains.

use std::sync::Arc;

use crate::error::TrainError;

/// Draws something from a model that trains, after each epoch and every N steps: text of a
/// language model, say. Rank 0 shows it among its progress.
///
/// It must leave the device's random numbers alone, or the training would depend on it;
/// [`GenerationConfig`](crate::GenerationConfig) does. All ranks are given it.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use burn::nn::{Linear, LinearConfig};
/// use burn::prelude::*;
/// use everburn::train::{Classifier, Samples};
///
/// let samples = Samples::<Classifier<Linear, 2>>::new(Some(100), |model, step| {
///     let logits = model.forward(Tensor::ones([1, 4], &Device::flex()));
///     Ok(Some(format!("logits after step {step}: {logits}")))
/// });
/// assert!(samples.is_due(300) && !samples.is_due(301));
/// ```
pub struct Samples<M> {
    every: Option<usize>,
    draw: Draw<M>,
}

type Draw<M> = Arc<dyn Fn(&M, usize) -> Result<Option<String>, TrainError> + Send + Sync>;

impl<M> Samples<M> {
    /// Calls `draw` with the model, as it is for validation, and the step: after each epoch, and after
    /// each multiple of `every` steps.
    pub fn new(
        every: Option<usize>,
        draw: impl Fn(&M, usize) -> Result<Option<String>, TrainError> + Send + Sync + 'static,
    ) -> Self {
        Self {
            every,
            draw: Arc::new(draw),
        }
    }

    /// Whether a sample is to be drawn in the middle of an epoch, after this step.
    pub fn is_due(&self, step: usize) -> bool {
        self.every.is_some_and(|every| step.is_multiple_of(every))
    }

    /// The same of a model that `view` finds in another.
    pub(crate) fn of<N: 'static>(
        self,
        view: impl Fn(&N) -> &M + Send + Sync + 'static,
    ) -> Samples<N>
    where
        M: 'static,
    {
        let Self { every, draw } = self;
        Samples {
            every,
            draw: Arc::new(move |model, step| draw(view(model), step)),
        }
    }

    pub(crate) fn draw(&self, model: &M, step: usize) -> Result<Option<String>, TrainError> {
        (self.draw)(model, step)
    }
}

impl<M> Clone for Samples<M> {
    fn clone(&self) -> Self {
        Self {
            every: self.every,
            draw: Arc::clone(&self.draw),
        }
    }
}

impl<M> std::fmt::Debug for Samples<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Samples")
            .field("every", &self.every)
            .finish_non_exhaustive()
    }
}
