//! The state of parameters that are sharded elementwise over ranks (ZeRO): what has a number for each of a parameter's
//! is sharded alike, and all else every rank has.

use std::collections::HashMap;

use burn::tensor::TensorData;
use burn_pack::{Scalar, Tensor};
use everburn_distributed::ParameterShards;

use super::{States, data_of, tensor_of};
use crate::error::TrainError;

/// The number under which Burn's record has how many dimensions a parameter has. A shard has one.
const DIMENSIONS: &str = "__rank";

pub(crate) type Shapes = HashMap<u64, Vec<usize>>;

/// This rank's shards of a state of full parameters.
///
/// # Errors
/// If the state has something that is not a number for each of a parameter's.
pub(crate) fn local_shards_of(
    whole: Vec<u8>,
    shapes: &Shapes,
    shards: &ParameterShards,
) -> Result<Vec<u8>, TrainError> {
    let mut states = States::of(whole)?;
    for (name, tensor) in std::mem::take(&mut states.tensors) {
        let shape = shape_of(&name, shapes)?;
        if *tensor.shape != **shape {
            return Err(not_elementwise(&name));
        }
        let (id, data) = (tensor.param_id, data_of(tensor)?);
        let shard = tensor_of(&name, id, shards.local_shard(&data));
        states.tensors.insert(name, shard);
    }
    for id in shapes.keys() {
        states.set_dimensions(*id, 1);
    }
    states.into_bytes()
}

/// The state of full parameters, from those of the shards of all ranks, in their order.
///
/// # Errors
/// If the ranks have states of different things, or a state has something that is not a number for each of a
/// shard's.
pub(crate) fn full_state_of(parts: Vec<Vec<u8>>, shapes: &Shapes) -> Result<Vec<u8>, TrainError> {
    let world_size = parts.len();
    let Some((mut first, mut others)) = States::of_ranks(parts)? else {
        return Ok(Vec::new());
    };
    for (name, tensor) in std::mem::take(&mut first.tensors) {
        let shape = shape_of(&name, shapes)?;
        let elements: usize = shape.iter().product();
        let length = elements.div_ceil(world_size);
        let (id, own) = (tensor.param_id, data_of(tensor)?);
        let (dtype, size) = (own.dtype(), own.dtype().size());
        let mut bytes = Vec::with_capacity(world_size * length * size);
        let mut add = |data: &TensorData| match **data.shape() == [length] {
            true => {
                bytes.extend_from_slice(data.as_bytes());
                Ok(())
            }
            false => Err(not_elementwise(&name)),
        };
        add(&own)?;
        for (rank, other) in others.iter_mut().enumerate() {
            let part = other.tensors.remove(&name).ok_or_else(|| {
                let rank = rank + 1;
                TrainError::BurnTrain(format!(
                    "the optimizer's state: `{name}` has not come from rank {rank}"
                ))
            })?;
            add(&data_of(part)?)?;
        }
        bytes.truncate(elements * size);
        let whole = TensorData::from_bytes_vec(bytes, shape.clone(), dtype);
        first
            .tensors
            .insert(name.clone(), tensor_of(&name, id, whole));
    }
    for (id, shape) in shapes {
        first.set_dimensions(*id, shape.len());
    }
    first.into_bytes()
}

/// The state with other identities of parameters: each process draws its own, and what ranks exchange has to
/// name a parameter alike.
///
/// # Errors
/// If the state has something of a parameter that is not in `identities`.
pub(crate) fn renamed(
    state: Vec<u8>,
    identities: &HashMap<u64, u64>,
) -> Result<Vec<u8>, TrainError> {
    let states = States::of(state)?;
    let rename = |name: &str| {
        let (id, rest) = name.split_at(name.find('.').unwrap_or(name.len()));
        let new = id.parse().ok().and_then(|id: u64| identities.get(&id));
        let new = new.ok_or_else(|| not_trained(name))?;
        Ok::<_, TrainError>((*new, format!("{new}{rest}")))
    };
    let mut named = States::default();
    for (name, tensor) in states.tensors {
        let (id, name) = rename(&name)?;
        let tensor = tensor_of(&name, Some(id), data_of(tensor)?);
        named.tensors.insert(name, tensor);
    }
    for (name, value) in states.scalars {
        named.scalars.insert(rename(&name)?.1, value);
    }
    for (name, path) in states.paths {
        named.paths.insert(rename(&name)?.1, path);
    }
    named.into_bytes()
}

