//! Models without their types.

use std::any::Any;
use std::fmt::{self, Debug, Display};

use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::{Devices, Module, ModuleMapper, ModuleVisitor};
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::prelude::*;
use burn_train::{InferenceStep, LearnerModel, TrainOutput, TrainStep};

use super::WRONG_TYPE;
use super::data::AnyBatch;
use super::visit::{AnyMapper, AnyVisitor, Mapping, Visiting};
use crate::metrics::step_report::StepReport;

/// A model that a [`Trainer`](crate::Trainer) trains: a Burn module with burn-train's steps of training and of
/// inference, which take the same batches and yield [`StepReport`]s with the same metrics. It is implemented for all such models.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use burn::nn::{Linear, LinearConfig};
/// use burn::prelude::*;
/// use everburn::train::{Classifier, LabeledBatch, Trainable};
///
/// fn takes<M: Trainable<Batch = LabeledBatch<2>>>(_model: M) {}
///
/// let model = LinearConfig::new(4, 3).init(&Device::flex());
/// takes(Classifier::<Linear, 2>::new(model, Linear::forward));
/// ```
pub trait Trainable:
    LearnerModel
    + Sync
    + TrainStep<Input = Self::Batch, Output = StepReport>
    + InferenceStep<Input = Self::Batch, Output = StepReport>
{
    /// What both steps take.
    type Batch: Send + 'static;
}

impl<M, B> Trainable for M
where
    M: LearnerModel
        + Sync
        + TrainStep<Input = B, Output = StepReport>
        + InferenceStep<Input = B, Output = StepReport>,
    B: Send + 'static,
{
    type Batch = B;
}

/// Any [`Trainable`] model, without its type. It is a Burn module with the parameters of the model inside, at the
/// same paths.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use burn::module::Module;
/// use everburn::train::AnyModel;
///
/// fn parameters(model: &AnyModel) -> usize {
///     model.num_params()
/// }
/// ```
pub struct AnyModel(Box<dyn ErasedModel>);

impl AnyModel {
    /// Puts a model into a box; one that is in a box already stays in that.
    pub(crate) fn new<M: Trainable>(model: M) -> Self {
        let mut model = Some(model);
        let boxed = (&mut model as &mut dyn Any).downcast_mut::<Option<Self>>();
        match boxed.and_then(Option::take) {
            Some(boxed) => boxed,
            None => Self(Box::new(model.expect("a model is taken once"))),
        }
    }

    pub(crate) fn open<M: Trainable>(self) -> M {
        let mut boxed = Some(self);
        let same = (&mut boxed as &mut dyn Any).downcast_mut::<Option<M>>();
        match (same.and_then(Option::take), boxed) {
            (Some(same), _) => same,
            (None, Some(boxed)) => *boxed.0.into_any().downcast().expect(WRONG_TYPE),
            (None, None) => unreachable!("a box is taken once"),
        }
    }

    pub(crate) fn inner<M: Trainable>(&self) -> &M {
        let same = (self as &dyn Any).downcast_ref();
        let inner = same.or_else(|| self.0.as_any().downcast_ref());
        inner.expect(WRONG_TYPE)
    }
}

/// What the engine asks of a model, without a type parameter.
trait ErasedModel: Send + Sync {
    fn as_any(&self) -> &dyn Any;
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
    fn duplicate(&self) -> Box<dyn ErasedModel>;
    fn debug(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result;
    fn display(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result;
    fn collect_devices(&self, devices: Devices) -> Devices;
    fn fork(self: Box<Self>, device: &Device) -> Box<dyn ErasedModel>;
    fn to_device(self: Box<Self>, device: &Device) -> Box<dyn ErasedModel>;
    fn train(self: Box<Self>) -> Box<dyn ErasedModel>;
    fn valid(&self) -> Box<dyn ErasedModel>;
    fn materialize(self: Box<Self>) -> Box<dyn ErasedModel>;
    fn visit(&self, visitor: &mut dyn AnyVisitor);
    fn map(self: Box<Self>, mapper: &mut dyn AnyMapper) -> Box<dyn ErasedModel>;
    fn train_step(&self, batch: AnyBatch) -> TrainOutput<StepReport>;
    fn inference_step(&self, batch: AnyBatch) -> StepReport;
    fn optimize(
        self: Box<Self>,
        optimizer: &mut ModuleOptimizer,
        rate: ModuleLearningRate,
        gradients: GradientsParams,
    ) -> Box<dyn ErasedModel>;
}

impl<M: Trainable> ErasedModel for M {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }

    fn duplicate(&self) -> Box<dyn ErasedModel> {
        Box::new(self.clone())
    }

    fn debug(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Debug::fmt(self, f)
    }

    fn display(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Display::fmt(self, f)
    }

    fn collect_devices(&self, devices: Devices) -> Devices {
        Module::collect_devices(self, devices)
    }

    fn fork(self: Box<Self>, device: &Device) -> Box<dyn ErasedModel> {
        Box::new(Module::fork(*self, device))
    }

    fn to_device(self: Box<Self>, device: &Device) -> Box<dyn ErasedModel> {
        Box::new(Module::to_device(*self, device))
    }

    fn train(self: Box<Self>) -> Box<dyn ErasedModel> {
        Box::new(Module::train(*self))
    }

    fn valid(&self) -> Box<dyn ErasedModel> {
        Box::new(Module::valid(self))
    }

    fn materialize(self: Box<Self>) -> Box<dyn ErasedModel> {
        Box::new(Module::materialize(*self))
    }

    fn visit(&self, visitor: &mut dyn AnyVisitor) {
        Module::visit(self, &mut Visiting(visitor));
    }

    fn map(self: Box<Self>, mapper: &mut dyn AnyMapper) -> Box<dyn ErasedModel> {
        Box::new(Module::map(*self, &mut Mapping(mapper)))
    }

    fn train_step(&self, batch: AnyBatch) -> TrainOutput<StepReport> {
        TrainStep::step(self, batch.open())
    }

    fn inference_step(&self, batch: AnyBatch) -> StepReport {
        InferenceStep::step(self, batch.open())
    }

    fn optimize(
        self: Box<Self>,
        optimizer: &mut ModuleOptimizer,
        rate: ModuleLearningRate,
        gradients: GradientsParams,
    ) -> Box<dyn ErasedModel> {
        Box::new(TrainStep::optimize(*self, optimizer, rate, gradients))
    }
}

impl Clone for AnyModel {
    fn clone(&self) -> Self {
        Self(self.0.duplicate())
    }
}

impl Debug for AnyModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.debug(f)
    }
}

