//! Tied parameters: one parameter in several places of a model.

use std::any::Any;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::prelude::*;
use burn::tensor::TensorData;

use crate::error::DdpError;

/// The path of the first place of a tied parameter whose values are not those of its first place.
pub(crate) fn untied<M: Module>(model: &M) -> Result<Option<String>, DdpError> {
    let mut places = Places {
        path: Vec::new(),
        first: HashMap::new(),
        found: Ok(None),
    };
    model.visit(&mut places);
    places.found
}

struct Places {
    path: Vec<String>,
    /// `Param<Tensor<D>>` of the first place of each parameter.
    first: HashMap<ParamId, Box<dyn Any>>,
    found: Result<Option<String>, DdpError>,
}

impl Places {
    fn read<const D: usize>(&self, param: &Param<Tensor<D>>) -> Result<TensorData, DdpError> {
        let data = param.base().without_autodiff().try_into_data();
        data.map_err(|error| DdpError::Read {
            parameter: self.path.join("."),
            reason: error.to_string(),
        })
    }

    fn differs<const D: usize>(&self, param: &Param<Tensor<D>>) -> Result<bool, DdpError> {
        let first = self.first.get(&param.id);
        match first.and_then(|first| first.downcast_ref::<Param<Tensor<D>>>()) {
            Some(first) => Ok(self.read(first)?.as_bytes() != self.read(param)?.as_bytes()),
            None => Ok(false),
        }
    }
}

impl ModuleVisitor for Places {
    everburn_nn::walking! { path }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !matches!(self.found, Ok(None)) {
            return;
        }
        if let Entry::Vacant(first) = self.first.entry(param.id) {
            first.insert(Box::new(param.clone()));
            return;
        }
        self.found = self
            .differs(param)
            .map(|differs| differs.then(|| self.path.join(".")));
    }
}
