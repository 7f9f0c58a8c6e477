//! Flat buffers in host memory, on their way between tensors and the process group.

use std::ops::Range;

use burn::tensor::{DType, TensorData, bf16, f16};
use everburn_collectives::group::{CollectiveError, ProcessGroup, ReduceOp};

/// Numbers of one type, flat.
#[derive(Debug)]
pub(crate) enum HostBuffer {
    F32(Vec<f32>),
    F64(Vec<f64>),
    F16(Vec<f16>),
    BF16(Vec<bf16>),
}

/// Runs the same code on the `Vec` of each type.
macro_rules! each_type {
    ($buffer:expr, $values:ident => $body:expr) => {
        match $buffer {
            Self::F32($values) => $body,
            Self::F64($values) => $body,
            Self::F16($values) => $body,
            Self::BF16($values) => $body,
        }
    };
}

/// The arithmetic of gradients; the half types compute in f32.
trait Gradient: Copy {
    fn times(self, factor: f64) -> Self;
    fn plus(self, other: Self, factor: f64) -> Self;
}

impl Gradient for f32 {
    fn times(self, factor: f64) -> Self {
        self * factor as Self
    }
    fn plus(self, other: Self, factor: f64) -> Self {
        self + other * factor as Self
    }
}

impl Gradient for f64 {
    fn times(self, factor: f64) -> Self {
        self * factor
    }
    fn plus(self, other: Self, factor: f64) -> Self {
        self + other * factor
    }
}

macro_rules! half_gradient {
    ($($type:ty),*) => {$(
        impl Gradient for $type {
            fn times(self, factor: f64) -> Self {
                Self::from_f32(self.to_f32() * factor as f32)
            }
            fn plus(self, other: Self, factor: f64) -> Self {
                Self::from_f32(self.to_f32() + other.to_f32() * factor as f32)
            }
        }
    )*};
}

half_gradient!(f16, bf16);

impl HostBuffer {
    /// A buffer of zeros, or `None` for a type that cannot be averaged.
    pub(crate) fn zeroed(dtype: DType, length: usize) -> Option<Self> {
        match dtype {
            DType::F32 | DType::Flex32 => Some(Self::F32(vec![0.0; length])),
            DType::F64 => Some(Self::F64(vec![0.0; length])),
            DType::F16 => Some(Self::F16(vec![f16::ZERO; length])),
            DType::BF16 => Some(Self::BF16(vec![bf16::ZERO; length])),
            _ => None,
        }
    }

    /// Writes `factor` times `data` to `range`, or adds it to what is there; fails if `data` has
    /// another type or length.
    pub(crate) fn put(
        &mut self,
        range: Range<usize>,
        data: &TensorData,
        factor: f64,
        add: bool,
    ) -> Result<(), String> {
        each_type!(self, values => {
            let new = data.as_slice().map_err(|error| format!("{error:?}"))?;
            put(&mut values[range], new, factor, add)
        })
    }

    /// Sets `range` to zero.
    pub(crate) fn clear(&mut self, range: Range<usize>) {
        match self {
            Self::F32(values) => values[range].fill(0.0),
            Self::F64(values) => values[range].fill(0.0),
            Self::F16(values) => values[range].fill(f16::ZERO),
            Self::BF16(values) => values[range].fill(bf16::ZERO),
        }
    }

    /// Multiplies every element by `factor`.
    pub(crate) fn scale(&mut self, factor: f64) {
        if factor != 1.0 {
            each_type!(self, values => values.iter_mut().for_each(|v| *v = v.times(factor)));
        }
    }

    /// Adds up the buffers of all ranks; the bytes of this rank's.
    pub(crate) fn all_reduce(&mut self, group: &ProcessGroup) -> Result<u64, CollectiveError> {
        each_type!(self, values => {
            group.all_reduce_in_place(values, ReduceOp::Sum)?;
            Ok(size_of_val(values.as_slice()) as u64)
        })
    }

    /// The elements, if they are f32.
    pub(crate) fn as_f32(&mut self) -> Option<&mut [f32]> {
        match self {
            Self::F32(values) => Some(values),
            _ => None,
        }
    }

    /// The sum of squares of `range`, in f64.
    pub(crate) fn sum_of_squares(&self, range: Range<usize>) -> f64 {
        match self {
            Self::F32(values) => values[range].iter().map(|v| f64::from(*v).powi(2)).sum(),
            Self::F64(values) => values[range].iter().map(|v| v.powi(2)).sum(),
            Self::F16(values) => values[range].iter().map(|v| v.to_f64().powi(2)).sum(),
            Self::BF16(values) => values[range].iter().map(|v| v.to_f64().powi(2)).sum(),
        }
    }

    /// A copy of `range` as a tensor of `shape`.
    pub(crate) fn tensor_data(&self, range: Range<usize>, shape: &[usize]) -> TensorData {
        each_type!(self, values => TensorData::new(values[range].to_vec(), shape))
    }
}

fn put<T: Gradient>(place: &mut [T], new: &[T], factor: f64, add: bool) -> Result<(), String> {
    if place.len() != new.len() {
        return Err(format!(
            "it has {} elements instead of {}",
            new.len(),
            place.len()
        ));
    }
    let pairs = place.iter_mut().zip(new);
    match (add, factor == 1.0) {
        (true, _) => pairs.for_each(|(place, new)| *place = place.plus(*new, factor)),
        (false, true) => place.copy_from_slice(new),
        (false, false) => pairs.for_each(|(place, new)| *place = new.times(factor)),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gradients_are_written_added_and_scaled_in_every_type() {
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
            let mut buffer = HostBuffer::zeroed(dtype, 3).unwrap();
            let data = TensorData::from([1.0f32, -2.0]).convert_dtype(dtype);
            buffer.put(1..3, &data, 0.5, false).unwrap();
            buffer.put(1..3, &data, 2.0, true).unwrap();
            buffer.scale(2.0);
            let values = buffer
                .tensor_data(0..3, &[3])
                .iter::<f64>()
                .collect::<Vec<_>>();
            assert_eq!(values, [0.0, 5.0, -10.0]);
            assert_eq!(buffer.sum_of_squares(1..3), 125.0);
            buffer.clear(2..3);
            assert_eq!(buffer.sum_of_squares(0..3), 25.0);
            let wrong = TensorData::from([1i32, 2]);
            assert!(buffer.put(1..3, &wrong, 1.0, false).is_err());
            assert!(buffer.put(0..3, &data, 1.0, false).is_err());
        }
        assert!(HostBuffer::zeroed(DType::I32, 1).is_none());
    }
}
