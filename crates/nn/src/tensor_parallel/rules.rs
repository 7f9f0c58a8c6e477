//! Which layers are cut, and how.

use crate::blocks::InBlocks;
use crate::group::SyncError;

/// How a linear layer is cut.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use everburn::nn::{TensorRule, TensorShard};
///
/// assert_eq!(TensorRule::column("layers.*.fc1").shard, TensorShard::Column);
/// assert_eq!(TensorRule::row("layers.*.fc2").shard, TensorShard::Row);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TensorShard {
    /// By output features: each rank has some columns of the weight `[in, out]`, and some elements of
    /// the bias. Takes the whole input, yields a part of the output.
    Column,
    /// By input features: each rank has some rows of the weight, and the whole bias. Takes a part of
    /// the input, as a column shard yields it, and yields the whole output.
    Row,
}

/// Layers that are cut alike.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use everburn::nn::TensorRule;
///
/// // The queries of every layer; a rank gets whole heads of 64 features.
/// let rule = TensorRule::column("layers.*.attention.q").in_units_of(64);
/// assert!(rule.matches("layers.3.attention.q"));
/// assert!(!rule.matches("layers.3.attention.q.weight"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TensorRule {
    /// The path of a layer, in which `*` matches any one name or number.
    pub pattern: String,
    /// How the layers are cut.
    pub shard: TensorShard,
    /// How many features belong together: a part has a multiple of them.
    pub unit: usize,
}

impl TensorRule {
    /// Layers cut by output features.
    pub fn column(pattern: impl Into<String>) -> Self {
        Self::new(pattern, TensorShard::Column)
    }

    /// Layers cut by input features.
    pub fn row(pattern: impl Into<String>) -> Self {
        Self::new(pattern, TensorShard::Row)
    }

    fn new(pattern: impl Into<String>, shard: TensorShard) -> Self {
        Self {
            pattern: pattern.into(),
            shard,
            unit: 1,
        }
    }

    /// Keeps `features` features together, those of one head of an attention.
    #[must_use]
    pub fn in_units_of(self, features: usize) -> Self {
        Self {
            unit: features,
            ..self
        }
    }

    /// Whether it is about the layer at `path`.
    pub fn matches(&self, path: &str) -> bool {
        let (mut pattern, mut path) = (self.pattern.split('.'), path.split('.'));
        loop {
            match (pattern.next(), path.next()) {
                (None, None) => return true,
                (Some("*"), Some(_)) => {}
                (Some(expected), Some(found)) if expected == found => {}
                _ => return false,
            }
        }
    }
}

/// A model with the rules for sharding it over ranks.
///
/// Its `forward` must bear that a column shard yields fewer features: an attention reads the number
/// of its heads from what its layers yield. Dropout on what is whole must draw the same numbers on
/// all ranks; on parts of it, ranks that draw the same numbers drop the same places of their parts, so a
/// model with dropout there has no rules for these layers.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use burn::module::Module;
/// use burn::prelude::*;
/// use burn::tensor::activation::gelu;
/// use everburn::nn::{Blocks, InBlocks, Linear, TensorParallel, TensorRule};
///
/// #[derive(Module, Debug)]
/// struct FeedForward {
///     up: Linear,
///     down: Linear,
/// }
///
/// impl InBlocks for FeedForward {
///     type Input = Tensor<3>;
///     type Output = Tensor<3>;
///
///     fn blocks(&self) -> Blocks<Self, Tensor<3>, Tensor<3>> {
///         Blocks::first("feed_forward", ["up", "down"], |model: &Self, x| {
///             model.down.forward(gelu(model.up.forward(x)))
///         })
///     }
/// }
///
/// impl TensorParallel for FeedForward {
///     fn tensor_rules(&self) -> Vec<TensorRule> {
///         vec![TensorRule::column("up"), TensorRule::row("down")]
///     }
/// }
/// ```
pub trait TensorParallel: InBlocks {
    /// How its layers are cut; see [`crate::tensor_parallel`]. By default nothing is.
    fn tensor_rules(&self) -> Vec<TensorRule> {
        Vec::new()
    }
}

/// Why a model could not be cut over ranks.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use everburn::nn::TensorParallelError;
///
/// let error = TensorParallelError::UnmatchedRule { pattern: "layers.*.fc1".into() };
/// assert!(error.to_string().starts_with("no layer of the model matches `layers.*.fc1`"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorParallelError {
    /// A rule is about no layer.
    #[error(
        "no layer of the model matches `{pattern}`: a rule names the path of an `everburn::nn::Linear`, \
         in which `*` matches one name or number"
    )]
    UnmatchedRule {
        /// What the rule says.
        pattern: String,
    },
    /// Two rules are about one layer.
    #[error("`{path}` matches both `{first}` and `{second}`: a layer is cut one way")]
    TwoRules {
        /// The layer.
        path: String,
        /// What the first rule says.
        first: String,
        /// What the second rule says.
        second: String,
    },
    /// The features of a layer do not go round.
    #[error(
        "the {features} {side} features of `{path}`, in units of {unit}, cannot be cut into {ranks} \
         equal parts: use a number of ranks that divides {}", features / unit
    )]
    Indivisible {
        /// The layer.
        path: String,
        /// `output` or `input`.
        side: &'static str,
        /// How many there are.
        features: usize,
        /// How many belong together.
        unit: usize,
        /// How many ranks there are.
        ranks: usize,
    },
    /// The layer is a part already.
    #[error("`{path}` has been cut before: cut a whole model, once")]
    CutBefore {
        /// The layer.
        path: String,
    },
    /// More ranks than placements support.
    #[error("a layer cannot be cut over {ranks} ranks: {most} at most")]
    TooManyRanks {
        /// How many there are.
        ranks: usize,
        /// How many there may be.
        most: usize,
    },
    /// The ranks hold different models, or cut them differently.
    #[error(
        "rank {rank} of the tensor group has another model than rank 0, or other rules: all must begin \
         with the same values; give them the same seed or checkpoint"
    )]
    DifferentModels {
        /// The first rank that differs.
        rank: usize,
    },
    /// A collective of the ranks failed.
    #[error(transparent)]
    Collective(#[from] SyncError),
}