impl Display for AnyModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display(f)
    }
}

impl Module for AnyModel {
    fn collect_devices(&self, devices: Devices) -> Devices {
        self.0.collect_devices(devices)
    }

    fn fork(self, device: &Device) -> Self {
        Self(self.0.fork(device))
    }

    fn to_device(self, device: &Device) -> Self {
        Self(self.0.to_device(device))
    }

    fn train(self) -> Self {
        Self(self.0.train())
    }

    fn valid(&self) -> Self {
        Self(self.0.valid())
    }

    fn materialize(self) -> Self {
        Self(self.0.materialize())
    }

    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        self.0.visit(visitor);
    }

    fn map<Mapper: ModuleMapper>(self, mapper: &mut Mapper) -> Self {
        Self(self.0.map(mapper))
    }
}

impl TrainStep for AnyModel {
    type Input = AnyBatch;
    type Output = StepReport;

    fn step(&self, batch: AnyBatch) -> TrainOutput<StepReport> {
        self.0.train_step(batch)
    }

    fn optimize(
        self,
        optimizer: &mut ModuleOptimizer,
        rate: ModuleLearningRate,
        gradients: GradientsParams,
    ) -> Self {
        Self(self.0.optimize(optimizer, rate, gradients))
    }
}

impl InferenceStep for AnyModel {
    type Input = AnyBatch;
    type Output = StepReport;

    fn step(&self, batch: AnyBatch) -> StepReport {
        self.0.inference_step(batch)
    }
}

#[cfg(test)]
mod tests {
    use burn::nn::{Linear, LinearConfig};

    use super::*;
    use crate::model::supervised::{Classifier, LabeledBatch};

    fn classifier() -> Classifier<Linear, 2> {
        let device = Device::flex().autodiff();
        Classifier::new(LinearConfig::new(4, 3).init(&device), Linear::forward)
    }

    fn batch() -> LabeledBatch<2> {
        let device = Device::flex().autodiff();
        (
            Tensor::ones([2, 4], &device),
            Tensor::from_data([0, 2], &device),
        )
    }

    #[test]
    fn a_boxed_model_has_the_parameters_and_steps_of_the_model() {
        let model = classifier();
        let boxed = AnyModel::new(model.clone());
        assert_eq!(boxed.num_params(), model.num_params());
        let paths = everburn_nn::parameter_paths(&model);
        assert_eq!(everburn_nn::parameter_paths(&boxed), paths);
        let own = TrainStep::step(&model, batch());
        let through = TrainStep::step(&boxed, AnyBatch::new(batch()));
        assert_eq!(own.item.sums().unwrap(), through.item.sums().unwrap());
        assert_eq!(own.grads.len(), through.grads.len());
        let opened = boxed.open::<Classifier<Linear, 2>>();
        let weights = |model: &Classifier<Linear, 2>| model.model().weight.val().into_data();
        assert_eq!(weights(&opened), weights(&model));
    }

    #[test]
    fn a_map_reaches_every_parameter_in_the_box() {
        struct Zero;
        impl ModuleMapper for Zero {
            fn map_float<const D: usize>(
                &mut self,
                param: burn::module::Param<Tensor<D>>,
            ) -> burn::module::Param<Tensor<D>> {
                param.map(|tensor| tensor.zeros_like())
            }
        }
        let zeroed = AnyModel::new(classifier()).map(&mut Zero);
        let zeroed = zeroed.open::<Classifier<Linear, 2>>();
        let sum = zeroed.model().weight.val().abs().sum().into_scalar::<f32>();
        assert!(sum.abs() < f32::EPSILON);
        let logits = zeroed.forward(Tensor::ones([1, 4], &Device::flex().autodiff()));
        assert_eq!(logits.dims(), [1, 3]);
    }
}
