//! The state of parameters that are sharded over a tensor group: what has an element for each of their elements is sharded alike.

use std::collections::HashMap;

use burn::module::ParamId;
use everburn_nn::{ParameterShard, ShardError};

use super::{States, data_of, tensor_of};
use crate::error::TrainError;

/// A parameter of which this rank has a part.
#[derive(Debug, Clone)]
pub(crate) struct ShardedParameter {
    pub(crate) shard: ParameterShard,
    /// The shape of the part.
    pub(crate) shape: Vec<usize>,
}

impl ShardedParameter {
    fn full_shape(&self) -> Vec<usize> {
        let mut shape = self.shape.clone();
        shape[self.shard.dim] *= self.shard.parts;
        shape
    }
}

type ShardedParameters = HashMap<ParamId, ShardedParameter>;

/// This rank's part of a state.
pub(crate) fn shard(whole: Vec<u8>, parameters: &ShardedParameters) -> Result<Vec<u8>, TrainError> {
    if parameters.is_empty() {
        return Ok(whole);
    }
    let mut states = States::of(whole)?;
    for (name, tensor) in std::mem::take(&mut states.tensors) {
        let tensor = match parameter_of(&name, parameters) {
            Some(parameter) if *tensor.shape == *parameter.full_shape() => {
                let id = tensor.param_id;
                let part = parameter.shard.cut(&data_of(tensor)?);
                tensor_of(&name, id, part.map_err(misfit)?)
            }
            _ => tensor,
        };
        states.tensors.insert(name, tensor);
    }
    states.into_bytes()
}

/// The states of the ranks of a tensor group together, in their order.
pub(crate) fn join(
    parts: Vec<Vec<u8>>,
    parameters: &ShardedParameters,
) -> Result<Vec<u8>, TrainError> {
    let Some((mut first, mut others)) = States::of_ranks(parts)? else {
        return Ok(Vec::new());
    };
    for (name, tensor) in std::mem::take(&mut first.tensors) {
        let tensor = match parameter_of(&name, parameters) {
            Some(parameter) if *tensor.shape == *parameter.shape => {
                let parts = others.iter_mut().map(|other| other.tensors.remove(&name));
                let id = tensor.param_id;
                let mut all = vec![data_of(tensor)?];
                for part in parts.flatten() {
                    all.push(data_of(part)?);
                }
                tensor_of(&name, id, parameter.shard.join(&all).map_err(misfit)?)
            }
            _ => tensor,
        };
        first.tensors.insert(name, tensor);
    }
    first.into_bytes()
}

/// The sharded parameter whose state the tensor called `name` belongs to.
fn parameter_of<'a>(name: &str, parameters: &'a ShardedParameters) -> Option<&'a ShardedParameter> {
    let id = name.split('.').next().unwrap_or(name).parse::<u64>().ok()?;
    parameters.get(&ParamId::from(id))
}

#[allow(clippy::needless_pass_by_value)] // for `map_err`
fn misfit(error: ShardError) -> TrainError {
    TrainError::BurnTrain(format!("the optimizer's state: {error}"))
}

#[cfg(test)]
mod tests {
    use burn::tensor::TensorData;

    use super::*;

    fn bytes(tensors: &[(&str, TensorData)]) -> Vec<u8> {
        let tensors = tensors
            .iter()
            .map(|(name, data)| tensor_of(name, Some(7), data.clone()));
        let states = States {
            tensors: tensors
                .map(|tensor| (tensor.name.clone(), tensor))
                .collect(),
            ..States::default()
        };
        states.into_bytes().unwrap()
    }

    fn parameters(part: usize) -> ShardedParameters {
        let shard = ParameterShard {
            path: "up.weight".into(),
            dim: 1,
            part,
            parts: 2,
        };
        let shape = vec![2, 1];
        HashMap::from([(ParamId::from(7), ShardedParameter { shard, shape })])
    }

    #[test]
    fn what_is_sharded_is_joined_again_and_all_else_stays() {
        let whole = bytes(&[
            ("7.momentum", TensorData::from([[1.0f32, 2.0], [3.0, 4.0]])),
            ("7.steps", TensorData::from([5.0f32])),
            ("8.momentum", TensorData::from([[6.0f32, 7.0], [8.0, 9.0]])),
        ]);
        let parts = [0, 1].map(|part| shard(whole.clone(), &parameters(part)).unwrap());
        let part = States::of(parts[1].clone()).unwrap();
        let moved = data_of(part.tensors["7.momentum"].clone()).unwrap();
        assert_eq!(moved, TensorData::from([[2.0f32], [4.0]]));
        assert_eq!(part.tensors["7.momentum"].param_id, Some(7));
        assert_eq!(*part.tensors["8.momentum"].shape, [2, 2]);
        assert_eq!(join(parts.to_vec(), &parameters(0)).unwrap(), whole);
    }

    #[test]
    fn a_part_that_did_not_come_is_an_error() {
        let part = bytes(&[("7.momentum", TensorData::from([[1.0f32], [3.0]]))]);
        let error = join(vec![part], &parameters(0)).unwrap_err().to_string();
        assert!(error.contains("2 parts, and 1 have come"), "{error}");
    }
}
