//! Parts of an optimizer's state, in Burn's record, and the same by path.
//!
//! Burn's record has, for each parameter, tensors, numbers and a path whose names begin with the
//! parameter's identity and a dot, or are it.

mod local_shards;
mod mean;
mod paths;
mod shards;

use std::collections::BTreeMap;

use burn::module::ParamId;
use burn::tensor::{Bytes, TensorData};
use burn_pack::{Reader, Scalar, Tensor, Writer};

use crate::error::TrainError;

pub(crate) use local_shards::{Shapes, full_state_of, local_shards_of, num_bytes, renamed};
pub(crate) use mean::mean;
pub(crate) use paths::{by_path, of_paths};
pub(crate) use shards::{ShardedParameter, join, shard};

#[derive(Default)]
struct States {
    tensors: BTreeMap<String, Tensor>,
    scalars: BTreeMap<String, Scalar>,
    paths: BTreeMap<String, String>,
}

/// The state of the parameters `own` only.
pub(crate) fn keep_only(bytes: Vec<u8>, own: &[ParamId]) -> Result<Vec<u8>, TrainError> {
    let own = own
        .iter()
        .map(|id| id.val().to_string())
        .collect::<Vec<_>>();
    let is_own = |name: &String| {
        let id = name.split('.').next().unwrap_or(name);
        own.iter().any(|own| own == id)
    };
    let mut states = States::of(bytes)?;
    states.tensors.retain(|name, _| is_own(name));
    states.scalars.retain(|name, _| is_own(name));
    states.paths.retain(|name, _| is_own(name));
    states.into_bytes()
}

/// The states of all `parts` together; what several have is the first one's.
pub(crate) fn merge(parts: Vec<Vec<u8>>) -> Result<Vec<u8>, TrainError> {
    let mut states = States::default();
    for part in parts {
        states.add(part)?;
    }
    states.into_bytes()
}

/// How many tensors and numbers a record has.
pub(crate) fn num_entries(bytes: Vec<u8>) -> Result<usize, TrainError> {
    let states = States::of(bytes)?;
    Ok(states.tensors.len() + states.scalars.len())
}

impl States {
    fn of(bytes: Vec<u8>) -> Result<Self, TrainError> {
        let mut states = Self::default();
        states.add(bytes)?;
        Ok(states)
    }

    /// The first rank's state, and those of the others; `None` of no rank.
    fn of_ranks(parts: Vec<Vec<u8>>) -> Result<Option<(Self, Vec<Self>)>, TrainError> {
        let mut states = parts.into_iter().map(Self::of);
        let first = states.next().transpose()?;
        let others = states.collect::<Result<_, _>>()?;
        Ok(first.map(|first| (first, others)))
    }

    fn add(&mut self, bytes: Vec<u8>) -> Result<(), TrainError> {
        let reader = Reader::from_bytes(Bytes::from_bytes_vec(bytes)).map_err(wrong)?;
        for (name, value) in reader.scalars() {
            self.scalars.entry(name.clone()).or_insert(*value);
        }
        for (name, path) in reader.metadata() {
            self.paths.entry(name.clone()).or_insert(path.clone());
        }
        for tensor in reader.into_tensors().map_err(wrong)? {
            let (name, dtype, shape, id, bytes) = tensor.into_parts().map_err(wrong)?;
            let tensor = Tensor::new(name.clone(), dtype, shape, id, bytes);
            self.tensors.entry(name).or_insert(tensor);
        }
        Ok(())
    }

    fn into_bytes(self) -> Result<Vec<u8>, TrainError> {
        let mut writer = Writer::new(self.tensors.into_values().collect());
        for (name, value) in &self.scalars {
            writer = writer.with_scalar(name, *value);
        }
        for (name, path) in &self.paths {
            writer = writer.with_metadata(name, path);
        }
        Ok(writer.into_bytes().map_err(wrong)?.to_vec())
    }
}

fn data_of(tensor: Tensor) -> Result<TensorData, TrainError> {
    let (_, dtype, shape, _, bytes) = tensor.into_parts().map_err(wrong)?;
    Ok(TensorData::from_bytes(bytes, shape, dtype))
}

fn tensor_of(name: &str, id: Option<u64>, data: TensorData) -> Tensor {
    let (dtype, shape) = (data.dtype(), data.shape().clone());
    Tensor::new(name.to_string(), dtype, shape, id, data.into_bytes())
}

#[allow(clippy::needless_pass_by_value)] // for `map_err`
fn wrong(error: burn_pack::Error) -> TrainError {
    TrainError::BurnTrain(format!("the optimizer's state: {error}"))
}
