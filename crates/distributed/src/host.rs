//! Flat buffers in host memory, on their way between tensors and the process group.

use burn::tensor::{DType, TensorData, bf16, f16};
use everburn_collectives::group::{CollectiveError, ProcessGroup, ReduceOp, Work};

/// Numbers of one type, flat.
pub(crate) enum HostBuffer {
    F32(Vec<f32>),
    F64(Vec<f64>),
    F16(Vec<f16>),
    BF16(Vec<bf16>),
}

/// An all-reduce under way.
pub(crate) enum PendingBuffer {
    F32(Work<Vec<f32>>),
    F64(Work<Vec<f64>>),
    F16(Work<Vec<f16>>),
    BF16(Work<Vec<bf16>>),
}

impl HostBuffer {
    /// An empty buffer, or `None` for a type that cannot be averaged.
    pub(crate) fn with_capacity(dtype: DType, capacity: usize) -> Option<Self> {
        match dtype {
            DType::F32 | DType::Flex32 => Some(Self::F32(Vec::with_capacity(capacity))),
            DType::F64 => Some(Self::F64(Vec::with_capacity(capacity))),
            DType::F16 => Some(Self::F16(Vec::with_capacity(capacity))),
            DType::BF16 => Some(Self::BF16(Vec::with_capacity(capacity))),
            _ => None,
        }
    }

    /// Appends the elements of `data`; fails if they have another type.
    pub(crate) fn extend(&mut self, data: &TensorData) -> Result<(), String> {
        let wrong = |error| format!("{error:?}");
        match self {
            Self::F32(values) => values.extend_from_slice(data.as_slice().map_err(wrong)?),
            Self::F64(values) => values.extend_from_slice(data.as_slice().map_err(wrong)?),
            Self::F16(values) => values.extend_from_slice(data.as_slice().map_err(wrong)?),
            Self::BF16(values) => values.extend_from_slice(data.as_slice().map_err(wrong)?),
        }
        Ok(())
    }

    /// Appends `count` zeros.
    pub(crate) fn extend_with_zeros(&mut self, count: usize) {
        match self {
            Self::F32(values) => values.resize(values.len() + count, 0.0),
            Self::F64(values) => values.resize(values.len() + count, 0.0),
            Self::F16(values) => values.resize(values.len() + count, f16::ZERO),
            Self::BF16(values) => values.resize(values.len() + count, bf16::ZERO),
        }
    }

    /// Multiplies every element by `factor`, in f32 for the half types.
    pub(crate) fn scale(&mut self, factor: f64) {
        let narrow = factor as f32;
        match self {
            Self::F32(values) => values.iter_mut().for_each(|v| *v *= narrow),
            Self::F64(values) => values.iter_mut().for_each(|v| *v *= factor),
            Self::F16(values) => {
                values
                    .iter_mut()
                    .for_each(|v| *v = f16::from_f32(v.to_f32() * narrow));
            }
            Self::BF16(values) => {
                values
                    .iter_mut()
                    .for_each(|v| *v = bf16::from_f32(v.to_f32() * narrow));
            }
        }
    }

    /// Starts to add up the buffers of all ranks.
    pub(crate) fn all_reduce(self, group: &ProcessGroup) -> PendingBuffer {
        let op = ReduceOp::Sum;
        match self {
            Self::F32(values) => PendingBuffer::F32(group.all_reduce(values, op)),
            Self::F64(values) => PendingBuffer::F64(group.all_reduce(values, op)),
            Self::F16(values) => PendingBuffer::F16(group.all_reduce(values, op)),
            Self::BF16(values) => PendingBuffer::BF16(group.all_reduce(values, op)),
        }
    }

    /// A copy of `shape`'s number of elements from `start` on.
    pub(crate) fn tensor_data(&self, start: usize, shape: &[usize]) -> TensorData {
        let end = start + shape.iter().product::<usize>();
        match self {
            Self::F32(values) => TensorData::new(values[start..end].to_vec(), shape),
            Self::F64(values) => TensorData::new(values[start..end].to_vec(), shape),
            Self::F16(values) => TensorData::new(values[start..end].to_vec(), shape),
            Self::BF16(values) => TensorData::new(values[start..end].to_vec(), shape),
        }
    }
}

impl PendingBuffer {
    pub(crate) fn wait(self) -> Result<HostBuffer, CollectiveError> {
        match self {
            Self::F32(work) => work.wait().map(HostBuffer::F32),
            Self::F64(work) => work.wait().map(HostBuffer::F64),
            Self::F16(work) => work.wait().map(HostBuffer::F16),
            Self::BF16(work) => work.wait().map(HostBuffer::BF16),
        }
    }
}
