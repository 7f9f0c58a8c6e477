//! What changes while a model trains, to and from a checkpoint.

use std::collections::{BTreeMap, HashMap};

use burn::lr_scheduler::LrSchedulerRecord;
use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn::module::{Module, ParamId};
use burn::optim::{ModuleOptimizer, OptimizerRecord};
use burn::store::{ModuleRecord, RecordError};
use burn::tensor::{Bytes, TensorData};
use burn_pack::Writer;
use everburn_collectives::group::ProcessGroup;
use everburn_distributed::{OuterLoop, RankBuffers};
use everburn_nn::{ParameterPath, parameter_identities};
use sha2::{Digest, Sha256};

use crate::checkpoint::ema::{Keepers, MovingAverage};
use crate::checkpoint::optimizer_states;
use crate::checkpoint::other_model::Shapes;
use crate::checkpoint::snapshot::{Averaged, OptimizerState, Snapshot, parameters_of};
use crate::checkpoint::tensor_file::{self, NamedTensor, TensorView};
use crate::checkpoint::{Checkpoint, Progress};
use crate::config::TrainingConfig;
use crate::error::TrainError;

pub(crate) const MODEL: &str = "model.safetensors";
pub(crate) const OPTIMIZER: &str = "optimizer.safetensors";
pub(crate) const SCHEDULER: &str = "scheduler.bpk";
pub(crate) const EMA: &str = "ema.safetensors";
pub(crate) const OUTER: &str = "outer.safetensors";
pub(crate) const BUFFERS: &str = "buffers.safetensors";

/// The name in [`BUFFERS`] of how many samples each rank has had.
const SAMPLES: &str = "samples";

/// What changes with every step, besides the model.
pub(crate) struct TrainingState {
    pub(crate) optimizer: ModuleOptimizer,
    /// The optimizer is the task's own.
    pub(crate) own_optimizer: bool,
    /// The schedule is the task's own.
    pub(crate) own_schedule: bool,
    pub(crate) scheduler: ModuleLrScheduler,
    /// The scheduler before the first step.
    first: ModuleLrScheduler,
    /// What ranks have in common that take many steps by themselves, once they have met.
    pub(crate) outer: Option<OuterLoop>,
    /// The moving average of the parameters, once the ranks have met.
    pub(crate) ema: Option<MovingAverage>,
    /// The running statistics of the ranks, while a checkpoint is written in which they differ.
    pub(crate) buffers: Option<RankBuffers>,
    /// What a checkpoint knew of these, until then.
    pub(crate) waiting: Waiting,
}

/// What a checkpoint says of things that are made when the ranks have met.
#[derive(Default)]
pub(crate) struct Waiting {
    pub(crate) outer: Vec<NamedTensor>,
    /// What differences that were rounded have lost is owed by another rank.
    pub(crate) another_owes: bool,
    /// A model with averaged parameters, as the checkpoint has it.
    pub(crate) ema: Option<Vec<u8>>,
    /// The running statistics of the ranks, where they differed.
    pub(crate) buffers: Option<RankBuffers>,
}

impl TrainingState {
    pub(crate) fn new(optimizer: ModuleOptimizer, scheduler: ModuleLrScheduler) -> Self {
        Self {
            optimizer,
            own_optimizer: false,
            own_schedule: false,
            first: scheduler.clone(),
            scheduler,
            outer: None,
            ema: None,
            buffers: None,
            waiting: Waiting::default(),
        }
    }

