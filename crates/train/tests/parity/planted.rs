//! Wrong gradients, planted in the backward pass.

use burn::module::{Module, ModuleMapper, Param};
use burn::prelude::*;

/// A factor of a gradient.
#[derive(Debug, Clone)]
pub struct Planted {
    /// PyTorch's name of the parameter whose gradient has it; all have, if none is named.
    pub of: Option<String>,
    pub factor: f64,
}

impl Planted {
    /// `model` with the same numbers, whose gradients come out wrong.
    pub fn in_model<M: Module>(&self, model: &M) -> M {
        let mut planting = Planting {
            planted: self,
            path: Vec::new(),
            met: 0,
        };
        let model = model.clone().map(&mut planting);
        assert!(planting.met > 0, "{self:?} is in no parameter");
        model
    }
}

struct Planting<'a> {
    planted: &'a Planted,
    path: Vec<String>,
    met: usize,
}

impl Planting<'_> {
    /// PyTorch's name of the parameter that is being looked at.
    fn name(&self) -> String {
        let names = self.path.iter().map(|name| match name.as_str() {
            "gamma" => "weight",
            "beta" => "bias",
            name => name,
        });
        names.collect::<Vec<_>>().join(".")
    }
}

impl ModuleMapper for Planting<'_> {
    everburn_nn::walking! { path }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let of = self.planted.of.as_ref();
        if of.is_some_and(|of| *of != self.name()) {
            return param;
        }
        self.met += 1;
        param.map(|tensor| {
            // The same to the bit: what has the factor is zero.
            let numbers = tensor.clone().detach();
            numbers.clone() + (tensor - numbers) * self.planted.factor
        })
    }
}
