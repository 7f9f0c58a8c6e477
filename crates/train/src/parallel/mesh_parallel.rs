//! A supervised model over the ranks of a mesh.

mod config;
mod groups;
mod pass;
mod shards;
mod tensor_communicator;

use std::marker::PhantomData;
use std::sync::Arc;

use burn::prelude::*;
use everburn_collectives::group::ProcessGroup;
use everburn_distributed::{
    Connector, Ddp, DdpError, GradientNorm, InitialValues, ShareOfBatch, SyncedGradients,
    verify_whole_parameters,
};
use everburn_nn::{
    Activation, InBlocks, TensorGroup, TensorRule, forget_shards, planned_shards, tensor_parallel,
};
use everburn_pipeline::{
    Pipeline, PipelineError, SharedParameters, distribute, distribute_initial_values, gather,
};
use everburn_record::units::counted;

pub use self::config::MeshParallelConfig;
use self::groups::Groups;
use self::pass::{TrainingPass, output_of, pass_times};
use self::shards::{Shards, held_by};
use self::tensor_communicator::TensorCommunicator;
use crate::checkpoint::optimizer_states;
use crate::config::activation_checkpointing::ActivationCheckpointing;
use crate::error::TrainError;
use crate::metrics::rank_times::PassTimes;
use crate::metrics::step_report::StepReport;
use crate::metrics::sums::MetricSums;
use crate::model::labels::checked;
use crate::model::objective::Objective;
use crate::model::supervised::Supervised;
use crate::parallel::mesh::{Axis, Coordinates, Mesh};
use crate::parallel::model::ParallelModel;

/// A model over the ranks of a [`Mesh`]: replicas of it, each in a pipeline of stages, whose layers are
/// cut over ranks.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; pub use everburn_models as models; pub use everburn_pipeline as pipeline; pub use everburn_train as train; }
/// use burn::prelude::*;
/// use everburn::collectives::group::GroupOptions;
/// use everburn::models::mnist::{Mnist, MnistConfig};
/// use everburn::pipeline::Stages;
/// use everburn::train::{Classification, Mesh, MeshParallel, MeshParallelConfig, data_parallel};
///
/// let devices = vec![Device::flex(); 4];
/// let model = MnistConfig::new().init(&devices[0]);
/// let places = data_parallel(&devices, GroupOptions::default(), |job, device| {
///     // Two stages, two replicas of each.
///     let mesh = Mesh { data: 2, pipeline: 2, tensor: 1 };
///     let config = MeshParallelConfig {
///         micro_batches: 4,
///         ..MeshParallelConfig::new(mesh, Stages::even(4, 2, 1).unwrap())
///     };
///     let over = MeshParallel::<Mnist, Classification<4>>::new(job, &model, config, device)?;
///     Ok(over.pipeline().group().rank())
/// });
/// assert_eq!(places.unwrap(), [0, 0, 1, 1]);
/// ```
pub struct MeshParallel<M, O> {
    mesh: Mesh,
    groups: Groups,
    pipeline: Pipeline,
    shared: SharedParameters,
    shards: Shards,
    tensor_communicator: TensorCommunicator,
    tensor_rules: Vec<TensorRule>,
    /// By parameter: the places in the pipeline that hold it.
    holders: Vec<(String, Vec<usize>)>,
    micro_batches: usize,
    device: Device,
    checkpointing: ActivationCheckpointing,
    overlap: bool,
    types: PhantomData<fn(M) -> O>,
}

