//! What changes while a model trains, to and from a checkpoint.

use std::collections::BTreeMap;

use burn::lr_scheduler::LrSchedulerRecord;
use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn::module::Module;
use burn::optim::{ModuleOptimizer, OptimizerRecord};
use burn::store::{ModuleRecord, RecordError};
use burn::tensor::Bytes;
use everburn_collectives::group::ProcessGroup;

use crate::checkpoint::{Checkpoint, CheckpointFolder, Progress};
use crate::error::TrainError;

const MODEL: &str = "model.bpk";
const OPTIMIZER: &str = "optimizer.bpk";
const SCHEDULER: &str = "scheduler.bpk";

/// What changes with every step, besides the model.
pub(crate) struct TrainingState {
    pub(crate) optimizer: ModuleOptimizer,
    pub(crate) scheduler: ModuleLrScheduler,
}

impl TrainingState {
    /// The files of a checkpoint; `optimizer` stands for this rank's own where several ranks have parts
    /// of its state.
    pub(crate) fn checkpoint<M: Module>(
        &self,
        model: &M,
        optimizer: Option<Vec<u8>>,
        progress: Progress,
    ) -> Result<Checkpoint, TrainError> {
        let wrong = |error: RecordError| refuse(&progress, &error.to_string());
        let optimizer = match optimizer {
            Some(bytes) => bytes,
            None => self.optimizer_bytes()?,
        };
        let model = model.clone().into_record().into_bytes().map_err(wrong)?;
        let scheduler = self.scheduler.to_record().into_bytes().map_err(wrong)?;
        let files = [
            (MODEL, model.to_vec()),
            (OPTIMIZER, optimizer),
            (SCHEDULER, scheduler.to_vec()),
        ];
        let files = files.map(|(name, bytes)| (name.to_string(), bytes));
        Ok(Checkpoint {
            progress,
            files: files.into(),
        })
    }

    /// This rank's state of the optimizer, as it stands in a checkpoint.
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
        let optimizer = bytes_of(checkpoint, OPTIMIZER)?;
        let optimizer = OptimizerRecord::from_bytes(optimizer).map_err(failed)?;
        let states = optimizer.len();
        self.optimizer = self.optimizer.clone().load_record(optimizer);
        // Burn passes over what it cannot use, and the optimizer would start from nothing.
        if self.optimizer.to_record().len() != states {
            return Err(refuse(progress, "it holds the state of another optimizer"));
        }
        let scheduler = bytes_of(checkpoint, SCHEDULER)?;
        let scheduler = LrSchedulerRecord::from_bytes(scheduler).map_err(failed)?;
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
    let record = ModuleRecord::from_bytes(bytes_of(checkpoint, MODEL)?).map_err(failed)?;
    model.try_load_record(record).map_err(failed)
}

fn bytes_of(checkpoint: &Checkpoint, name: &str) -> Result<Bytes, TrainError> {
    let bytes = checkpoint.files.get(name);
    let bytes = bytes.ok_or_else(|| refuse(&checkpoint.progress, &format!("it has no {name}")))?;
    Ok(Bytes::from_bytes_vec(bytes.clone()))
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
    let (progress, lengths) = serde_json::from_slice::<Head>(&heads[0])
        .map_err(wrong)?
        .map_err(TrainError::Config)?;
    let mut rest = bodies[0].as_slice();
    let mut files = BTreeMap::new();
    for (name, length) in lengths {
        let (own, others) = rest.split_at(length);
        files.insert(name, own.to_vec());
        rest = others;
    }
    Ok(Checkpoint { progress, files })
}