    /// The state at this moment, of which nothing is copied yet; `optimizer` stands for this rank's own where
    /// several ranks have parts of its state, `averaged` for the average that this rank keeps.
    pub(crate) fn snapshot<M: Module>(
        &self,
        model: &M,
        optimizer: Option<Vec<u8>>,
        averaged: Option<&M>,
        progress: Progress,
    ) -> Result<Snapshot, TrainError> {
        let scheduler = self.scheduler.to_record().into_bytes();
        let scheduler = scheduler.map_err(|error| refuse(&progress, &error.to_string()))?;
        let optimizer = match optimizer {
            Some(record) => OptimizerState::Gathered(record),
            None => OptimizerState::Here(Box::new(self.optimizer.clone())),
        };
        let averaged = match (averaged, &self.ema) {
            (Some(averaged), _) => Some(Averaged::Held(parameters_of(averaged))),
            (None, Some(ema)) => {
                let here = ema.here(model);
                here.map(|averaged| Averaged::Held(parameters_of(&averaged)))
            }
            (None, None) => self.waiting.ema.clone().map(Averaged::Read),
        };
        let outer = match &self.outer {
            Some(outer) => outer.state(),
            None => self.waiting.outer.clone(),
        };
        Ok(Snapshot {
            parameters: parameters_of(model),
            optimizer,
            scheduler: scheduler.to_vec(),
            averaged,
            outer,
            buffers: self.buffers.as_ref().map_or_else(Vec::new, named_buffers),
            progress,
        })
    }

    /// A checkpoint of this moment, read at once: for what is handed to another rank.
    pub(crate) fn checkpoint<M: Module>(
        &self,
        model: &M,
        progress: Progress,
    ) -> Result<Checkpoint, TrainError> {
        let snapshot = self.snapshot(model, None, None, progress)?;
        snapshot.into_checkpoint()
    }

    /// This rank's state of the optimizer, as Burn records it.
    pub(crate) fn optimizer_bytes(&self) -> Result<Vec<u8>, TrainError> {
        let bytes = self.optimizer.to_record().into_bytes();
        let bytes = bytes.map_err(|error| TrainError::BurnTrain(error.to_string()))?;
        Ok(bytes.to_vec())
    }

    /// Takes over an optimizer's state, as [`optimizer_bytes`](Self::optimizer_bytes) gives it.
    pub(crate) fn load_optimizer(&mut self, bytes: Vec<u8>) -> Result<(), TrainError> {
        let record = OptimizerRecord::from_bytes(Bytes::from_bytes_vec(bytes));
        let record = record.map_err(|error| TrainError::BurnTrain(error.to_string()))?;
        let fresh = self.optimizer.clone().load_record(record);
        self.optimizer = fresh;
        Ok(())
    }

    /// Puts the schedule, which has another length than when they were made, after this many steps. Returns whether a rate of
    /// the next `left` steps is another by it.
    pub(crate) fn stretch_schedule(&mut self, steps: usize, left: usize) -> bool {
        let mut before = self.scheduler.clone();
        self.scheduler = self.first.clone();
        for _ in 0..steps {
            self.scheduler.step();
        }
        let mut after = self.scheduler.clone();
        (0..left).any(|_| after.step().base() != before.step().base())
    }

    /// Takes over the state of a checkpoint; returns the model with its parameters.
    pub(crate) fn restore<M: Module>(
        &mut self,
        model: M,
        checkpoint: &Checkpoint,
    ) -> Result<M, TrainError> {
        let model = with_parameters(model, checkpoint)?;
        let progress = &checkpoint.progress;
        let failed = |error: RecordError| refuse(progress, &error.to_string());
        let ids = parameter_identities(&model).into_iter();
        let ids = ids.map(|(own, id)| (own.path, id.val())).collect();
        let entries = tensors_of(checkpoint, OPTIMIZER)?;
        let optimizer = optimizer_states::of_paths(&entries, &ids)
            .map_err(|reason| refuse(progress, &reason))?;
        let optimizer = OptimizerRecord::from_bytes(Bytes::from_bytes_vec(optimizer));
        let optimizer = optimizer.map_err(failed)?;
        self.optimizer = self.optimizer.clone().load_record(optimizer);
        // Burn passes over what it cannot use, and the optimizer would start from nothing. Tensors are not enough to see
        // it: that of SGD without momentum has only numbers.
        let kept = optimizer_states::num_entries(self.optimizer_bytes()?)?;
        if kept != entries.len() {
            return Err(refuse(progress, "it holds the state of another optimizer"));
        }
        let scheduler = bytes_of(checkpoint, SCHEDULER)?.to_vec();
        let scheduler =
            LrSchedulerRecord::from_bytes(Bytes::from_bytes_vec(scheduler)).map_err(failed)?;
        self.scheduler = self.scheduler.clone().load_record(scheduler);
        (self.outer, self.ema) = (None, None);
        self.waiting = Waiting {
            outer: match checkpoint.files.contains_key(OUTER) {
                true => named_tensors(checkpoint, OUTER)?,
                false => Vec::new(),
            },
            another_owes: false,
            ema: checkpoint.files.get(EMA).cloned(),
            buffers: match checkpoint.files.contains_key(BUFFERS) {
                true => Some(rank_buffers(named_tensors(checkpoint, BUFFERS)?)),
                false => None,
            },
        };
        Ok(model)
    }

