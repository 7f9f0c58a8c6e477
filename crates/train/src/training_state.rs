//! What changes while a model trains, to and from a checkpoint.

use std::collections::{BTreeMap, HashMap};

use burn::lr_scheduler::LrSchedulerRecord;
use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::{ModuleOptimizer, OptimizerRecord};
use burn::prelude::*;
use burn::store::{ModuleRecord, RecordError};
use burn::tensor::{Bool, Bytes, Int};
use burn_pack::Writer;
use everburn_collectives::group::ProcessGroup;
use sha2::{Digest, Sha256};

use crate::checkpoint::{Checkpoint, CheckpointFolder, Progress};
use crate::error::TrainError;
use crate::optimizer_states;
use crate::snapshot::{OptimizerState, Snapshot, parameters_of};
use crate::tensor_file::{self, TensorView};

pub(crate) const MODEL: &str = "model.safetensors";
pub(crate) const OPTIMIZER: &str = "optimizer.safetensors";
pub(crate) const SCHEDULER: &str = "scheduler.bpk";

/// What changes with every step, besides the model.
pub(crate) struct TrainingState {
    pub(crate) optimizer: ModuleOptimizer,
    pub(crate) scheduler: ModuleLrScheduler,
}

impl TrainingState {
    /// The state at this moment, of which nothing is copied yet; `optimizer` stands for this rank's own where
    /// several ranks have parts of its state.
    pub(crate) fn snapshot<M: Module>(
        &self,
        model: &M,
        optimizer: Option<Vec<u8>>,
        progress: Progress,
    ) -> Result<Snapshot, TrainError> {
        let scheduler = self.scheduler.to_record().into_bytes();
        let scheduler = scheduler.map_err(|error| refuse(&progress, &error.to_string()))?;
        let optimizer = match optimizer {
            Some(record) => OptimizerState::Gathered(record),
            None => OptimizerState::Here(Box::new(self.optimizer.clone())),
        };
        Ok(Snapshot {
            parameters: parameters_of(model),
            optimizer,
            scheduler: scheduler.to_vec(),
            progress,
        })
    }

    /// A checkpoint of this moment, read at once: for what is handed to another rank.
    pub(crate) fn checkpoint<M: Module>(
        &self,
        model: &M,
        optimizer: Option<Vec<u8>>,
        progress: Progress,
    ) -> Result<Checkpoint, TrainError> {
        self.snapshot(model, optimizer, progress)?.into_checkpoint()
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

    /// Takes over the state of a checkpoint; returns the model with its parameters.
    pub(crate) fn restore<M: Module>(
        &mut self,
        model: M,
        checkpoint: &Checkpoint,
    ) -> Result<M, TrainError> {
        let model = with_parameters(model, checkpoint)?;
        let progress = &checkpoint.progress;
        let failed = |error: RecordError| refuse(progress, &error.to_string());
        let ids = identities(&model).into_iter();
        let ids = ids.map(|(path, id)| (path, id.val())).collect();
        let optimizer = tensors_of(checkpoint, OPTIMIZER)?;
        let optimizer = optimizer_states::of_paths(&optimizer, &ids)
            .map_err(|reason| refuse(progress, &reason))?;
        let optimizer = OptimizerRecord::from_bytes(Bytes::from_bytes_vec(optimizer));
        let optimizer = optimizer.map_err(failed)?;
        let states = optimizer.len();
        self.optimizer = self.optimizer.clone().load_record(optimizer);
        // Burn passes over what it cannot use, and the optimizer would start from nothing.
        if self.optimizer.to_record().len() != states {
            return Err(refuse(progress, "it holds the state of another optimizer"));
        }
        let scheduler = bytes_of(checkpoint, SCHEDULER)?.to_vec();
        let scheduler =
            LrSchedulerRecord::from_bytes(Bytes::from_bytes_vec(scheduler)).map_err(failed)?;
        self.scheduler = self.scheduler.clone().load_record(scheduler);
        Ok(model)
    }
}

/// The model with the parameters of a checkpoint.
///
/// # Errors
/// [`TrainError::Checkpoint`] if the checkpoint is another model's.
pub fn with_parameters<M: Module>(model: M, checkpoint: &Checkpoint) -> Result<M, TrainError> {
    let failed = |error: RecordError| refuse(&checkpoint.progress, &error.to_string());
    let mut ids = BTreeMap::new();
    let mut firsts = HashMap::new();
    for (path, id) in identities(&model) {
        let first: &mut ParamId = firsts.entry(id).or_insert_with(|| identity(&path));
        ids.insert(path, *first);
    }
    let tensors = tensors_of(checkpoint, MODEL)?.into_iter().map(|view| {
        let id = ids.get(&view.name).copied();
        let id = id.unwrap_or_else(|| identity(&view.name)).val();
        let data = view.to_data();
        let (dtype, shape) = (data.dtype(), data.shape().clone());
        burn_pack::Tensor::new(view.name, dtype, shape, Some(id), data.into_bytes())
    });
    let record = Writer::new(tensors.collect()).into_bytes();
    let record = record.map_err(|error| refuse(&checkpoint.progress, &error.to_string()))?;
    let record = ModuleRecord::from_bytes(record).map_err(failed)?;
    model.try_load_record(record).map_err(failed)
}

/// The identity of a parameter that first stands at `path`: the same on all ranks that read a checkpoint, for
/// they exchange the states of parameters by it.
fn identity(path: &str) -> ParamId {
    let digest = Sha256::digest(path);
    let (first, _) = digest.split_first_chunk().expect("a SHA-256 has 32 bytes");
    ParamId::from(u64::from_le_bytes(*first))
}

/// The paths and identities of all parameters and buffers, in the order of the model's fields. None is
/// initialised by it.
fn identities<M: Module>(model: &M) -> Vec<(String, ParamId)> {
    #[derive(Default)]
    struct Visitor(Vec<String>, Vec<(String, ParamId)>);
    impl Visitor {
        fn push(&mut self, id: ParamId) {
            self.1.push((self.0.join("."), id));
        }
    }
    impl ModuleVisitor for Visitor {
        fn enter_module(&mut self, name: &str, _container: &str) {
            self.0.push(name.to_string());
        }
        fn exit_module(&mut self, _name: &str, _container: &str) {
            self.0.pop();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.push(param.id);
        }
        fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
            self.push(param.id);
        }
        fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
            self.push(param.id);
        }
    }
    let mut visitor = Visitor::default();
    model.visit(&mut visitor);
    visitor.1
}

