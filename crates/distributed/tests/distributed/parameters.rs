//! What a model's parameters hold, and their gradients, by path.

use std::collections::BTreeMap;

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::prelude::*;
use burn::tensor::{Gradients, TensorData};

/// By the paths of parameters.
pub type Named = BTreeMap<String, TensorData>;

/// What is there of a parameter.
pub trait Read {
    fn read<const D: usize>(&self, param: &Param<Tensor<D>>) -> Option<TensorData>;
}

struct Values;

impl Read for Values {
    fn read<const D: usize>(&self, param: &Param<Tensor<D>>) -> Option<TensorData> {
        Some(param.val().without_autodiff().into_data())
    }
}

impl Read for &Gradients {
    fn read<const D: usize>(&self, param: &Param<Tensor<D>>) -> Option<TensorData> {
        param.val().grad(self).map(Tensor::into_data)
    }
}

impl Read for &GradientsParams {
    fn read<const D: usize>(&self, param: &Param<Tensor<D>>) -> Option<TensorData> {
        self.get::<D>(param.id).map(Tensor::into_data)
    }
}

/// What `read` finds for each parameter.
fn collect<M: Module>(model: &M, read: impl Read) -> Named {
    struct Collect<R>(Vec<String>, R, Named);
    impl<R: Read> ModuleVisitor for Collect<R> {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.0.push(name.to_owned());
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.0.pop();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(data) = self.1.read(param) {
                self.2.insert(self.0.join("."), data);
            }
        }
    }
    let mut collect = Collect(Vec::new(), read, Named::new());
    model.visit(&mut collect);
    collect.2
}

pub fn parameters<M: Module>(model: &M) -> Named {
    collect(model, Values)
}

/// Of the parameters that have one.
pub fn gradients<M: Module>(model: &M, gradients: impl Read) -> Named {
    collect(model, gradients)
}

/// All numbers one after the other, in the order of the paths.
pub fn numbers(named: &Named) -> Vec<f32> {
    named.values().flat_map(|data| data.iter::<f32>()).collect()
}
