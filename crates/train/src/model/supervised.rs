//! Lets burn-train train any module by an objective.

use std::any::type_name;
use std::fmt::{Debug, Display};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use burn::module::{Devices, Module, ModuleMapper, ModuleVisitor};
use burn::optim::GradientsParams;
use burn::prelude::*;
use burn::tensor::Int;
use burn_train::{InferenceStep, TrainOutput, TrainStep};
use everburn_nn::{Activation, DeviceSplit, InBlocks, Randomness};
use everburn_record::task_method::{with_facts, within};

use crate::config::activation_checkpointing::ActivationCheckpointing;
use crate::config::loss_scaling::scaled_loss;
use crate::metrics::rank_times::ForwardPass;
use crate::metrics::step_report::StepReport;
use crate::model::objective::{Classification, Loss, NextToken, Objective};
use crate::model::shapes::{layers_in_words, shapes_of_batch};

/// The method that has the forward pass of a model in blocks, for the report of a panic.
const BLOCKS: &str = "InBlocks::blocks";

/// A batch of inputs `[B, ...]` and of class indices `[B]`.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::LabeledBatch;
///
/// fn samples(batch: &LabeledBatch<4>) -> usize {
///     batch.1.dims()[0]
/// }
/// ```
pub type LabeledBatch<const D: usize> = (Tensor<D>, Tensor<1, Int>);

/// A batch of texts `[B, T]` and of the tokens that follow each of their tokens, `[B, T]`.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::TextBatch;
///
/// fn tokens(batch: &TextBatch) -> usize {
///     batch.0.dims().iter().product()
/// }
/// ```
pub type TextBatch = (Tensor<2, Int>, Tensor<2, Int>);

/// As [`TextBatch`], with which of the tokens that follow count, `[N]`; all, if absent:
/// [`MaskedNextToken`](crate::MaskedNextToken).
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::MaskedTextBatch;
///
/// fn predictions((tokens, (_, counting)): &MaskedTextBatch) -> usize {
///     counting.as_ref().map_or_else(|| tokens.dims().iter().product(), |counting| counting.dims()[0])
/// }
/// ```
pub type MaskedTextBatch = (Tensor<2, Int>, (Tensor<2, Int>, Option<Tensor<1, Int>>));

/// A module that classifies.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use burn::nn::{Linear, LinearConfig};
/// use burn::prelude::*;
/// use burn_train::TrainStep;
/// use everburn::train::Classifier;
///
/// let device = Device::flex().autodiff();
/// let model = LinearConfig::new(4, 3).init(&device);
/// let classifier = Classifier::new(model, Linear::forward::<2>);
/// let batch = (Tensor::ones([2, 4], &device), Tensor::from_data([0, 2], &device));
/// let output = classifier.step(batch);
/// assert_eq!(output.item.sums().unwrap().samples, 2);
/// assert_eq!(output.grads.len(), 2);
/// ```
pub type Classifier<M, const D: usize> = Supervised<M, Classification<D>>;

/// A module that predicts, for each token of a text, the next one.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use burn::nn::{Embedding, EmbeddingConfig};
/// use burn::prelude::*;
/// use burn_train::TrainStep;
/// use everburn::train::LanguageModel;
///
/// let device = Device::flex().autodiff();
/// // Scores that depend on the last token alone.
/// let model = EmbeddingConfig::new(7, 7).init(&device);
/// let model = LanguageModel::new(model, |model: &Embedding, tokens| model.forward(tokens));
/// let tokens = Tensor::<2, Int>::from_ints([[0, 1, 2, 3], [3, 4, 5, 6]], &device);
/// let batch = (tokens.clone().slice([0..2, 0..3]), tokens.slice([0..2, 1..4]));
/// let sums = model.step(batch).item.sums().unwrap();
/// assert_eq!((sums.samples, sums.predictions), (2, 6));
/// ```
pub type LanguageModel<M> = Supervised<M, NextToken>;