fn bytes_of<'a>(checkpoint: &'a Checkpoint, name: &str) -> Result<&'a [u8], TrainError> {
    let bytes = checkpoint.files.get(name).map(Vec::as_slice);
    bytes.ok_or_else(|| refuse(&checkpoint.progress, &format!("it has no {name}")))
}

fn tensors_of<'a>(
    checkpoint: &'a Checkpoint,
    name: &str,
) -> Result<Vec<TensorView<'a>>, TrainError> {
    let tensors = tensor_file::read(bytes_of(checkpoint, name)?);
    tensors.map_err(|error| refuse(&checkpoint.progress, &format!("{name}: {error}")))
}

/// The error that names the checkpoint of `progress`.
pub(crate) fn refuse(progress: &Progress, reason: &str) -> TrainError {
    TrainError::Checkpoint {
        path: progress.place().to_string().into(),
        reason: reason.to_string(),
    }
}

/// Rank 0 reads and verifies the newest good checkpoint of its folder; all ranks are given its
/// bytes, so that it needs to lie on one machine only, or all are given its error.
pub(crate) fn agree_on_newest(
    group: &ProcessGroup,
    folder: Option<&CheckpointFolder>,
) -> Result<Checkpoint, TrainError> {
    let found = match (folder, group.rank()) {
        (Some(folder), 0) => folder
            .load_newest()
            .map(|loaded| {
                for refused in &loaded.refused {
                    tracing::warn!("{refused}");
                }
                tracing::info!("resuming from {}", loaded.path.display());
                loaded.checkpoint
            })
            .map_err(|error| error.to_string()),
        (None, 0) => Err("--resume needs a run directory".to_string()),
        _ => Ok(Checkpoint::default()),
    };
    share(group, 0, found)
}

/// All ranks are given the checkpoint that rank `source` has `found`, or its error; what the others say
/// that they found does not count.
pub(crate) fn share(
    group: &ProcessGroup,
    source: usize,
    found: Result<Checkpoint, String>,
) -> Result<Checkpoint, TrainError> {
    let lengths = found.as_ref().map(|checkpoint| {
        let files = checkpoint
            .files
            .iter()
            .map(|(name, bytes)| (name.clone(), bytes.len()));
        (checkpoint.progress.clone(), files.collect::<Vec<_>>())
    });
    let wrong = |error: serde_json::Error| TrainError::Config(error.to_string());
    let head = serde_json::to_vec(&lengths).map_err(wrong)?;
    let body = found.map(|checkpoint| checkpoint.files.into_values().flatten().collect());
    let head = group.all_gather_varied(head);
    let body = group.all_gather_varied::<u8>(body.unwrap_or_default());
    let (heads, bodies) = (head.wait()?, body.wait()?);
    type Head = Result<(Progress, Vec<(String, usize)>), String>;
    let (progress, lengths) = serde_json::from_slice::<Head>(&heads[source])
        .map_err(wrong)?
        .map_err(TrainError::Config)?;
    let mut rest = bodies[source].as_slice();
    let mut files = BTreeMap::new();
    for (name, length) in lengths {
        let (own, others) = rest.split_at(length);
        files.insert(name, own.to_vec());
        rest = others;
    }
    Ok(Checkpoint { progress, files })
}
