//! Tasks whose models are lists of blocks.

use std::any::Any;
use std::sync::Arc;

use burn::prelude::*;
use burn::tensor::{Int, TensorData};
use everburn_collectives::group::ProcessGroup;
use everburn_nn::{
    Activation, ActivationError, AnyActivation, DeviceSplit, InBlocks, ParameterPath,
    ParameterShard, PlacementError, TensorParallel, TensorParallelError, parameter_counts,
    parameter_paths, planned_shards, split_by_time,
};

use super::Task;
use crate::config::activation_checkpointing::ActivationCheckpointing;
use crate::error::TrainError;
use crate::model::erased::{AnyModel, AnyModelOverRanks, erase_over_ranks};
use crate::model::objective::{Loss, Objective};
use crate::model::supervised::Supervised;
use crate::parallel::mesh_parallel::{MeshParallel, MeshParallelConfig};

/// How many samples blocks are timed on where a model is cut over devices: the shares hardly change with more.
const TIMED_SAMPLES: usize = 8;

/// What a task can do besides because its model is a list of blocks: pipelines and meshes, several devices of
/// one rank, activation checkpointing, plans.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::{BlocksOf, Task};
///
/// fn has_blocks<T: Task>(task: &T) -> bool {
///     let blocks: Option<BlocksOf<T>> = task.blocks();
///     blocks.is_some()
/// }
/// ```
pub struct BlocksOf<T: Task>(pub(super) Arc<dyn BlockTask<T>>);

impl<T: Task> BlocksOf<T> {
    /// The blocks of the task's model, whose output an [`Objective`] measures. `example` makes an input of so
    /// many samples, of which the values do not matter.
    pub fn new<O>(example: Example<T, O::Input>) -> Self
    where
        O: Objective<Input: Activation, Output: Activation>,
        T: Task<Batch = (O::Input, O::Targets)>,
        T::Model: TensorParallel<Input = O::Input, Output = O::Output>,
    {
        Self(Arc::new(WithObjective::<T, O> { example }))
    }
}

/// Makes an input of this many samples for a model of a task with these settings.
type Example<T, I> = fn(&T, &<T as Task>::Config, usize, &Device) -> I;

/// The loss of a model in blocks: [`Task::loss`] of a task with blocks.
pub fn block_loss<M, O>(model: &M, (input, targets): (O::Input, O::Targets)) -> Loss
where
    M: InBlocks<Input = O::Input, Output = O::Output>,
    O: Objective<Input: Activation, Output: Activation>,
{
    O::loss(model.blocks().forward(model, input), targets)
}

/// The blocks of a model, as far as they are known before anything is drawn.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::ModelBlocks;
///
/// fn show(blocks: &ModelBlocks) {
///     println!("{}", blocks.names.join(", "));
/// }
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct ModelBlocks {
    /// Their names, in order.
    pub names: Vec<String>,
    /// How many numbers the parameters and buffers of each have; those of several blocks count for the first.
    pub numbers: Vec<f64>,
    /// The parameters, each with the blocks that use it.
    pub parameters: Vec<(ParameterPath, Vec<usize>)>,
}

/// The blocks of a model that was drawn.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; pub use everburn_train as train; }
/// use everburn::nn::AnyActivation;
/// use everburn::train::DrawnBlocks;
///
/// fn first(blocks: &dyn DrawnBlocks, input: Box<dyn AnyActivation>) -> Box<dyn AnyActivation> {
///     blocks.run(0, input)
/// }
/// ```
pub trait DrawnBlocks {
    /// Runs the block of this number.
    fn run(&self, block: usize, input: Box<dyn AnyActivation>) -> Box<dyn AnyActivation>;

    /// What the block of this number takes, from the values that the block before it has yielded.
    ///
    /// # Errors
    /// If the values are not what the block takes.
    fn input_of(
        &self,
        block: usize,
        values: Vec<TensorData>,
        device: &Device,
    ) -> Result<Box<dyn AnyActivation>, ActivationError>;
}

/// What is done with the blocks of a task's model, without the objective's type.
pub(super) trait BlockTask<T: Task>: Send + Sync {
    fn supervised(&self, model: T::Model) -> AnyModel;

    /// The task's own module in a model of [`supervised`](Self::supervised).
    fn model<'a>(&self, model: &'a AnyModel) -> &'a T::Model;

    fn checkpointed(&self, model: AnyModel, checkpointing: ActivationCheckpointing) -> AnyModel;

    fn on_devices(
        &self,
        of: (&T, &T::Config),
        model: AnyModel,
        devices: &[Device],
        checkpointing: ActivationCheckpointing,
    ) -> Result<(AnyModel, DeviceSplit), TrainError>;

    fn over_ranks(
        &self,
        group: ProcessGroup,
        model: &AnyModel,
        config: MeshParallelConfig,
        device: Device,
    ) -> Result<AnyModelOverRanks, TrainError>;

    fn list(&self, model: &T::Model) -> ModelBlocks;

    fn shards(
        &self,
        model: &T::Model,
        parts: usize,
    ) -> Result<Vec<ParameterShard>, TensorParallelError>;

    fn input(
        &self,
        of: (&T, &T::Config),
        samples: usize,
        device: &Device,
    ) -> Box<dyn AnyActivation>;

    fn drawn(&self, model: T::Model) -> Box<dyn DrawnBlocks>;

    fn is_split(&self, model: &AnyModel) -> bool;

    /// What a text model yields, wherever its blocks are.
    ///
    /// # Panics
    /// Panics if the model does not turn tokens into scores.
    fn scores(&self, model: &AnyModel, tokens: Tensor<2, Int>) -> Tensor<3>;
}

