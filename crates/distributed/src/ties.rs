//! Tied parameters: one parameter in several places of a model.

use burn::module::{Module, ModuleVisitor, Param};
use burn::prelude::*;
use burn::tensor::TensorData;
use everburn_nn::TiedParameters;

use crate::error::DdpError;

/// The path of the first place of a tied parameter whose values are not those of its first place.
pub(crate) fn untied<M: Module>(model: &M) -> Result<Option<String>, DdpError> {
    let mut places = Places {
        path: Vec::new(),
        first: TiedParameters::default(),
        found: Ok(None),
    };
    model.visit(&mut places);
    places.found
}

struct Places {
    path: Vec<String>,
    /// Each parameter as its first place has it.
    first: TiedParameters,
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

    fn differ<const D: usize>(
        &self,
        first: &Param<Tensor<D>>,
        param: &Param<Tensor<D>>,
    ) -> Result<bool, DdpError> {
        Ok(self.read(first)?.as_bytes() != self.read(param)?.as_bytes())
    }
}

impl ModuleVisitor for Places {
    everburn_nn::walking! { path }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !matches!(self.found, Ok(None)) {
            return;
        }
        let Some(first) = self.first.get(param.id) else {
            self.first.keep(param.id, param.clone());
            return;
        };
        let differ = self.differ(&first, param);
        self.found = differ.map(|differ| differ.then(|| self.path.join(".")));
    }
}