    /// Makes what needs the ranks of `group`, that have `model` now: the outer loop and the moving average, with
    /// what a checkpoint knew of them. What has been made before continues.
    pub(crate) fn meet<M: Module>(
        &mut self,
        model: &M,
        group: &ProcessGroup,
        config: &TrainingConfig,
        keepers: Keepers,
        progress: &Progress,
    ) -> Result<(), TrainError> {
        let waiting = std::mem::take(&mut self.waiting);
        if config.sync.steps().is_some() {
            let outer = match &mut self.outer {
                Some(outer) => {
                    outer.restart(model, group.clone())?;
                    outer
                }
                None => {
                    let outer = OuterLoop::new(model, group.clone(), config.outer)?;
                    self.outer.insert(outer.with_buffers(config.ddp.buffers))
                }
            };
            if !waiting.outer.is_empty() {
                let loaded = outer.load_state(&waiting.outer);
                loaded.map_err(|reason| refuse(progress, &reason))?;
                if waiting.another_owes || group.rank() > 0 {
                    outer.forget_residual();
                }
            }
        }
        if let (Some(ema), None) = (&config.ema, &self.ema) {
            let begun = match waiting.ema {
                None => model.clone(),
                Some(bytes) => {
                    let checkpoint = Checkpoint {
                        progress: progress.clone(),
                        files: [(EMA.to_string(), bytes)].into(),
                    };
                    with_averaged_parameters(model.clone(), &checkpoint)?
                }
            };
            self.ema = Some(MovingAverage::of(&begun, ema.decay, keepers, group));
        }
        Ok(())
    }

    /// Takes over the mean of all ranks' states of the optimizer, which differ where each takes steps by
    /// itself: a checkpoint has room for one, and no rank's is better than another's. All ranks call it. Returns how many
    /// bytes this rank handed to the exchange.
    pub(crate) fn average_optimizer<M: Module>(
        &mut self,
        model: &M,
        group: &ProcessGroup,
    ) -> Result<u64, TrainError> {
        let mut paths = HashMap::new();
        for (own, id) in parameter_identities(model) {
            paths.entry(id.val()).or_insert(own.path);
        }
        let wrong =
            |reason: String| TrainError::BurnTrain(format!("the optimizer's state: {reason}"));
        let own = optimizer_states::by_path(self.optimizer_bytes()?, &paths).map_err(wrong)?;
        let (mean, bytes) = optimizer_states::mean(own, group)?;
        let file = tensor_file::write(&mean, &BTreeMap::new()).map_err(wrong)?;
        let views = tensor_file::read(&file).map_err(wrong)?;
        let ids = paths.into_iter().map(|(id, path)| (path, id)).collect();
        let record = optimizer_states::of_paths(&views, &ids).map_err(wrong)?;
        self.load_optimizer(record)?;
        Ok(bytes)
    }
}

/// The model with the parameters of a checkpoint.
///
/// # Errors
/// [`TrainError::Checkpoint`] if the checkpoint is another model's.
pub fn with_parameters<M: Module>(model: M, checkpoint: &Checkpoint) -> Result<M, TrainError> {
    with_tensors(model, checkpoint, MODEL)
}

/// The model with the averaged parameters of a checkpoint.
///
/// # Errors
/// [`TrainError::Checkpoint`] if the checkpoint has none, or is another model's.
pub fn with_averaged_parameters<M: Module>(
    model: M,
    checkpoint: &Checkpoint,
) -> Result<M, TrainError> {
    if !checkpoint.files.contains_key(EMA) {
        return Err(refuse(
            &checkpoint.progress,
            "it has no averaged parameters; the run was not trained with `training.ema.decay`",
        ));
    }
    with_tensors(model, checkpoint, EMA)
}

