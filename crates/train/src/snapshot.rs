//! A training's state at a moment, while the training goes on.
//!
//! A snapshot costs the training thread no copy: tensors are counted references, and an optimizer that
//! changes one that a snapshot holds makes a new one. (Running statistics are different: a copy of a module
//! shares them with it. So tensors are held, not modules.) Whoever has time reads the tensors from their
//! devices.

use std::collections::{BTreeMap, HashMap};

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::ModuleOptimizer;
use burn::prelude::*;
use burn::tensor::{Bool, Int, TensorData};

use crate::checkpoint::{Checkpoint, Progress};
use crate::error::TrainError;
use crate::optimizer_states;
use crate::tensor_file;
use crate::training_state::{MODEL, OPTIMIZER, SCHEDULER, refuse};

/// The state of an optimizer.
pub(crate) enum OptimizerState {
    /// This rank's own.
    Here(Box<ModuleOptimizer>),
    /// A record, put together from those of several ranks.
    Gathered(Vec<u8>),
}

/// What a checkpoint will hold.
pub(crate) struct Snapshot {
    pub(crate) progress: Progress,
    pub(crate) parameters: Vec<HeldTensor>,
    pub(crate) optimizer: OptimizerState,
    pub(crate) scheduler: Vec<u8>,
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
        } = self;
        let wrong = |error: String| refuse(&progress, &error);
        // A parameter that stands at several places has the path of the first.
        let mut paths = HashMap::new();
        let mut model = Vec::new();
        for HeldTensor { path, id, read } in parameters {
            paths.entry(id.val()).or_insert_with(|| path.clone());
            let data = read().map_err(|error| TrainError::Device(format!("`{path}`: {error}")))?;
            model.push((path, data));
        }
        let optimizer = match optimizer {
            OptimizerState::Gathered(record) => record,
            OptimizerState::Here(optimizer) => {
                let bytes = optimizer.into_bytes();
                bytes.map_err(|error| wrong(error.to_string()))?.to_vec()
            }
        };
        let optimizer = optimizer_states::by_path(optimizer, &paths).map_err(wrong)?;
        let none = BTreeMap::new();
        let files = [
            (MODEL, tensor_file::write(&model, &none).map_err(wrong)?),
            (
                OPTIMIZER,
                tensor_file::write(&optimizer, &none).map_err(wrong)?,
            ),
            (SCHEDULER, scheduler),
        ];
        let files = files.map(|(name, bytes)| (name.to_string(), bytes)).into();
        Ok(Checkpoint { progress, files })
    }
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
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        // As Burn's records have it: a layer may keep its weight in another layout.
        let tensor = param.transform_for_save().val().without_autodiff();
        self.push(param.id, || {
            tensor.try_into_data().map_err(|e| e.to_string())
        });
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        let tensor = param.transform_for_save().val();
        self.push(param.id, || {
            tensor.try_into_data().map_err(|e| e.to_string())
        });
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        let tensor = param.transform_for_save().val();
        self.push(param.id, || {
            tensor.try_into_data().map_err(|e| e.to_string())
        });
    }
}
