//! Lets burn-train train any module that classifies.

use std::fmt::Display;

use burn::module::{Devices, Module, ModuleMapper, ModuleVisitor};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::prelude::*;
use burn::tensor::Int;
use burn_train::{InferenceStep, TrainOutput, TrainStep};

use crate::tally::StepReport;

/// A batch of inputs `[B, ...]` and of class indices `[B]`.
pub type LabeledBatch<const D: usize> = (Tensor<D>, Tensor<1, Int>);

/// A Burn module with the function that turns inputs into logits: all that training by cross
/// entropy needs to know. The module's own code does not change.
///
/// The wrapper is invisible in parameter paths and records: `conv1.weight` stays `conv1.weight`.
///
/// ```
/// use burn::nn::{Linear, LinearConfig};
/// use burn::prelude::*;
/// use burn_train::TrainStep;
/// use everburn_train::Classifier;
///
/// let device = Device::flex().autodiff();
/// let model = LinearConfig::new(4, 3).init(&device);
/// let classifier = Classifier::new(model, Linear::forward::<2>);
/// let batch = (Tensor::ones([2, 4], &device), Tensor::from_data([0, 2], &device));
/// let output = classifier.step(batch);
/// assert_eq!(output.item.tally().unwrap().samples, 2);
/// assert_eq!(output.grads.len(), 2);
/// ```
#[derive(Debug, Clone)]
pub struct Classifier<M, const D: usize> {
    model: M,
    forward: fn(&M, Tensor<D>) -> Tensor<2>,
}

impl<M: Module, const D: usize> Classifier<M, D> {
    /// Pairs `model` with the function that turns inputs `[B, ...]` into logits `[B, classes]`.
    pub fn new(model: M, forward: fn(&M, Tensor<D>) -> Tensor<2>) -> Self {
        Self { model, forward }
    }

    /// The module itself.
    pub fn model(&self) -> &M {
        &self.model
    }

    /// Logits `[B, classes]` of inputs `[B, ...]`.
    pub fn forward(&self, inputs: Tensor<D>) -> Tensor<2> {
        (self.forward)(&self.model, inputs)
    }

    fn report(&self, (inputs, targets): LabeledBatch<D>) -> (Tensor<1>, StepReport) {
        let samples = targets.dims()[0];
        let logits = self.forward(inputs);
        let loss = CrossEntropyLossConfig::new()
            .init(&logits.device())
            .forward(logits.clone(), targets.clone());
        let predicted = logits.detach().argmax(1).squeeze_dim::<1>(1);
        let report = StepReport::Local {
            loss: loss.clone().detach(),
            correct: predicted.equal(targets).int().sum(),
            samples,
        };
        (loss, report)
    }

    fn with_model(&self, model: M) -> Self {
        Self {
            model,
            forward: self.forward,
        }
    }
}

impl<M: Module, const D: usize> TrainStep for Classifier<M, D> {
    type Input = LabeledBatch<D>;
    type Output = StepReport;

    fn step(&self, batch: LabeledBatch<D>) -> TrainOutput<StepReport> {
        let (loss, report) = self.report(batch);
        TrainOutput::new(self, loss.backward(), report)
    }
}

impl<M: Module, const D: usize> InferenceStep for Classifier<M, D> {
    type Input = LabeledBatch<D>;
    type Output = StepReport;

    fn step(&self, batch: LabeledBatch<D>) -> StepReport {
        self.report(batch).1
    }
}

impl<M: Module, const D: usize> Module for Classifier<M, D> {
    fn collect_devices(&self, devices: Devices) -> Devices {
        self.model.collect_devices(devices)
    }

    fn fork(self, device: &Device) -> Self {
        let forward = self.forward;
        Self::new(self.model.fork(device), forward)
    }

    fn to_device(self, device: &Device) -> Self {
        let forward = self.forward;
        Self::new(self.model.to_device(device), forward)
    }

    fn train(self) -> Self {
        let forward = self.forward;
        Self::new(self.model.train(), forward)
    }

    fn valid(&self) -> Self {
        self.with_model(self.model.valid())
    }

    fn materialize(self) -> Self {
        let forward = self.forward;
        Self::new(self.model.materialize(), forward)
    }

    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        self.model.visit(visitor);
    }

    fn map<Mapper: ModuleMapper>(self, mapper: &mut Mapper) -> Self {
        let forward = self.forward;
        Self::new(self.model.map(mapper), forward)
    }
}

impl<M: Display, const D: usize> Display for Classifier<M, D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.model.fmt(f)
    }
}