/// A Burn module with the function that turns inputs into outputs, and with an [`Objective`] that
/// measures them: all that training needs to know. The module's own code does not change.
///
/// The wrapper is invisible in parameter paths and records: `conv1.weight` stays `conv1.weight`.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use burn::nn::{Linear, LinearConfig};
/// use burn::prelude::*;
/// use everburn::train::{Classification, Supervised};
///
/// let device = Device::flex();
/// let model = LinearConfig::new(4, 3).init(&device);
/// let supervised = Supervised::<_, Classification<2>>::new(model, Linear::forward);
/// assert_eq!(supervised.forward(Tensor::ones([2, 4], &device)).dims(), [2, 3]);
/// ```
pub struct Supervised<M, O: Objective> {
    model: M,
    forward: Forward<M, O>,
    /// Where the model is, if on several devices.
    split: Option<Arc<DeviceSplit>>,
    /// What the report of a panic says of the model.
    layers: Arc<OnceLock<Arc<str>>>,
}

type Forward<M, O> =
    Arc<dyn Fn(&M, <O as Objective>::Input) -> <O as Objective>::Output + Send + Sync>;

impl<M, O: Objective> Supervised<M, O> {
    /// Pairs `model` with the function that turns inputs into outputs.
    pub fn new(
        model: M,
        forward: impl Fn(&M, O::Input) -> O::Output + Send + Sync + 'static,
    ) -> Self {
        Self {
            model,
            forward: Arc::new(forward),
            split: None,
            layers: Arc::default(),
        }
    }

    /// Pairs `model` with the way through all its blocks.
    pub fn of_blocks(model: M) -> Self
    where
        M: InBlocks<Input = O::Input, Output = O::Output>,
        O::Input: Activation,
        O::Output: Activation,
    {
        Self::new(model, |model, input| {
            within(BLOCKS, || model.blocks().forward(model, input))
        })
    }

    /// Pairs `model` with the way through all its blocks, of which the backward pass computes as many again
    /// as `checkpointing` says.
    ///
    /// Ranks that are threads of one process share the generator of random numbers, so that a block with
    /// dropout cannot be computed again in each: the backward pass refuses it
    /// ([`everburn::nn::checkpoint`](everburn_nn::checkpoint)).
    pub fn of_checkpointed_blocks(model: M, checkpointing: ActivationCheckpointing) -> Self
    where
        M: InBlocks<Input = O::Input, Output = O::Output> + 'static,
        O::Input: Activation,
        O::Output: Activation,
    {
        let Some(every) = checkpointing.blocks_a_segment() else {
            return Self::of_blocks(model);
        };
        Self::new(model, move |model, input| {
            within(BLOCKS, || {
                everburn_nn::checkpointed_forward(model, input, every, Randomness::Replayed)
            })
        })
    }

    /// Pairs `model` with the way through all its blocks, each on the device that `split` has for it, and
    /// moves its parameters there. There they stay: `fork` and `to_device` keep them.
    ///
    /// ```
    /// # mod everburn { pub use everburn_models as models; pub use everburn_nn as nn; pub use everburn_train as train; }
    /// use burn::prelude::*;
    /// use everburn::models::mnist::MnistConfig;
    /// use everburn::nn::Placement;
    /// use everburn::train::Classifier;
    ///
    /// let (first, second) = (Device::flex(), Device::flex());
    /// let model = MnistConfig::new().init(&first);
    /// let placement = Placement::new().put("conv1", &first).put("fc1", &second);
    /// let split = placement.split(&model).unwrap();
    /// let classifier = Classifier::on_devices(model, split);
    /// let logits = classifier.forward(Tensor::zeros([2, 1, 28, 28], &first));
    /// assert_eq!(logits.dims(), [2, 10]);
    /// ```
    pub fn on_devices(model: M, split: DeviceSplit) -> Self
    where
        M: InBlocks<Input = O::Input, Output = O::Output> + 'static,
        O::Input: Activation,
        O::Output: Activation,
    {
        let split = Arc::new(split);
        let way = Arc::clone(&split);
        Self {
            model: split.place(model),
            forward: Arc::new(move |model: &M, input| within(BLOCKS, || way.forward(model, input))),
            split: Some(split),
            layers: Arc::default(),
        }
    }

    /// Whether the model is on several devices.
    pub(crate) fn is_split(&self) -> bool {
        self.split.is_some()
    }

    /// The module itself.
    pub fn model(&self) -> &M {
        &self.model
    }

    /// The module alone.
    pub fn into_model(self) -> M {
        self.model
    }

