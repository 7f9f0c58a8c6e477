//! Which parameters are parts of what, and putting them together.

use burn::module::Module;
use burn::tensor::{DType, TensorData};

use super::conversion::{Site, ruled, sites};
use super::rules::{TensorParallelError, TensorRule, TensorShard};

/// A parameter of which this rank holds a part.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use burn::tensor::TensorData;
/// use everburn::nn::ParameterShard;
///
/// let shard = |part| ParameterShard { path: "up.weight".into(), dim: 1, part, parts: 2 };
/// let whole = TensorData::from([[1.0f32, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]]);
/// let parts = [0, 1].map(|part| shard(part).cut(&whole).unwrap());
/// assert_eq!(parts[1], TensorData::from([[3.0f32, 4.0], [7.0, 8.0]]));
/// assert_eq!(shard(0).join(&parts).unwrap(), whole);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParameterShard {
    /// Where it is in the model: the same for the part and for the whole.
    pub path: String,
    /// Along which dimension it is cut.
    pub dim: usize,
    /// Which part this rank has, counted from 0 in the order of the whole.
    pub part: usize,
    /// How many equal parts there are.
    pub parts: usize,
}

/// Why parts could not be put together, or a whole not be cut.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use everburn::nn::ShardError;
///
/// let error = ShardError::Count { path: "fc1.weight".into(), parts: 4, found: 3 };
/// assert_eq!(error.to_string(), "`fc1.weight` has 4 parts, and 3 have come");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShardError {
    /// Another number of parts.
    #[error("`{path}` has {parts} parts, and {found} have come")]
    Count {
        /// The parameter.
        path: String,
        /// How many there are.
        parts: usize,
        /// How many have come.
        found: usize,
    },
    /// Parts that do not fit each other, or a whole that cannot be cut.
    #[error(
        "`{path}`, cut along dimension {dim} into {parts} equal parts, cannot have shape {shape:?}"
    )]
    Shape {
        /// The parameter.
        path: String,
        /// Along which dimension it is cut.
        dim: usize,
        /// How many parts there are.
        parts: usize,
        /// The first shape that does not fit.
        shape: Vec<usize>,
    },
    /// Parts of different types, or a type whose elements have no fixed size.
    #[error(
        "`{path}` cannot be put together from, or cut into, parts with elements of type {dtype}"
    )]
    Type {
        /// The parameter.
        path: String,
        /// The type.
        dtype: String,
    },
}

/// The parameters of `model` of which this rank holds a part, in the order of its fields; empty for a
/// model that has not been cut. All others are whole, and the same on all ranks of the group.
///
/// A norm over all gradients, as for clipping, adds the squares of these up over the ranks, and counts
/// those of all others once.
///
/// See [`crate::tensor_parallel`].
pub fn parameter_shards<M: Module>(model: &M) -> Vec<ParameterShard> {
    let mut shards = Vec::new();
    for site in sites(model) {
        if let Some(membership) = &site.membership {
            let (part, parts) = (membership.rank(), membership.world_size());
            shards.extend(shards_of(&site, membership.shard, part, parts));
        }
    }
    shards
}

/// The parameters of which rank `part` of `parts` will hold a part when [`crate::tensor_parallel`] has
/// cut `model` as `rules` say; what [`parameter_shards`] will return then. No parameter is drawn, and
/// nobody is asked.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use burn::prelude::*;
/// use everburn::nn::{LinearConfig, TensorRule, planned_shards};
///
/// let linear = LinearConfig::new(4, 6).init(&Device::flex());
/// let shards = planned_shards(&linear, &[TensorRule::column("")], 1, 3)?;
/// let paths: Vec<_> = shards.iter().map(|shard| shard.path.as_str()).collect();
/// assert_eq!(paths, ["weight", "bias"]);
/// assert!(planned_shards(&linear, &[TensorRule::column("")], 0, 4).is_err());
/// # Ok::<(), everburn_nn::TensorParallelError>(())
/// ```
///
/// # Errors
/// [`TensorParallelError`] if the model cannot be cut so.
pub fn planned_shards<M: Module>(
    model: &M,
    rules: &[TensorRule],
    part: usize,
    parts: usize,
) -> Result<Vec<ParameterShard>, TensorParallelError> {
    let sites = sites(model);
    let cuts = ruled(&sites, rules, parts)?;
    let shards = cuts
        .into_iter()
        .flat_map(|(layer, shard)| shards_of(&sites[layer], shard, part, parts));
    Ok(shards.collect())
}

