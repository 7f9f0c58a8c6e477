//! What visitors and mappers of modules have in common.

use std::any::Any;
use std::collections::HashMap;

use burn::module::ParamId;

/// Parameters that a walk over a module has made, or met, by id. A tied parameter is one parameter in several places:
/// who makes it again in its second place unties it.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use burn::module::{Param, ParamId};
/// use burn::prelude::*;
/// use everburn::nn::TiedParameters;
///
/// let id = ParamId::new();
/// let weight = Param::initialized(id, Tensor::<1>::ones([2], &Device::flex()));
/// let mut tied = TiedParameters::default();
/// assert!(tied.get::<Param<Tensor<1>>>(id).is_none());
/// tied.keep(id, weight);
/// assert!(tied.get::<Param<Tensor<1>>>(id).is_some());
/// ```
#[derive(Default)]
pub struct TiedParameters {
    /// `Param<Tensor<..>>` of any kind.
    known: HashMap<ParamId, Box<dyn Any>>,
}

impl TiedParameters {
    /// The parameter that was kept for `id`, of type `P`.
    pub fn get<P: Clone + 'static>(&self, id: ParamId) -> Option<P> {
        self.known.get(&id)?.downcast_ref::<P>().cloned()
    }

    /// The ids of all that were kept.
    pub fn ids(&self) -> impl ExactSizeIterator<Item = ParamId> {
        self.known.keys().copied()
    }

    /// Keeps `param` for the other places of `id`, and returns it.
    pub fn keep<P: Clone + 'static>(&mut self, id: ParamId, param: P) -> P {
        self.known.insert(id, Box::new(param.clone()));
        param
    }
}

/// Methods of Burn's `ModuleVisitor` and `ModuleMapper`: those that keep a module's path in the field `path`, and one
/// body for tensors of every kind (`each`), or of those without gradients (`others`).
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use burn::module::{Module, ModuleVisitor};
/// use burn::nn::LinearConfig;
/// use burn::prelude::*;
/// use everburn::nn::walking;
///
/// #[derive(Default)]
/// struct Paths {
///     path: Vec<String>,
///     found: Vec<String>,
/// }
///
/// impl ModuleVisitor for Paths {
///     walking! { path }
///     walking! { visit each self, _param => self.found.push(self.path.join(".")) }
/// }
///
/// let mut paths = Paths::default();
/// LinearConfig::new(2, 3).init(&Device::flex()).visit(&mut paths);
/// assert_eq!(paths.found, ["weight", "bias"]);
/// ```
#[macro_export]
macro_rules! walking {
    (path) => {
        fn enter_module(&mut self, name: &str, _container_type: &str) {
            self.path.push(name.to_string());
        }

        fn exit_module(&mut self, _name: &str, _container_type: &str) {
            self.path.pop();
        }
    };
    (visit each $this:ident, $param:ident => $done:expr) => {
        fn visit_float<const D: usize>(
            &mut $this,
            $param: &::burn::module::Param<::burn::tensor::Tensor<D>>,
        ) {
            $done;
        }

        $crate::walking! { visit others $this, $param => $done }
    };
    (visit others $this:ident, $param:ident => $done:expr) => {
        fn visit_int<const D: usize>(
            &mut $this,
            $param: &::burn::module::Param<::burn::tensor::Tensor<D, ::burn::tensor::Int>>,
        ) {
            $done;
        }

        fn visit_bool<const D: usize>(
            &mut $this,
            $param: &::burn::module::Param<::burn::tensor::Tensor<D, ::burn::tensor::Bool>>,
        ) {
            $done;
        }
    };
    (map each $this:ident, $param:ident => $mapped:expr) => {
        fn map_float<const D: usize>(
            &mut $this,
            $param: ::burn::module::Param<::burn::tensor::Tensor<D>>,
        ) -> ::burn::module::Param<::burn::tensor::Tensor<D>> {
            $mapped
        }

        $crate::walking! { map others $this, $param => $mapped }
    };
    (map others $this:ident, $param:ident => $mapped:expr) => {
        fn map_int<const D: usize>(
            &mut $this,
            $param: ::burn::module::Param<::burn::tensor::Tensor<D, ::burn::tensor::Int>>,
        ) -> ::burn::module::Param<::burn::tensor::Tensor<D, ::burn::tensor::Int>> {
            $mapped
        }

        fn map_bool<const D: usize>(
            &mut $this,
            $param: ::burn::module::Param<::burn::tensor::Tensor<D, ::burn::tensor::Bool>>,
        ) -> ::burn::module::Param<::burn::tensor::Tensor<D, ::burn::tensor::Bool>> {
            $mapped
        }
    };
}