/// How many bytes the tensors of a state have.
pub(crate) fn num_bytes(state: Vec<u8>) -> Result<u64, TrainError> {
    let states = States::of(state)?;
    let of = |tensor: &Tensor| tensor.shape.num_elements() * tensor.dtype.size();
    Ok(states
        .tensors
        .values()
        .map(|tensor| of(tensor) as u64)
        .sum())
}

impl States {
    /// Sets how many dimensions the parameter `id` has, if there is a state of it.
    fn set_dimensions(&mut self, id: u64, dimensions: usize) {
        if let Some(known) = self.scalars.get_mut(&format!("{id}.{DIMENSIONS}")) {
            *known = Scalar::from(dimensions);
        }
    }
}

fn shape_of<'a>(name: &str, shapes: &'a Shapes) -> Result<&'a Vec<usize>, TrainError> {
    let id = name.split('.').next().and_then(|id| id.parse().ok());
    id.and_then(|id: u64| shapes.get(&id))
        .ok_or_else(|| not_trained(name))
}

fn not_trained(name: &str) -> TrainError {
    TrainError::BurnTrain(format!(
        "the optimizer's state: `{name}` is of a parameter that is not trained"
    ))
}

fn not_elementwise(name: &str) -> TrainError {
    TrainError::BurnTrain(format!(
        "the optimizer's state: `{name}` has not one number for each of its parameter's, and cannot be sharded \
         over the ranks; train without `training.ddp.shard`"
    ))
}

#[cfg(test)]
mod tests {
    use everburn_tests::AssertContains;

    use super::*;

    fn state(tensors: &[(&str, TensorData)], dimensions: u64) -> Vec<u8> {
        let tensors = tensors
            .iter()
            .map(|(name, data)| (name.to_string(), tensor_of(name, Some(7), data.clone())));
        let states = States {
            tensors: tensors.collect(),
            scalars: [
                ("7.__rank".to_string(), Scalar::UInt(dimensions)),
                ("7.momentum.time".to_string(), Scalar::Int(3)),
            ]
            .into(),
            ..States::default()
        };
        states.into_bytes().unwrap()
    }

    #[test]
    fn shards_of_all_ranks_are_the_full_state_again() {
        let shapes = Shapes::from([(7, vec![1, 3])]);
        let shard = |values: [f32; 2]| state(&[("7.moment", TensorData::from(values))], 1);
        let whole = full_state_of(vec![shard([1.0, 2.0]), shard([3.0, 0.0])], &shapes).unwrap();
        let moment = TensorData::from([[1.0f32, 2.0, 3.0]]);
        assert_eq!(whole, state(&[("7.moment", moment)], 2));
        assert_eq!(num_bytes(whole).unwrap(), 12);
    }

    #[test]
    fn a_state_follows_its_parameter_to_another_identity() {
        let whole = state(&[("7.moment", TensorData::from([1.0f32, 2.0]))], 1);
        let there = renamed(whole.clone(), &[(7, 0)].into()).unwrap();
        let moved = States::of(there.clone()).unwrap();
        assert_eq!(moved.tensors["0.moment"].param_id, Some(0));
        assert!(moved.scalars.contains_key("0.momentum.time"));
        assert_eq!(renamed(there, &[(0, 7)].into()).unwrap(), whole);
        let error = renamed(whole, &[(8, 0)].into()).unwrap_err();
        assert!(error.to_string().contains("not trained"), "{error}");
    }

    #[test]
    fn what_has_another_form_or_does_not_come_is_refused() {
        let shapes = Shapes::from([(7, vec![2, 2])]);
        let row = state(&[("7.row", TensorData::from([1.0f32]))], 1);
        let error = full_state_of(vec![row.clone(), row], &shapes).unwrap_err();
        error
            .to_string()
            .assert_contains(["without `training.ddp.shard`"]);
        let shard = state(&[("7.moment", TensorData::from([1.0f32, 2.0]))], 1);
        let error = full_state_of(vec![shard, state(&[], 1)], &shapes).unwrap_err();
        assert!(error.to_string().contains("from rank 1"), "{error}");
    }
}
