//! What a model's parameters hold, and their gradients, by path.

use std::collections::BTreeMap;

use burn::module::{Module, ModuleVisitor, Param};
use burn::prelude::*;
use burn::tensor::{Gradients, TensorData};

/// By the paths of parameters.
pub type Named = BTreeMap<String, TensorData>;

/// The gradients of parameters, or what these hold.
fn collect<M: Module>(model: &M, gradients: Option<&Gradients>) -> Named {
    struct Collect<'a> {
        path: Vec<String>,
        gradients: Option<&'a Gradients>,
        found: Named,
    }
    impl ModuleVisitor for Collect<'_> {
        everburn_nn::walking! { path }

        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let value = param.val();
            let found = match self.gradients {
                Some(gradients) => value.grad(gradients),
                None => Some(value.without_autodiff()),
            };
            if let Some(found) = found {
                self.found.insert(self.path.join("."), found.into_data());
            }
        }
    }
    let mut collect = Collect {
        path: Vec::new(),
        gradients,
        found: Named::new(),
    };
    model.visit(&mut collect);
    collect.found
}

pub fn parameters<M: Module>(model: &M) -> Named {
    collect(model, None)
}

/// Of the parameters that have one.
pub fn gradients<M: Module>(model: &M, gradients: &Gradients) -> Named {
    collect(model, Some(gradients))
}

/// All numbers one after the other, in the order of the paths.
pub fn numbers(named: &Named) -> Vec<f32> {
    named.values().flat_map(|data| data.iter::<f32>()).collect()
}
