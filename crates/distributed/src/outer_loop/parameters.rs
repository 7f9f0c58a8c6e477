//! The trained parameters of a model as one row of numbers.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use burn::module::Module;
use burn::tensor::{DType, TensorData};

use crate::error::DdpError;
use crate::replicas::{self, TensorDescription, TensorKind};

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

    /// The parameters that have a number in this part of the row, and the part that these are together.
    pub(super) fn around(&self, part: &Range<usize>) -> (&[Slot], Range<usize>) {
        let begin = self.slots.partition_point(|it| it.range.end <= part.start);
        let end = self.slots.partition_point(|it| it.range.start < part.end);
        let slots = &self.slots[begin.min(end)..end];
        let whole = match slots {
            [] => part.clone(),
            [first, .., last] => first.range.start..last.range.end,
            [one] => one.range.clone(),
        };
        (slots, whole)
    }

    /// The numbers of some parameters of `model`, which must have the same shapes.
    pub(super) fn read_some<M: Module>(model: &M, slots: &[Slot]) -> Result<Vec<f32>, DdpError> {
        let paths = slots.iter().map(|slot| slot.path.as_str());
        let paths = paths.collect::<HashSet<_>>();
        let trained = |path: &str, kind| kind == TensorKind::Trainable && paths.contains(path);
        let mut found = replicas::read_where(model, trained)?.into_iter();
        let mut values = Vec::new();
        for slot in slots {
            let Some((tensor, data)) = found.find(|(tensor, _)| tensor.path == slot.path) else {
                return Err(DdpError::OtherModel {
                    difference: format!("it has no trained parameter `{}`", slot.path),
                });
            };
            if tensor.shape != slot.shape || tensor.dtype != slot.dtype {
                return Err(DdpError::OtherModel {
                    difference: format!("`{}` has another shape or type", slot.path),
                });
            }
            extend(&mut values, &tensor, data)?;
        }
        Ok(values)
    }

    pub(super) fn write<M: Module>(&self, model: M, values: &[f32]) -> M {
        Self::write_some(model, &self.slots, values, 0)
    }

    /// `model` with these numbers of some parameters, the first of which is `at` in the row.
    pub(super) fn write_some<M: Module>(model: M, slots: &[Slot], values: &[f32], at: usize) -> M {
        let data = slots.iter().map(|slot| {
            let own = values[slot.range.start - at..slot.range.end - at].to_vec();
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