impl<M, O> MeshParallel<M, O>
where
    M: InBlocks<Input = O::Input, Output = O::Output>,
    O: Objective<Input: Activation, Output: Activation>,
{
    /// Lays `model` over the ranks of `job`, all of which call it alike. `device` is this rank's, without
    /// autodiff.
    ///
    /// # Errors
    /// [`TrainError::Config`] if the mesh has not as many places as there are ranks, the stages do not
    /// fit the mesh or the model, its blocks do not name all its parameters, or its layers cannot be cut
    /// so; [`TrainError::Collective`] if the groups cannot be formed.
    pub fn new(
        job: ProcessGroup,
        model: &M,
        config: MeshParallelConfig,
        device: Device,
    ) -> Result<Self, TrainError> {
        config.agree(&job)?;
        let MeshParallelConfig { mesh, stages, .. } = config;
        let refuse = |reason: String| Err(TrainError::Config(reason));
        if mesh.world_size() != job.world_size() {
            let ranks = job.world_size();
            let places = mesh.world_size();
            return refuse(format!(
                "the mesh {mesh} has {} for {}",
                counted(places, "place"),
                counted(ranks, "rank")
            ));
        }
        if stages.ranks() != mesh.pipeline {
            let ranks = stages.ranks();
            return refuse(format!(
                "stages of {} do not fit the mesh {mesh}",
                counted(ranks, "rank")
            ));
        }
        let blocks = model.blocks();
        let config_error = |error: &dyn std::fmt::Display| TrainError::Config(error.to_string());
        let holders = stages
            .holders(model, &blocks)
            .map_err(|e| config_error(&e))?;
        let part = mesh.coordinates(job.rank()).tensor;
        let shards = match mesh.tensor {
            1 => Vec::new(),
            parts => planned_shards(model, &config.tensor_rules, part, parts)
                .map_err(|e| config_error(&e))?,
        };
        if mesh.tensor > 1 && shards.is_empty() {
            return refuse(format!(
                "the mesh {mesh} cuts layers, and the model has none that can be cut"
            ));
        }
        let groups = Groups::form(job, mesh)?;
        let shards = Shards::new(&holders, shards);
        let shared = SharedParameters::new(groups.pipeline.clone(), &holders)?;
        let shared = match mesh.tensor {
            1 => shared,
            _ => {
                shared.with_norm_over(groups.replica.clone(), |path| part == 0 || shards.has(path))
            }
        };
        let pipeline = Pipeline::new(groups.pipeline.clone(), config.schedule, stages)?;
        let every = config.activation_checkpointing.blocks_a_segment();
        Ok(Self {
            mesh,
            groups,
            pipeline: pipeline.recomputing(every),
            shared,
            shards,
            tensor_communicator: TensorCommunicator::default(),
            tensor_rules: config.tensor_rules,
            holders,
            micro_batches: config.micro_batches,
            device,
            checkpointing: config.activation_checkpointing,
            overlap: config.overlap,
            types: PhantomData,
        })
    }

    /// The stages of this rank's replica.
    pub fn pipeline(&self) -> &Pipeline {
        &self.pipeline
    }

    /// Where this rank stands.
    fn place(&self) -> Coordinates {
        self.mesh.coordinates(self.groups.job.rank())
    }

    /// The first rank at a place in the pipeline.
    fn first_at(&self, pipeline: usize) -> usize {
        let place = Coordinates::default();
        self.mesh.rank_of(place.with(Axis::Pipeline, pipeline))
    }

    /// By parameter, the ranks of the job that hold it, as `ranks` has them for a place in the pipeline.
    fn job_holders(&self, ranks: impl Fn(usize) -> Vec<usize>) -> Vec<(String, Vec<usize>)> {
        let holders = self.holders.iter().map(|(path, places)| {
            let ranks = places.iter().flat_map(|place| ranks(*place));
            (path.clone(), ranks.collect())
        });
        holders.collect()
    }

    /// What all ranks of a tensor group have computed alike counts on one.
    fn counted_once(&self, sums: MetricSums) -> MetricSums {
        match self.groups.job.rank() % self.mesh.tensor {
            0 => sums,
            _ => MetricSums::default(),
        }
    }
}