fn shards_of(site: &Site, shard: TensorShard, part: usize, parts: usize) -> Vec<ParameterShard> {
    let of = |name: &str, dim| ParameterShard {
        path: match site.path.as_str() {
            "" => name.to_owned(),
            layer => format!("{layer}.{name}"),
        },
        dim,
        part,
        parts,
    };
    match shard {
        TensorShard::Column if site.has_bias => vec![of("weight", 1), of("bias", 0)],
        TensorShard::Column => vec![of("weight", 1)],
        TensorShard::Row => vec![of("weight", 0)],
    }
}

impl ParameterShard {
    /// This rank's part of the whole parameter.
    ///
    /// # Errors
    /// [`ShardError`] if the whole cannot be cut this way.
    pub fn cut(&self, whole: &TensorData) -> Result<TensorData, ShardError> {
        let shape = whole.shape().to_vec();
        let length = *shape.get(self.dim).ok_or_else(|| self.misfit(&shape))?;
        if self.parts == 0 || self.part >= self.parts || !length.is_multiple_of(self.parts) {
            return Err(self.misfit(&shape));
        }
        let row = self.row_bytes(whole)?;
        let part = row / self.parts;
        let rows = whole.as_bytes().chunks_exact(row.max(1));
        let bytes = rows.flat_map(|row| &row[self.part * part..][..part]);
        let bytes = bytes.copied().collect::<Vec<_>>();
        let mut shape = shape;
        shape[self.dim] = length / self.parts;
        Ok(TensorData::from_bytes_vec(bytes, shape, whole.dtype()))
    }

    /// The whole parameter, from all parts in order.
    ///
    /// # Errors
    /// [`ShardError`] if there are more or fewer parts, or parts that do not fit each other.
    pub fn join(&self, parts: &[TensorData]) -> Result<TensorData, ShardError> {
        let first = match parts {
            [first, ..] if parts.len() == self.parts => first,
            _ => {
                return Err(ShardError::Count {
                    path: self.path.clone(),
                    parts: self.parts,
                    found: parts.len(),
                });
            }
        };
        let mut shape = first.shape().to_vec();
        if self.dim >= shape.len() {
            return Err(self.misfit(&shape));
        }
        for part in parts {
            if part.shape() != first.shape() {
                return Err(self.misfit(part.shape()));
            }
            if part.dtype() != first.dtype() {
                return Err(self.wrong_type(part.dtype()));
            }
        }
        let row = self.row_bytes(first)?;
        let rows = first.as_bytes().len() / row.max(1);
        let mut bytes = Vec::with_capacity(first.as_bytes().len() * parts.len());
        for index in 0..rows {
            for part in parts {
                bytes.extend_from_slice(&part.as_bytes()[index * row..][..row]);
            }
        }
        shape[self.dim] *= self.parts;
        Ok(TensorData::from_bytes_vec(bytes, shape, first.dtype()))
    }

    /// The bytes of all that is under one index of the dimensions before `dim`.
    fn row_bytes(&self, data: &TensorData) -> Result<usize, ShardError> {
        if matches!(data.dtype(), DType::QFloat(_)) {
            return Err(self.wrong_type(data.dtype()));
        }
        let elements: usize = data.shape()[self.dim..].iter().product();
        Ok(elements * data.dtype().size())
    }

    fn misfit(&self, shape: &[usize]) -> ShardError {
        ShardError::Shape {
            path: self.path.clone(),
            dim: self.dim,
            parts: self.parts,
            shape: shape.to_vec(),
        }
    }

    fn wrong_type(&self, dtype: DType) -> ShardError {
        ShardError::Type {
            path: self.path.clone(),
            dtype: format!("{dtype:?}"),
        }
    }
}