    /// What the module yields for `inputs`.
    pub fn forward(&self, inputs: O::Input) -> O::Output {
        (self.forward)(&self.model, inputs)
    }

    fn map_model(self, map: impl FnOnce(M) -> M) -> Self {
        Self {
            model: map(self.model),
            forward: self.forward,
            split: self.split,
            layers: self.layers,
        }
    }
}

impl<M: Module, O: Objective> Supervised<M, O> {
    /// The loss of a batch. The report of a panic has the shapes of the batch and of the model's layers.
    fn loss(&self, batch: (O::Input, O::Targets)) -> Loss {
        let (name, shapes) = (type_name::<M>(), shapes_of_batch(&batch));
        let layers = self
            .layers
            .get_or_init(|| layers_in_words(&self.model).into());
        let layers = Arc::clone(layers);
        let facts = move || {
            format!(
                "the model `{name}` got {shapes}; its layers (a Linear has a weight of [inputs, outputs]):\n{layers}"
            )
        };
        with_facts(facts, || {
            let (inputs, targets) = batch;
            O::loss(self.forward(inputs), targets)
        })
    }
}

impl<M: Clone, O: Objective> Clone for Supervised<M, O> {
    fn clone(&self) -> Self {
        Self {
            model: self.model.clone(),
            forward: Arc::clone(&self.forward),
            split: self.split.clone(),
            layers: Arc::clone(&self.layers),
        }
    }
}

impl<M: Debug, O: Objective> Debug for Supervised<M, O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Supervised")
            .field("model", &self.model)
            .finish_non_exhaustive()
    }
}

impl<M: Module, O: Objective> TrainStep for Supervised<M, O> {
    type Input = (O::Input, O::Targets);
    type Output = StepReport;

    fn step(&self, batch: Self::Input) -> TrainOutput<StepReport> {
        let (start, counted) = (Instant::now(), everburn_nn::operations_counted());
        let loss = self.loss(batch);
        let report = loss.report().after_forward(ForwardPass {
            seconds: start.elapsed().as_secs_f64(),
            operations: everburn_nn::operations_counted() - counted,
        });
        assert!(
            loss.mean.is_tracked(),
            "the loss depends on no parameter of the model: is there a `detach` between them, or is the loss a constant? \
             (Frozen parameters do not count.)"
        );
        let gradients = scaled_loss(loss.mean).backward();
        if everburn_nn::has_parameter_source() {
            // They have gone to the exchange, and to look for them would gather all parameters.
            return TrainOutput {
                grads: GradientsParams::new(),
                item: report,
            };
        }
        TrainOutput::new(self, gradients, report)
    }
}

impl<M: Module, O: Objective> InferenceStep for Supervised<M, O> {
    type Input = (O::Input, O::Targets);
    type Output = StepReport;

    fn step(&self, batch: Self::Input) -> StepReport {
        self.loss(batch).report()
    }
}

impl<M: Module, O: Objective> Module for Supervised<M, O> {
    fn collect_devices(&self, devices: Devices) -> Devices {
        self.model.collect_devices(devices)
    }

    fn fork(self, device: &Device) -> Self {
        match self.split.clone() {
            Some(split) => self.map_model(|model| split.place(model)),
            None => self.map_model(|model| model.fork(device)),
        }
    }

    fn to_device(self, device: &Device) -> Self {
        match self.split.clone() {
            Some(split) => self.map_model(|model| split.place(model)),
            None => self.map_model(|model| model.to_device(device)),
        }
    }

    fn train(self) -> Self {
        self.map_model(Module::train)
    }

    fn valid(&self) -> Self {
        Self {
            model: self.model.valid(),
            forward: Arc::clone(&self.forward),
            split: self.split.clone(),
            layers: Arc::clone(&self.layers),
        }
    }

    fn materialize(self) -> Self {
        self.map_model(Module::materialize)
    }

    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        self.model.visit(visitor);
    }

    fn map<Mapper: ModuleMapper>(self, mapper: &mut Mapper) -> Self {
        self.map_model(|model| model.map(mapper))
    }
}

impl<M: Display, O: Objective> Display for Supervised<M, O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.model.fmt(f)
    }
}

#[cfg(test)]
mod tests;
