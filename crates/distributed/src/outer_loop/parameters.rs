//! The trained parameters of a model as one row of numbers.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use burn::module::Module;
use burn::tensor::{DType, TensorData};

use crate::error::DdpError;
use crate::replicas::{self, TensorDescription};

/// Where each trained parameter is in the row. What a model holds twice is there once.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Parameters {
    slots: Vec<Slot>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Slot {
    /// Its number among all tensors, in visiting order.
    position: usize,
    pub(super) path: String,
    pub(super) shape: Vec<usize>,
    dtype: DType,
    pub(super) range: Range<usize>,
}

impl Parameters {
    /// Those of `model`, and their numbers.
    pub(super) fn of<M: Module>(model: &M) -> Result<(Self, Vec<f32>), DdpError> {
        let mut known = HashSet::new();
        let mut values = Vec::new();
        let mut slots = Vec::new();
        for (tensor, data) in replicas::read_trained(model)? {
            if !known.insert(tensor.id) {
                continue;
            }
            let begin = values.len();
            extend(&mut values, &tensor, data)?;
            slots.push(Slot {
                position: tensor.position,
                path: tensor.path,
                shape: tensor.shape,
                dtype: tensor.dtype,
                range: begin..values.len(),
            });
        }
        Ok((Self { slots }, values))
    }

    /// The numbers of `model`, which must have the same parameters.
    pub(super) fn read<M: Module>(&self, model: &M) -> Result<Vec<f32>, DdpError> {
        let (found, values) = Self::of(model)?;
        match self == &found {
            true => Ok(values),
            false => Err(DdpError::OtherModel {
                difference: "its trained parameters are others".to_string(),
            }),
        }
    }

    /// `model` with these numbers.
    pub(super) fn write<M: Module>(&self, model: M, values: &[f32]) -> M {
        let data = self.slots.iter().map(|slot| {
            let own = values[slot.range.clone()].to_vec();
            let data = TensorData::new(own, slot.shape.as_slice());
            (slot.position, data.convert_dtype(slot.dtype))
        });
        replicas::replace_some(model, data.collect::<HashMap<_, _>>())
    }

    /// Whether the model keeps fewer digits of a number than the row does.
    pub(super) fn rounds(&self) -> bool {
        self.slots.iter().any(|slot| slot.dtype != DType::F32)
    }

    pub(super) fn slots(&self) -> &[Slot] {
        &self.slots
    }
}

fn extend(
    values: &mut Vec<f32>,
    tensor: &TensorDescription,
    data: TensorData,
) -> Result<(), DdpError> {
    match tensor.dtype {
        DType::F32 | DType::F16 | DType::BF16 => {
            let data = data.convert_dtype(DType::F32);
            let own = data.as_slice::<f32>().map_err(|error| DdpError::Read {
                parameter: tensor.path.clone(),
                reason: format!("{error:?}"),
            })?;
            values.extend_from_slice(own);
            Ok(())
        }
        other => Err(DdpError::UnsupportedType {
            parameter: tensor.path.clone(),
            dtype: format!("{other:?}"),
        }),
    }
}
