//! A supervised model in a pipeline of stages over ranks.

use std::marker::PhantomData;
use std::sync::Arc;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::prelude::*;
use everburn_collectives::group::ProcessGroup;
use everburn_distributed::{Ddp, ShareOfBatch, SyncedGradients, Synchronization};
use everburn_nn::{Activation, AnyActivation, InBlocks};
use everburn_pipeline::{
    Pipeline, PipelineError, PipelinePass, SharedParameters, Stages, distribute, gather,
};
use everburn_schedules::ScheduleKind;

use crate::activation_checkpointing::ActivationCheckpointing;
use crate::error::TrainError;
use crate::model_over_ranks::ModelOverRanks;
use crate::objective::Objective;
use crate::optimizer_states;
use crate::supervised::Supervised;
use crate::tally::{Report, Tally};

/// A model in a pipeline of stages, and replicas of it: the ranks of a job are arranged as
/// `pipeline` x `data`, with the replicas of a stage next to each other: rank `p * data + d` has the
/// stages of place `p` in replica `d`.
///
/// ```
/// use std::sync::Arc;
///
/// use burn::prelude::*;
/// use everburn_collectives::group::{GroupOptions, ProcessGroup};
/// use everburn_models::mnist::{Mnist, MnistConfig};
/// use everburn_pipeline::Stages;
/// use everburn_schedules::ScheduleKind;
/// use everburn_train::{Classification, PipelineParallel, data_parallel};
///
/// let devices = vec![Device::flex(); 4];
/// let model = MnistConfig::new().init(&devices[0]);
/// let places = data_parallel(&devices, GroupOptions::default(), |job, device| {
///     // Two stages, two replicas of each.
///     let stages = Stages::even(4, 2, 1).unwrap();
///     let kind = ScheduleKind::OneForwardOneBackward;
///     let parallel = PipelineParallel::<Mnist, Classification<4>>::new(
///         job, &model, stages, kind, 4, None, device,
///     )?;
///     Ok(parallel.pipeline().group().rank())
/// });
/// assert_eq!(places.unwrap(), [0, 0, 1, 1]);
/// ```
pub struct PipelineParallel<M, O> {
    job: ProcessGroup,
    replicas: ProcessGroup,
    pipeline: Pipeline,
    shared: SharedParameters,
    /// By parameter: the ranks of the pipeline that hold it.
    holders: Vec<(String, Vec<usize>)>,
    micro_batches: usize,
    max_gradient_norm: Option<f64>,
    device: Device,
    checkpointing: ActivationCheckpointing,
    types: PhantomData<fn(M) -> O>,
}

