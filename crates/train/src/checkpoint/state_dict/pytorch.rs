//! Tensors of `.pt` files, and back.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use burn::store::bridge;
use burn::store::burn_pack::{Error as PackError, Tensor as PackedTensor};
use burn::tensor::{BoolStore, DType, Shape, TensorData};
use everburn_pytorch_weights::{self as weights, Entry, NewTensor, WeightsError, WeightsFile};
use everburn_record::sync::lock;

use crate::checkpoint::tensor_file::NamedTensor;

/// Burn's types of numbers, and what they are in PyTorch's files.
const TYPES: [(DType, weights::DType); 14] = [
    (DType::F64, weights::DType::F64),
    (DType::F32, weights::DType::F32),
    (DType::F16, weights::DType::F16),
    (DType::BF16, weights::DType::BF16),
    (DType::I64, weights::DType::I64),
    (DType::I32, weights::DType::I32),
    (DType::I16, weights::DType::I16),
    (DType::I8, weights::DType::I8),
    (DType::U64, weights::DType::U64),
    (DType::U32, weights::DType::U32),
    (DType::U16, weights::DType::U16),
    (DType::U8, weights::DType::U8),
    (DType::Bool(BoolStore::Native), weights::DType::Bool),
    // A byte each too; what is read has the type above.
    (DType::Bool(BoolStore::U8), weights::DType::Bool),
];

/// The tensors of a file by name. Numbers are read when they are drawn, so those of tensors that the model does
/// not have never are.
pub(super) fn read(path: &Path) -> Result<BTreeMap<String, PackedTensor>, WeightsError> {
    let file = WeightsFile::open(path)?;
    let described = file.tensors().map(|tensor| {
        let found = TYPES.iter().find(|(_, theirs)| *theirs == tensor.dtype());
        let (dtype, _) = found.ok_or_else(|| WeightsError::Tensor {
            name: tensor.name().escape_debug().to_string(),
            reason: format!("numbers of type {} cannot be read", tensor.dtype()),
        })?;
        let shape = Shape::from(tensor.shape().to_vec());
        Ok((tensor.name().to_string(), *dtype, shape))
    });
    let described = described.collect::<Result<Vec<_>, WeightsError>>()?;
    let file = Arc::new(Mutex::new(file));
    let tensors = described.into_iter().map(|(name, dtype, shape)| {
        let (file, name_in_file, shape_of_it) = (Arc::clone(&file), name.clone(), shape.clone());
        let numbers = move || {
            let mut file = lock(&file);
            let tensor = file.load(&name_in_file);
            let tensor = tensor.map_err(|error| PackError::ValidationError(error.to_string()))?;
            TensorData::try_from_bytes_vec(tensor.bytes, shape_of_it.clone(), dtype)
                .map_err(|error| PackError::ValidationError(error.to_string()))
        };
        let tensor = bridge::deferred(name.clone(), dtype, shape, None, numbers);
        (name, tensor)
    });
    Ok(tensors.collect())
}

/// Which entry of a checkpoint is read.
pub(super) fn entry(path: &Path) -> Result<Entry, WeightsError> {
    Ok(WeightsFile::open(path)?.entry().clone())
}

/// A file as `torch.save(state_dict)` writes it.
pub(super) fn to_bytes(tensors: &[NamedTensor]) -> Result<Vec<u8>, String> {
    let tensors = tensors.iter().map(|(name, data)| {
        let found = TYPES.iter().find(|(ours, _)| *ours == data.dtype());
        let (_, dtype) = found.ok_or_else(|| {
            format!(
                "{name}: numbers of type {:?} have no place in it",
                data.dtype()
            )
        })?;
        Ok(NewTensor {
            name,
            dtype: *dtype,
            shape: data.shape(),
            bytes: data.as_bytes(),
        })
    });
    let tensors = tensors.collect::<Result<Vec<_>, String>>()?;
    weights::to_bytes(&tensors).map_err(|error| error.to_string())
}
