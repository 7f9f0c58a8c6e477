//! What PyTorch's functions would have made of their arguments. None is called.

use super::Machine;
use crate::error::{WeightsError, pickle as refuse};
use crate::pickle::{Global, Storage, Tensor, Tuple, Value};

/// As many dimensions as PyTorch's tensors may have.
const MOST_DIMENSIONS: usize = 64;

/// What is said of a tensor beside its numbers, at most: PyTorch says two things.
const MOST_METADATA: usize = 64;

impl Machine<'_> {
    /// `("storage", class, key, location, count)`
    pub(super) fn storage(&mut self, id: Value) -> Result<Value, WeightsError> {
        let parts = match id {
            Value::Tuple(parts) => self.built.tuple(parts),
            _ => &[],
        };
        let [
            Value::Text(kind),
            Value::Global(Global::Storage(class)),
            Value::Text(key),
            _,
            Value::Int(count),
            ..,
        ] = *parts
        else {
            return Err(refuse(
                "a storage in its pickle is not described as PyTorch does it",
            ));
        };
        let count = u64::try_from(count)
            .ok()
            .filter(|_| self.built.bytes(kind) == b"storage" && key.is_short());
        let count = count
            .ok_or_else(|| refuse("a storage in its pickle is not described as PyTorch does it"))?;
        self.built.budget.pay(size_of::<Storage>().div_ceil(16))?;
        let place = self.built.storages.len() as u32;
        self.built.storages.push(Storage { class, key, count });
        Ok(Value::Storage(place))
    }

    /// What a class or function would have made of its arguments.
    pub(super) fn make(&mut self, callee: Value, arguments: Value) -> Result<Value, WeightsError> {
        let (Value::Global(global), Value::Tuple(tuple)) = (callee, arguments) else {
            return Err(refuse("its pickle calls something that is not a class"));
        };
        let arguments = self.built.tuple(tuple);
        match (global, arguments) {
            (Global::Dict, _) => self.empty_dict(),
            (Global::Tensor | Global::TensorWithType, _) => self.tensor(global, tuple),
            (Global::Parameter, [tensor @ Value::Tensor(_), ..]) => Ok(*tensor),
            (Global::TensorClass, [tensor @ Value::Tensor(_)]) => Ok(*tensor),
            (Global::Size, [size @ Value::Tuple(_)]) => Ok(*size),
            (
                Global::FromType,
                [
                    Value::Global(
                        rebuild @ (Global::Tensor | Global::TensorWithType | Global::Parameter),
                    ),
                    Value::Global(Global::TensorClass),
                    inner @ Value::Tuple(_),
                    ..,
                ],
            ) => self.make(Value::Global(*rebuild), *inner),
            (Global::Parameter | Global::FromType | Global::Size, _) => Err(refuse(
                "a tensor in its pickle is not described as PyTorch does it",
            )),
            _ => Ok(Value::Other),
        }
    }

    /// `(storage, offset, shape, strides, requires_grad, hooks, [dtype], [metadata])`
    fn tensor(&mut self, kind: Global, arguments: Tuple) -> Result<Value, WeightsError> {
        let [
            Value::Storage(storage),
            Value::Int(offset),
            Value::Tuple(shape),
            Value::Tuple(strides),
            rest @ ..,
        ] = self.built.tuple(arguments)
        else {
            return Err(refuse(
                "a tensor in its pickle is not described as PyTorch does it",
            ));
        };
        let rest = rest.get(2..).unwrap_or_default();
        let (dtype, rest) = match (kind, rest) {
            (Global::TensorWithType, [Value::Global(dtype), rest @ ..]) => (Some(*dtype), rest),
            (Global::TensorWithType, _) => {
                return Err(refuse("a tensor in its pickle has no type"));
            }
            _ => (None, rest),
        };
        let metadata = match rest {
            [Value::Dict(metadata), ..] => Some(*metadata),
            _ => None,
        };
        // Compared and copied for each tensor, however many share them.
        let most = shape.length.max(strides.length) as usize;
        let metadata_length = metadata.map_or(0, |id| self.built.pairs(id).count());
        if most > MOST_DIMENSIONS || metadata_length > MOST_METADATA {
            return Err(refuse(
                "a tensor in its pickle has more dimensions than PyTorch's tensors have",
            ));
        }
        let offset = u64::try_from(*offset)
            .map_err(|_| refuse("a tensor in its pickle begins before its storage"))?;
        let tensor = Tensor {
            storage: *storage,
            offset,
            shape: *shape,
            strides: *strides,
            dtype,
            metadata,
        };
        self.built.budget.pay(size_of::<Tensor>().div_ceil(16))?;
        let place = self.built.tensors.len() as u32;
        self.built.tensors.push(tensor);
        Ok(Value::Tensor(place))
    }
}
