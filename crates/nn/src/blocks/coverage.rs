//! Which block uses which parameter.

use burn::module::{Module, ModuleVisitor, ParamId};
use burn::prelude::*;

use super::Blocks;

/// A parameter or buffer of a model.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use burn::nn::LinearConfig;
/// use burn::prelude::*;
/// use everburn::nn::parameter_paths;
///
/// let linear = LinearConfig::new(3, 2).init(&Device::flex());
/// let weight = &parameter_paths(&linear)[0];
/// assert_eq!((weight.path.as_str(), weight.shape.as_slice()), ("weight", [3, 2].as_slice()));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParameterPath {
    /// The names of the fields that lead to it: `layers.3.norm.gamma`.
    pub path: String,
    /// Its shape.
    pub shape: Vec<usize>,
}

/// The parameters and buffers of a model in the order of its fields, without drawing the values of
/// those that have none yet.
pub fn parameter_paths<M: Module>(model: &M) -> Vec<ParameterPath> {
    let found = parameter_identities(model).into_iter();
    found.map(|(parameter, _)| parameter).collect()
}

/// The same as [`parameter_paths`] lists, each with its identity in this process.
pub fn parameter_identities<M: Module>(model: &M) -> Vec<(ParameterPath, ParamId)> {
    let mut visitor = Paths::default();
    model.visit(&mut visitor);
    visitor.found
}

#[derive(Default)]
struct Paths {
    path: Vec<String>,
    found: Vec<(ParameterPath, ParamId)>,
}

impl Paths {
    fn found(&mut self, shape: &Shape, id: ParamId) {
        let path = self.path.join(".");
        let shape = shape.to_vec();
        self.found.push((ParameterPath { path, shape }, id));
    }
}

impl ModuleVisitor for Paths {
    crate::walking! { visit each self, param => self.found(&param.lazy_shape(), param.id) }

    crate::walking! { path }
}

/// What is wrong with a model's blocks.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use burn::nn::{Linear, LinearConfig};
/// use burn::prelude::*;
/// use everburn::nn::{BlockError, Blocks};
///
/// let linear = LinearConfig::new(3, 2).init(&Device::flex());
/// let blocks = Blocks::first("weight", ["weight"], |layer: &Linear, x: Tensor<2>| layer.forward(x));
/// let error = blocks.check(&linear).unwrap_err(); // no block names the bias
/// assert!(matches!(error, BlockError::Unnamed { path } if path == "bias"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BlockError {
    /// A parameter that no block uses.
    #[error(
        "no block of the model names the parameter {path}: it would not be trained; \
         add its path to the block that uses it"
    )]
    Unnamed {
        /// The parameter.
        path: String,
    },
    /// A path that is not one of the model's.
    #[error("block {block} names {path}, and the model has no such parameter or module")]
    NoSuchPath {
        /// The block.
        block: String,
        /// What it names.
        path: String,
    },
}

impl<M: Module, I, O> Blocks<M, I, O> {
    /// Checks that each parameter of `model` is named by a block, and that blocks name nothing else.
    ///
    /// # Errors
    /// [`BlockError`] naming the first that is wrong.
    pub fn check(&self, model: &M) -> Result<(), BlockError> {
        let parameters = parameter_paths(model);
        for block in &self.blocks {
            for path in &block.paths {
                let used = |parameter: &ParameterPath| lies_under(&parameter.path, path);
                if !parameters.iter().any(used) {
                    return Err(BlockError::NoSuchPath {
                        block: block.name.clone(),
                        path: path.clone(),
                    });
                }
            }
        }
        let unnamed = |parameter: &&ParameterPath| self.users_of(&parameter.path).is_empty();
        match parameters.iter().find(unnamed) {
            None => Ok(()),
            Some(parameter) => Err(BlockError::Unnamed {
                path: parameter.path.clone(),
            }),
        }
    }

    /// The numbers of the blocks that use the parameter at `path`, in ascending order.
    pub fn users_of(&self, path: &str) -> Vec<usize> {
        let uses = |block: &super::Block<M>| block.paths.iter().any(|own| lies_under(path, own));
        let users = self.blocks.iter().enumerate();
        users
            .filter(|(_, block)| uses(block))
            .map(|(index, _)| index)
            .collect()
    }
}

/// Whether `path` is `module`, or is in it.
pub(crate) fn lies_under(path: &str, module: &str) -> bool {
    path.strip_prefix(module)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

#[cfg(test)]
mod tests {
    use burn::nn::{Linear, LinearConfig};

    use super::*;

    #[derive(Module, Debug)]
    struct Pair {
        one: Linear,
        one_more: Linear,
    }

    fn pair() -> Pair {
        let linear = || LinearConfig::new(2, 2).init(&Device::flex());
        Pair {
            one: linear(),
            one_more: linear(),
        }
    }

    fn blocks(first: &[&str], second: &[&str]) -> Blocks<Pair, Tensor<2>, Tensor<2>> {
        let paths = |list: &[&str]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
        Blocks::first("a", paths(first), |pair: &Pair, x| pair.one.forward(x)).then(
            "b",
            paths(second),
            |pair, x| pair.one_more.forward(x),
        )
    }

    #[test]
    fn a_parameter_that_no_block_names_is_refused_by_name() {
        let error = blocks(&["one"], &["one_more.weight"]).check(&pair());
        let path = "one_more.bias".to_string();
        assert_eq!(error, Err(BlockError::Unnamed { path }));
    }

    #[test]
    fn a_path_that_the_model_does_not_have_is_refused_by_name() {
        let error = blocks(&["one"], &["one_more", "two"]).check(&pair());
        let (block, path) = ("b".to_string(), "two".to_string());
        assert_eq!(error, Err(BlockError::NoSuchPath { block, path }));
    }

    #[test]
    fn a_tied_parameter_belongs_to_every_block_that_names_it() {
        let blocks = blocks(&["one"], &["one.weight", "one_more"]);
        blocks.check(&pair()).unwrap();
        assert_eq!(blocks.users_of("one.weight"), [0, 1]);
        assert_eq!(blocks.users_of("one.bias"), [0]);
        assert_eq!(blocks.users_of("one_more.bias"), [1]);
    }
}