struct WithObjective<T: Task, O: Objective> {
    example: Example<T, O::Input>,
}

impl<T, O> BlockTask<T> for WithObjective<T, O>
where
    O: Objective<Input: Activation, Output: Activation>,
    T: Task<Batch = (O::Input, O::Targets)>,
    T::Model: TensorParallel<Input = O::Input, Output = O::Output>,
{
    fn supervised(&self, model: T::Model) -> AnyModel {
        AnyModel::new(Supervised::<T::Model, O>::of_blocks(model))
    }

    fn model<'a>(&self, model: &'a AnyModel) -> &'a T::Model {
        model.inner::<Supervised<T::Model, O>>().model()
    }

    fn checkpointed(&self, model: AnyModel, checkpointing: ActivationCheckpointing) -> AnyModel {
        let model = model.open::<Supervised<T::Model, O>>().into_model();
        AnyModel::new(Supervised::<T::Model, O>::of_checkpointed_blocks(
            model,
            checkpointing,
        ))
    }

    fn on_devices(
        &self,
        (task, config): (&T, &T::Config),
        model: AnyModel,
        devices: &[Device],
        checkpointing: ActivationCheckpointing,
    ) -> Result<(AnyModel, DeviceSplit), TrainError> {
        let model = model.open::<Supervised<T::Model, O>>().into_model();
        let input = (self.example)(task, config, TIMED_SAMPLES, &devices[0]);
        let (model, split) = split_by_time(model, devices, input).map_err(|error| match error {
            PlacementError::Measure { .. } => TrainError::Device(error.to_string()),
            error => TrainError::Config(error.to_string()),
        })?;
        let split = split.recomputing(checkpointing.blocks_a_segment());
        let placed = Supervised::<T::Model, O>::on_devices(model, split.clone());
        Ok((AnyModel::new(placed), split))
    }

    fn over_ranks(
        &self,
        group: ProcessGroup,
        model: &AnyModel,
        config: MeshParallelConfig,
        device: Device,
    ) -> Result<AnyModelOverRanks, TrainError> {
        let supervised = model.inner::<Supervised<T::Model, O>>();
        let config = MeshParallelConfig {
            tensor_rules: supervised.model().tensor_rules(),
            ..config
        };
        let over = MeshParallel::<T::Model, O>::new(group, supervised.model(), config, device)?;
        Ok(erase_over_ranks::<Supervised<T::Model, O>>(Arc::new(over)))
    }

    fn list(&self, model: &T::Model) -> ModelBlocks {
        let blocks = model.blocks();
        let parameters = parameter_paths(model).into_iter().map(|parameter| {
            let users = blocks.users_of(&parameter.path);
            (parameter, users)
        });
        ModelBlocks {
            names: blocks
                .names()
                .into_iter()
                .map(ToString::to_string)
                .collect(),
            numbers: parameter_counts(model),
            parameters: parameters.collect(),
        }
    }

    fn shards(
        &self,
        model: &T::Model,
        parts: usize,
    ) -> Result<Vec<ParameterShard>, TensorParallelError> {
        planned_shards(model, &model.tensor_rules(), 0, parts)
    }

    fn input(
        &self,
        of: (&T, &T::Config),
        samples: usize,
        device: &Device,
    ) -> Box<dyn AnyActivation> {
        Box::new((self.example)(of.0, of.1, samples, device))
    }

    fn drawn(&self, model: T::Model) -> Box<dyn DrawnBlocks> {
        Box::new(Drawn(model))
    }

    fn is_split(&self, model: &AnyModel) -> bool {
        model.inner::<Supervised<T::Model, O>>().is_split()
    }

    fn scores(&self, model: &AnyModel, tokens: Tensor<2, Int>) -> Tensor<3> {
        let tokens: Box<dyn Any> = Box::new(tokens);
        let tokens = tokens.downcast::<O::Input>();
        let tokens = tokens.expect("a text model takes tokens");
        let output = model.inner::<Supervised<T::Model, O>>().forward(*tokens);
        let output: Box<dyn Any> = Box::new(output);
        *output.downcast().expect("a text model yields scores")
    }
}

struct Drawn<M>(M);

impl<M: InBlocks> DrawnBlocks for Drawn<M> {
    fn run(&self, block: usize, input: Box<dyn AnyActivation>) -> Box<dyn AnyActivation> {
        self.0.blocks().run(&self.0, block..block + 1, input)
    }

    fn input_of(
        &self,
        block: usize,
        values: Vec<TensorData>,
        device: &Device,
    ) -> Result<Box<dyn AnyActivation>, ActivationError> {
        self.0.blocks().input_of(block, values, device)
    }
}
