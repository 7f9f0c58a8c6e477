//! A training's state at a moment, while the training continues.
//!
//! A snapshot costs the training thread no copy: tensors are counted references, and an optimizer that
//! changes one that a snapshot holds makes a new one. (Running statistics are different: a copy of a module
//! shares them with it. So tensors are held, not modules.) A thread with time reads the tensors from their
//! devices.

use std::collections::{BTreeMap, HashMap};

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::ModuleOptimizer;
use burn::prelude::*;
use burn::tensor::TensorData;

use crate::checkpoint::optimizer_states;
use crate::checkpoint::state_dict::BURNS_TERMS;
use crate::checkpoint::tensor_file::{self, NamedTensor};
use crate::checkpoint::training_state::{BUFFERS, EMA, MODEL, OPTIMIZER, OUTER, SCHEDULER, refuse};
use crate::checkpoint::{Checkpoint, Progress};
use crate::error::TrainError;

pub(crate) enum OptimizerState {
    /// This rank's own.
    Here(Box<ModuleOptimizer>),
    /// A record, put together from those of several ranks.
    Gathered(Vec<u8>),
}

pub(crate) enum Averaged {
    /// On its device.
    Held(Vec<HeldTensor>),
    /// As an earlier checkpoint had it.
    Read(Vec<u8>),
}

/// What a checkpoint will hold.
pub(crate) struct Snapshot {
    pub(crate) progress: Progress,
    pub(crate) parameters: Vec<HeldTensor>,
    pub(crate) optimizer: OptimizerState,
    pub(crate) scheduler: Vec<u8>,
    /// The model with averaged parameters, where there is such a thing.
    pub(crate) averaged: Option<Averaged>,
    /// What an outer loop remembers, if it remembers anything.
    pub(crate) outer: Vec<NamedTensor>,
    /// The running statistics of the ranks, where they differ.
    pub(crate) buffers: Vec<NamedTensor>,
}

/// A tensor of a model, on its device.
pub(crate) struct HeldTensor {
    path: String,
    id: ParamId,
    read: Box<dyn FnOnce() -> Result<TensorData, String> + Send>,
}

impl Snapshot {
    /// Reads all tensors.
    ///
    /// # Errors
    /// [`TrainError::Device`] if one cannot be read, [`TrainError::Checkpoint`] if something has no place in
    /// a checkpoint.
    pub(crate) fn into_checkpoint(self) -> Result<Checkpoint, TrainError> {
        let Self {
            progress,
            parameters,
            optimizer,
            scheduler,
            averaged,
            outer,
            buffers,
        } = self;
        let wrong = |error: String| refuse(&progress, &error);
        // A parameter that is at several places has the path of the first.
        let mut paths = HashMap::new();
        for HeldTensor { path, id, .. } in &parameters {
            paths.entry(id.val()).or_insert_with(|| path.clone());
        }
        let model = read_all(parameters)?;
        let optimizer = match optimizer {
            OptimizerState::Gathered(record) => record,
            OptimizerState::Here(optimizer) => {
                let bytes = optimizer.into_bytes();
                bytes.map_err(|error| wrong(error.to_string()))?.to_vec()
            }
        };
        let optimizer = optimizer_states::by_path(optimizer, &paths).map_err(wrong)?;
        let none = BTreeMap::new();
        let (key, value) = BURNS_TERMS;
        let in_burns_terms = BTreeMap::from([(key.to_owned(), value.to_owned())]);
        let write = |tensors: &[NamedTensor]| tensor_file::write(tensors, &none).map_err(wrong);
        let write_model =
            |tensors: &[NamedTensor]| tensor_file::write(tensors, &in_burns_terms).map_err(wrong);
        let files = [
            (MODEL, write_model(&model)?),
            (OPTIMIZER, write(&optimizer)?),
            (SCHEDULER, scheduler),
        ];
        let files = files.map(|(name, bytes)| (name.to_string(), bytes));
        let mut files = BTreeMap::from(files);
        if let Some(averaged) = averaged {
            let averaged = match averaged {
                Averaged::Held(tensors) => write_model(&read_all(tensors)?)?,
                Averaged::Read(bytes) => bytes,
            };
            files.insert(EMA.to_string(), averaged);
        }
        if !outer.is_empty() {
            files.insert(OUTER.to_string(), write(&outer)?);
        }
        if !buffers.is_empty() {
            files.insert(BUFFERS.to_string(), write(&buffers)?);
        }
        Ok(Checkpoint { progress, files })
    }
}

fn read_all(tensors: Vec<HeldTensor>) -> Result<Vec<NamedTensor>, TrainError> {
    let read = |HeldTensor { path, read, .. }| match read() {
        Ok(data) => Ok((path, data)),
        Err(error) => Err(TrainError::Device(format!("`{path}`: {error}"))),
    };
    tensors.into_iter().map(read).collect()
}

/// All parameters and buffers of a model, in the order of its fields.
pub(crate) fn parameters_of<M: Module>(model: &M) -> Vec<HeldTensor> {
    let mut hold = Hold::default();
    model.visit(&mut hold);
    hold.held
}

#[derive(Default)]
struct Hold {
    path: Vec<String>,
    held: Vec<HeldTensor>,
}

impl Hold {
    fn push(
        &mut self,
        id: ParamId,
        read: impl FnOnce() -> Result<TensorData, String> + Send + 'static,
    ) {
        self.held.push(HeldTensor {
            path: self.path.join("."),
            id,
            read: Box::new(read),
        });
    }
}

impl ModuleVisitor for Hold {
    everburn_nn::walking! { path }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        // As Burn's records have it: a layer may keep its weight in another layout.
        let tensor = param.transform_for_save().val().without_autodiff();
        self.push(param.id, || {
            tensor.try_into_data().map_err(|e| e.to_string())
        });
    }

    everburn_nn::walking! { visit others self, param => {
        let tensor = param.transform_for_save().val();
        self.push(param.id, || {
            tensor.try_into_data().map_err(|e| e.to_string())
        });
    } }
}