impl<M, O> ParallelModel<Supervised<M, O>, (O::Input, O::Targets)> for MeshParallel<M, O>
where
    M: InBlocks<Input = O::Input, Output = O::Output> + 'static,
    O: Objective<Input: Activation, Output: Activation>,
{
    fn replicas(&self) -> &ProcessGroup {
        &self.groups.data
    }

    fn micro_batches(&self) -> usize {
        self.micro_batches
    }

    fn cuts_layers(&self) -> bool {
        self.mesh.tensor > 1
    }

    fn prepare(
        &self,
        model: Supervised<M, O>,
        values: Option<&dyn InitialValues>,
        connector: Option<&Connector>,
    ) -> Result<Supervised<M, O>, TrainError> {
        let holders = self.job_holders(|place| {
            let ranks = 0..self.mesh.world_size();
            let at_place = |rank: &usize| self.mesh.coordinates(*rank).pipeline == place;
            ranks.filter(at_place).collect()
        });
        let job = &self.groups.job;
        let model = match values {
            None => distribute(model, job, &holders)?,
            Some(values) => distribute_initial_values(model, job, &holders, values)?,
        };
        if self.mesh.tensor == 1 {
            return Ok(model);
        }
        let ranks = self.tensor_communicator.connect(&self.groups, connector)?;
        let ranks: Arc<dyn TensorGroup> = Arc::new(ranks);
        let cut = tensor_parallel(model, &self.tensor_rules, &ranks);
        Ok(cut.map_err(DdpError::from)?)
    }

    fn random_stream(&self) -> usize {
        self.groups.job.rank() / self.mesh.tensor
    }

    fn verify(&self, model: &Supervised<M, O>) -> Result<(), TrainError> {
        self.tensor_communicator.settle()?;
        self.shared.verify(model)?;
        match self.mesh.tensor {
            1 => Ok(()),
            _ => Ok(verify_whole_parameters(model, &self.groups.tensor)?),
        }
    }

    fn step(
        &self,
        model: &Supervised<M, O>,
        share: ShareOfBatch<(O::Input, O::Targets)>,
        ddp: &Ddp,
        max_gradient_norm: Option<f64>,
    ) -> Result<(SyncedGradients, MetricSums, PassTimes), TrainError> {
        let step = ddp.begin(share.weight)?;
        let weights = share.micro_batches.iter().map(|part| part.weight);
        let mut pass = TrainingPass::<M, O> {
            model: model.model(),
            step: &step,
            overlap: self.overlap,
            weights: weights.collect(),
            inputs: Vec::new(),
            targets: Vec::new(),
            sums: Ok(MetricSums::default()),
        };
        // Which of several micro-batches a label is of, the pass does not say.
        let samples = match &share.micro_batches[..] {
            [part] => part.indices.clone(),
            _ => Vec::new(),
        };
        for part in share.micro_batches {
            let (input, targets) = part.batch;
            pass.inputs.push(Some(input));
            pass.targets.push(Some(targets));
        }
        let micro_batches = pass.weights.len();
        let mut result = Ok(PassTimes::default());
        if micro_batches > 0 {
            let blocks = model.model().blocks();
            let device = self.checkpointing.autodiff(self.device.clone());
            let ran = checked(true, &samples, "the training", || {
                self.pipeline
                    .run(&blocks, &device, micro_batches, &mut pass)
            });
            result = ran.and_then(|ran| Ok(pass_times(&ran?)));
        }
        let passed = result.and_then(|times| Ok((times, pass.sums?)));
        let (times, sums) = match passed {
            Ok(passed) => passed,
            Err(error) => {
                step.give_up(&error.to_string());
                return Err(error);
            }
        };
        let mut synced = step.finish(model)?;
        self.tensor_communicator.check()?;
        synced.gradients = self.shared.sum(model, synced.gradients)?;
        if let Some(max) = max_gradient_norm {
            let (gradients, norm) = self.shared.clip(model, synced.gradients, max)?;
            (synced.gradients, synced.norm) = (gradients, Some(GradientNorm::known(norm)));
        }
        Ok((synced, self.counted_once(sums), times))
    }

    fn infer(
        &self,
        model: &Supervised<M, O>,
        batch: (O::Input, O::Targets),
    ) -> Result<Option<StepReport>, TrainError> {
        let (input, targets) = batch;
        let blocks = model.model().blocks();
        let output = self
            .pipeline
            .infer(&blocks, model.model(), &self.device, || Box::new(input))?;
        // What all ranks of a tensor group have computed alike counts on one.
        let counts = self.groups.job.rank().is_multiple_of(self.mesh.tensor);
        let output = output.filter(|_| counts);
        let report = output.map(|output| O::loss(output_of::<O>(output), targets).report());
        self.tensor_communicator.check()?;
        Ok(report)
    }

    fn gather(&self, model: Supervised<M, O>) -> Result<Supervised<M, O>, TrainError> {
        self.tensor_communicator.settle()?;
        // The whole model may be too large for a rank's device.
        let host = Device::flex();
        let model = self.shards.join(model, &self.groups.tensor, &host)?;
        let holders = self.job_holders(|place| vec![self.first_at(place)]);
        let model = gather(model, &self.groups.job, &holders, &host)?;
        Ok(match self.groups.job.rank() {
            0 => forget_shards(model),
            _ => model,
        })
    }

    fn part_of_optimizer(
        &self,
        model: &Supervised<M, O>,
        whole: Vec<u8>,
    ) -> Result<Vec<u8>, TrainError> {
        let own = optimizer_states::keep_only(whole, &held_by(model))?;
        optimizer_states::shard(own, &self.shards.by_id(model))
    }

    fn gather_optimizer(
        &self,
        model: &Supervised<M, O>,
        part: Vec<u8>,
    ) -> Result<Vec<u8>, TrainError> {
        let Groups { job, tensor, .. } = &self.groups;
        let place = self.place();
        if place.data > 0 {
            return Ok(Vec::new());
        }
        if place.tensor > 0 {
            tensor.send(part, 0, OPTIMIZER).wait()?;
            return Ok(Vec::new());
        }
        let mut parts = vec![part];
        for other in 1..self.mesh.tensor {
            parts.push(tensor.recv::<u8>(other, OPTIMIZER).wait()?);
        }
        let stage = optimizer_states::join(parts, &self.shards.by_id(model))?;
        if place.pipeline > 0 {
            job.send(stage, 0, OPTIMIZER).wait()?;
            return Ok(Vec::new());
        }
        let mut stages = vec![stage];
        for place in 1..self.mesh.pipeline {
            let part = job.recv::<u8>(self.first_at(place), OPTIMIZER);
            stages.push(part.wait()?);
        }
        optimizer_states::merge(stages)
    }
}

/// The tag of messages with parts of an optimizer's state.
const OPTIMIZER: u64 = 1 << 60;

impl From<PipelineError> for TrainError {
    fn from(error: PipelineError) -> Self {
        match error {
            PipelineError::Collective(error) => Self::Collective(error),
            error => Self::Pipeline(Arc::new(error)),
        }
    }
}