impl<M, O> PipelineParallel<M, O>
where
    M: InBlocks<Input = O::Input, Output = O::Output>,
    O: Objective<Input: Activation, Output: Activation>,
{
    /// Cuts `model` into `stages` over the ranks of `job`, all of which call it alike. Steps run by a
    /// schedule of `kind` over `micro_batches`; `device` is this rank's, without autodiff.
    ///
    /// # Errors
    /// [`TrainError::Config`] if the stages do not fit the ranks or the model, or its blocks do not
    /// name all its parameters; [`TrainError::Collective`] if the groups cannot be formed.
    pub fn new(
        job: ProcessGroup,
        model: &M,
        stages: Stages,
        kind: ScheduleKind,
        micro_batches: usize,
        max_gradient_norm: Option<f32>,
        device: Device,
    ) -> Result<Self, TrainError> {
        let (ranks, all) = (stages.ranks(), job.world_size());
        if !all.is_multiple_of(ranks) {
            return Err(TrainError::Config(format!(
                "{all} ranks cannot be arranged in pipelines of {ranks}"
            )));
        }
        let data = all / ranks;
        let blocks = model.blocks();
        let holders = stages.holders(model, &blocks);
        let holders = holders.map_err(|error| TrainError::Config(error.to_string()))?;
        let (place, replica) = (job.rank() / data, job.rank() % data);
        // Every rank takes part in the making of every group.
        let mut replicas = None;
        for place_of in 0..ranks {
            let members = (0..data).map(|d| place_of * data + d).collect::<Vec<_>>();
            let group = job.subgroup(&members)?;
            if place_of == place {
                replicas = group;
            }
        }
        let mut own = None;
        for replica_of in 0..data {
            let members = (0..ranks)
                .map(|p| p * data + replica_of)
                .collect::<Vec<_>>();
            let group = job.subgroup(&members)?;
            if replica_of == replica {
                own = group;
            }
        }
        let (Some(replicas), Some(own)) = (replicas, own) else {
            return Err(TrainError::Config("a rank is in no pipeline".to_string()));
        };
        let shared = SharedParameters::new(own.clone(), &holders)?;
        Ok(Self {
            pipeline: Pipeline::new(own, kind, stages)?,
            job,
            replicas,
            shared,
            holders,
            micro_batches,
            max_gradient_norm: max_gradient_norm.map(f64::from),
            device,
            checkpointing: ActivationCheckpointing::None,
            types: PhantomData,
        })
    }

    /// The same, whose backward passes compute again what `checkpointing` says.
    #[must_use]
    pub fn recomputing(self, checkpointing: ActivationCheckpointing) -> Self {
        let every = checkpointing.blocks_a_segment();
        Self {
            pipeline: self.pipeline.recomputing(every),
            checkpointing,
            ..self
        }
    }

    /// The stages of this rank's replica.
    pub fn pipeline(&self) -> &Pipeline {
        &self.pipeline
    }

    /// By parameter, the ranks of the job that hold it: of the first replica, or of all.
    fn job_holders(&self, replicas: usize) -> Vec<(String, Vec<usize>)> {
        let data = self.replicas.world_size();
        let holders = self.holders.iter().map(|(path, places)| {
            let ranks = places.iter().flat_map(|place| {
                let first = place * data;
                first..first + replicas
            });
            (path.clone(), ranks.collect())
        });
        holders.collect()
    }
}

impl<M, O> ModelOverRanks<Supervised<M, O>, (O::Input, O::Targets)> for PipelineParallel<M, O>
where
    M: InBlocks<Input = O::Input, Output = O::Output> + 'static,
    O: Objective<Input: Activation, Output: Activation>,
{
    fn replicas(&self) -> &ProcessGroup {
        &self.replicas
    }

    fn micro_batches(&self) -> usize {
        self.micro_batches
    }

    fn prepare(&self, model: Supervised<M, O>) -> Result<Supervised<M, O>, TrainError> {
        let holders = self.job_holders(self.replicas.world_size());
        Ok(distribute(model, &self.job, &holders)?)
    }

    fn holds(&self, model: &Supervised<M, O>) -> Vec<ParamId> {
        struct Held(Vec<ParamId>);
        impl ModuleVisitor for Held {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if param.lazy_shape().num_elements() > 0 {
                    self.0.push(param.id);
                }
            }
        }
        let mut held = Held(Vec::new());
        model.visit(&mut held);
        held.0
    }

    fn step(
        &self,
        model: &Supervised<M, O>,
        share: ShareOfBatch<(O::Input, O::Targets)>,
        ddp: &Ddp,
    ) -> Result<(SyncedGradients, Tally), TrainError> {
        let step = ddp.begin(share.samples)?;
        let samples = share.micro_batches.iter().map(|part| part.samples);
        let mut pass = TrainingPass::<M, O> {
            model: model.model(),
            step: &step,
            samples: samples.collect(),
            inputs: Vec::new(),
            targets: Vec::new(),
            tally: Ok(Tally::default()),
        };
        for part in share.micro_batches {
            let (input, targets) = part.batch;
            pass.inputs.push(Some(input));
            pass.targets.push(Some(targets));
        }
        let micro_batches = pass.samples.len();
        let mut result = Ok(());
        if micro_batches > 0 {
            let blocks = model.model().blocks();
            let device = self.checkpointing.autodiff(self.device.clone());
            let ran = self
                .pipeline
                .run(&blocks, &device, micro_batches, &mut pass);
            result = ran.map(drop).map_err(TrainError::from);
        }
        let tally = result.and(pass.tally);
        let tally = match tally {
            Ok(tally) => tally,
            Err(error) => {
                step.give_up(&error.to_string());
                return Err(error);
            }
        };
        let mut synced = step.finish(model)?;
        synced.gradients = self.shared.sum(model, synced.gradients)?;
        if let Some(max) = self.max_gradient_norm {
            let (gradients, norm) = self.shared.clip(model, synced.gradients, max)?;
            (synced.gradients, synced.norm) = (gradients, Some(norm));
        }
        Ok((synced, tally))
    }

    fn infer(
        &self,
        model: &Supervised<M, O>,
        batch: (O::Input, O::Targets),
    ) -> Result<Tally, TrainError> {
        let (input, targets) = batch;
        let blocks = model.model().blocks();
        let output = self
            .pipeline
            .infer(&blocks, model.model(), &self.device, || Box::new(input))?;
        match output {
            None => Ok(Tally::default()),
            Some(output) => {
                let report = O::loss(output_of::<O>(output), targets).report();
                report
                    .local()
                    .map_err(|error| TrainError::Device(error.to_string()))
            }
        }
    }

    fn gather(&self, model: Supervised<M, O>) -> Result<Supervised<M, O>, TrainError> {
        Ok(gather(
            model,
            &self.job,
            &self.job_holders(1),
            &self.device,
        )?)
    }

    fn gather_optimizer(&self, part: Vec<u8>) -> Result<Vec<u8>, TrainError> {
        let is_first_replica = self.replicas.rank() == 0;
        let part = if is_first_replica { part } else { Vec::new() };
        let mut parts = match self.job.rank() {
            0 => vec![part],
            _ if is_first_replica => {
                self.job.send(part, 0, OPTIMIZER).wait()?;
                return Ok(Vec::new());
            }
            _ => return Ok(Vec::new()),
        };
        let data = self.replicas.world_size();
        for place in 1..self.pipeline.stages().ranks() {
            parts.push(self.job.recv::<u8>(place * data, OPTIMIZER).wait()?);
        }
        optimizer_states::merge(parts)
    }
}