fn with_tensors<M: Module>(model: M, checkpoint: &Checkpoint, file: &str) -> Result<M, TrainError> {
    let failed = |error: RecordError| refuse(&checkpoint.progress, &error.to_string());
    let mut ids = BTreeMap::new();
    let mut firsts = HashMap::new();
    for (ParameterPath { path, .. }, id) in parameter_identities(&model) {
        let first: &mut ParamId = firsts.entry(id).or_insert_with(|| identity(&path));
        ids.insert(path, *first);
    }
    let tensors = tensors_of(checkpoint, file)?.into_iter().map(|view| {
        let id = ids.get(&view.name).copied();
        let id = id.unwrap_or_else(|| identity(&view.name)).val();
        let data = view.to_data();
        let (dtype, shape) = (data.dtype(), data.shape().clone());
        burn_pack::Tensor::new(view.name, dtype, shape, Some(id), data.into_bytes())
    });
    let record = Writer::new(tensors.collect()).into_bytes();
    let record = record.map_err(|error| refuse(&checkpoint.progress, &error.to_string()))?;
    let record = ModuleRecord::from_bytes(record).map_err(failed)?;
    let shapes = Shapes::of(&model);
    model.try_load_record(record).map_err(|error| {
        match shapes.differences(checkpoint, file, true) {
            Ok(found) if !found.is_empty() => {
                let reason = format!("it is of another model:{found}");
                refuse(&checkpoint.progress, &reason)
            }
            _ => failed(error),
        }
    })
}

/// The identity of a parameter that first is at `path`: the same on all ranks that read a checkpoint, for
/// they exchange the states of parameters by it.
pub(crate) fn identity(path: &str) -> ParamId {
    let digest = Sha256::digest(path);
    let (first, _) = digest.split_first_chunk().expect("a SHA-256 has 32 bytes");
    ParamId::from(u64::from_le_bytes(*first))
}

fn bytes_of<'a>(checkpoint: &'a Checkpoint, name: &str) -> Result<&'a [u8], TrainError> {
    let bytes = checkpoint.files.get(name).map(Vec::as_slice);
    bytes.ok_or_else(|| refuse(&checkpoint.progress, &format!("it has no {name}")))
}

pub(crate) fn tensors_of<'a>(
    checkpoint: &'a Checkpoint,
    name: &str,
) -> Result<Vec<TensorView<'a>>, TrainError> {
    let tensors = tensor_file::read(bytes_of(checkpoint, name)?);
    tensors.map_err(|error| refuse(&checkpoint.progress, &format!("{name}: {error}")))
}

fn named_tensors(checkpoint: &Checkpoint, name: &str) -> Result<Vec<NamedTensor>, TrainError> {
    let views = tensors_of(checkpoint, name)?.into_iter();
    let named = views.map(|view| (view.name.clone(), view.to_data()));
    Ok(named.collect())
}

/// The running statistics of ranks as a checkpoint has them.
fn named_buffers(buffers: &RankBuffers) -> Vec<NamedTensor> {
    let samples: Vec<i64> = buffers.samples.iter().map(|own| *own as i64).collect();
    let ranks = samples.len();
    let mut named = buffers.tensors.clone();
    named.push((SAMPLES.to_string(), TensorData::new(samples, [ranks])));
    named
}

fn rank_buffers(named: Vec<NamedTensor>) -> RankBuffers {
    let (samples, tensors): (Vec<_>, Vec<_>) =
        named.into_iter().partition(|(name, _)| name == SAMPLES);
    let samples = samples.iter().flat_map(|(_, data)| data.iter::<i64>());
    RankBuffers {
        tensors,
        samples: samples.map(|own| u64::try_from(own).unwrap_or(0)).collect(),
    }
}

pub(crate) fn refuse(progress: &Progress, reason: &str) -> TrainError {
    TrainError::Checkpoint {
        path: progress.place().to_string().into(),
        reason: reason.to_string(),
    }
}