/// The tag of messages with parts of an optimizer's state.
const OPTIMIZER: u64 = 1 << 60;

/// What happens in a step outside of the stages.
struct TrainingPass<'a, M, O: Objective> {
    model: &'a M,
    step: &'a Synchronization,
    /// By micro-batch.
    samples: Vec<usize>,
    inputs: Vec<Option<O::Input>>,
    targets: Vec<Option<O::Targets>>,
    tally: Result<Tally, TrainError>,
}

impl<M, O> PipelinePass<M> for TrainingPass<'_, M, O>
where
    M: Module,
    O: Objective<Input: Activation, Output: Activation>,
{
    fn model(&mut self, micro_batch: usize) -> M {
        let samples = self.samples[micro_batch];
        if micro_batch + 1 == self.samples.len() {
            self.step.watch_last(self.model, samples)
        } else {
            self.step.watch(self.model, samples)
        }
    }

    fn input(&mut self, micro_batch: usize) -> Box<dyn AnyActivation> {
        let input = self.inputs[micro_batch].take();
        Box::new(input.expect("the first stage takes each micro-batch once"))
    }

    fn loss(&mut self, micro_batch: usize, output: Box<dyn AnyActivation>) -> Tensor<1> {
        let targets = self.targets[micro_batch].take();
        let targets = targets.expect("the last stage yields each micro-batch once");
        let loss = O::loss(output_of::<O>(output), targets);
        let report = loss.report().local();
        let report = report.map_err(|error| TrainError::Device(error.to_string()));
        match (&mut self.tally, report) {
            (Ok(tally), Ok(part)) => *tally += part,
            (tally @ Ok(_), Err(error)) => *tally = Err(error),
            (Err(_), _) => {}
        }
        loss.mean
    }
}

/// What the last block has yielded.
fn output_of<O: Objective<Output: Activation>>(output: Box<dyn AnyActivation>) -> O::Output {
    let output = output.into_any().downcast::<O::Output>();
    *output.expect("the blocks of the model end with the objective's output")
}

impl From<PipelineError> for TrainError {
    fn from(error: PipelineError) -> Self {
        match error {
            PipelineError::Collective(error) => Self::Collective(error),
            error => Self::Pipeline(Arc::new(error)),
        }
    }
}
