//! Flat buffers in host memory, on their way between tensors and the process group.

use std::ops::Range;

use burn::tensor::{DType, TensorData, bf16, f16};
use everburn_collectives::group::{CollectiveError, ProcessGroup, ReduceOp};

use crate::communication_hook::sum_over_ranks;
use crate::virtual_ranks::VirtualRanks;

/// Numbers of one type, flat.
#[derive(Debug)]
pub(crate) enum HostBuffer {
    F32(Vec<f32>),
    F64(Vec<f64>),
    F16(Vec<f16>),
    BF16(Vec<bf16>),
}

/// What becomes of what is there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Put {
    Replace,
    Add,
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
            DType::F32 => Some(Self::F32(vec![0.0; length])),
            DType::F64 => Some(Self::F64(vec![0.0; length])),
            DType::F16 => Some(Self::F16(vec![f16::ZERO; length])),
            DType::BF16 => Some(Self::BF16(vec![bf16::ZERO; length])),
            _ => None,
        }
    }

    pub(crate) fn dtype(&self) -> DType {
        match self {
            Self::F32(_) => DType::F32,
            Self::F64(_) => DType::F64,
            Self::F16(_) => DType::F16,
            Self::BF16(_) => DType::BF16,
        }
    }

    /// Writes `factor` times `data` to `range`, as `how` says; fails if `data` has another type or
    /// length.
    pub(crate) fn put(
        &mut self,
        range: Range<usize>,
        data: &TensorData,
        factor: f64,
        how: Put,
    ) -> Result<(), String> {
        each_type!(self, values => {
            let new = data.as_slice().map_err(|error| format!("{error:?}"))?;
            put(&mut values[range], new, factor, how)
        })
    }

    /// Writes the elements `part` of `data` to `start` and what follows; fails if `data` has another type.
    pub(crate) fn put_part(
        &mut self,
        start: usize,
        data: &TensorData,
        part: Range<usize>,
    ) -> Result<(), String> {
        each_type!(self, values => {
            let new = data.as_slice().map_err(|error| format!("{error:?}"))?;
            let new = &new[part];
            values[start..start + new.len()].copy_from_slice(new);
            Ok(())
        })
    }

    /// A copy of `range`.
    pub(crate) fn part(&self, range: Range<usize>) -> Self {
        match self {
            Self::F32(values) => Self::F32(values[range].to_vec()),
            Self::F64(values) => Self::F64(values[range].to_vec()),
            Self::F16(values) => Self::F16(values[range].to_vec()),
            Self::BF16(values) => Self::BF16(values[range].to_vec()),
        }
    }

    pub(crate) fn len(&self) -> usize {
        each_type!(self, values => values.len())
    }

    pub(crate) fn num_bytes(&self) -> usize {
        each_type!(self, values => size_of_val(values.as_slice()))
    }

    /// Adds the elements up over all ranks and gives each rank its part of them, of as many equal ones as
    /// there are ranks; the bytes of this rank's.
    pub(crate) fn reduce_scatter(
        self,
        group: &ProcessGroup,
    ) -> Result<(Self, u64), CollectiveError> {
        let bytes = self.num_bytes() as u64;
        macro_rules! of_type {
            ($values:ident, $variant:ident) => {
                Self::$variant(group.reduce_scatter($values, ReduceOp::Sum).wait()?)
            };
        }
        let own = match self {
            Self::F32(values) => of_type!(values, F32),
            Self::F64(values) => of_type!(values, F64),
            Self::F16(values) => of_type!(values, F16),
            Self::BF16(values) => of_type!(values, BF16),
        };
        Ok((own, bytes))
    }

    /// Sets the element at `place` to one or zero.
    pub(crate) fn set_flag(&mut self, place: usize, flag: bool) {
        let flag = f32::from(u8::from(flag));
        match self {
            Self::F32(values) => values[place] = flag,
            Self::F64(values) => values[place] = flag.into(),
            Self::F16(values) => values[place] = f16::from_f32(flag),
            Self::BF16(values) => values[place] = bf16::from_f32(flag),
        }
    }

    /// Whether the element at `place` is not zero: a sum of flags may have been rounded, but never
    /// to zero.
    pub(crate) fn flag(&self, place: usize) -> bool {
        match self {
            Self::F32(values) => values[place] != 0.0,
            Self::F64(values) => values[place] != 0.0,
            Self::F16(values) => values[place] != f16::ZERO,
            Self::BF16(values) => values[place] != bf16::ZERO,
        }
    }

    pub(crate) fn clear(&mut self, range: Range<usize>) {
        match self {
            Self::F32(values) => values[range].fill(0.0),
            Self::F64(values) => values[range].fill(0.0),
            Self::F16(values) => values[range].fill(f16::ZERO),
            Self::BF16(values) => values[range].fill(bf16::ZERO),
        }
    }

    pub(crate) fn add_zero(&mut self, range: Range<usize>) {
        match self {
            Self::F32(values) => values[range].iter_mut().for_each(|v| *v += 0.0),
            Self::F64(values) => values[range].iter_mut().for_each(|v| *v += 0.0),
            Self::F16(values) => values[range].iter_mut().for_each(|v| *v += f16::ZERO),
            Self::BF16(values) => values[range].iter_mut().for_each(|v| *v += bf16::ZERO),
        }
    }

    /// Adds `range` of `other`, which has the same type and length.
    ///
    /// # Panics
    /// Panics if it has not.
    pub(crate) fn add(&mut self, range: Range<usize>, other: &Self) {
        match (self, other) {
            (Self::F32(own), Self::F32(other)) => add(&mut own[range.clone()], &other[range]),
            (Self::F64(own), Self::F64(other)) => add(&mut own[range.clone()], &other[range]),
            (Self::F16(own), Self::F16(other)) => add(&mut own[range.clone()], &other[range]),
            (Self::BF16(own), Self::BF16(other)) => add(&mut own[range.clone()], &other[range]),
            _ => unreachable!("sums of a bucket have one type"),
        }
    }

    /// Replaces `range` by the sum of all logical shards' elements, of which this buffer and `upper` hold
    /// this rank's sums; how many bytes this rank has handed over.
    pub(crate) fn all_reduce_virtual(
        &mut self,
        upper: &[Self],
        range: Range<usize>,
        group: &ProcessGroup,
        ranks: &VirtualRanks,
    ) -> Result<u64, CollectiveError> {
        macro_rules! of_type {
            ($values:ident, $variant:ident) => {{
                let upper = upper.iter().filter_map(|upper| match upper {
                    Self::$variant(values) => Some(&values[range.clone()]),
                    _ => None,
                });
                let nodes = std::iter::once(&$values[range.clone()]).chain(upper);
                let nodes = nodes.collect::<Vec<_>>();
                let plus = |own: &mut _, other| *own = Gradient::plus(*own, other, 1.0);
                let (sum, bytes) = ranks.all_reduce(&nodes, group, plus)?;
                $values[range].copy_from_slice(&sum);
                Ok(bytes)
            }};
        }
        match self {
            Self::F32(values) => of_type!(values, F32),
            Self::F64(values) => of_type!(values, F64),
            Self::F16(values) => of_type!(values, F16),
            Self::BF16(values) => of_type!(values, BF16),
        }
    }

    pub(crate) fn scale(&mut self, range: Range<usize>, factor: f64) {
        if factor != 1.0 {
            each_type!(self, values => {
                values[range].iter_mut().for_each(|v| *v = v.times(factor));
            });
        }
    }

    /// Adds up the elements of `range` over all ranks; the bytes of this rank's.
    pub(crate) fn all_reduce(
        &mut self,
        range: Range<usize>,
        group: &ProcessGroup,
    ) -> Result<u64, CollectiveError> {
        each_type!(self, values => sum_over_ranks(group, &mut values[range]))
    }

    /// The elements, if they are f32.
    pub(crate) fn as_f32(&mut self) -> Option<&mut [f32]> {
        match self {
            Self::F32(values) => Some(values),
            _ => None,
        }
    }

    pub(crate) fn sum_of_squares(&self, range: Range<usize>) -> f64 {
        match self {
            Self::F32(values) => squares(&values[range], |v| f64::from(*v)),
            Self::F64(values) => squares(&values[range], |v| *v),
            Self::F16(values) => squares(&values[range], |v| v.to_f64()),
            Self::BF16(values) => squares(&values[range], |v| v.to_f64()),
        }
    }

    /// `factor` times `range` as a tensor of `shape`; in the memory of `spent`, if it fits, which is
    /// cheaper than fresh memory.
    pub(crate) fn tensor_data(
        &self,
        range: Range<usize>,
        shape: &[usize],
        factor: f64,
        spent: Option<TensorData>,
    ) -> TensorData {
        each_type!(self, values => {
            let values = &values[range];
            if let Some(mut spent) = spent
                && **spent.shape() == *shape
                && let Ok(place) = spent.as_mut_slice()
                && put(place, values, factor, Put::Replace).is_ok()
            {
                return spent;
            }
            let copy = if factor == 1.0 {
                values.to_vec()
            } else {
                values.iter().map(|v| v.times(factor)).collect()
            };
            TensorData::new(copy, shape)
        })
    }
}

/// The sum of squares of all numbers of `data`, as [`HostBuffer::sum_of_squares`] forms it; `None` for a type
/// that cannot be averaged.
pub(crate) fn sum_of_squares(data: &TensorData) -> Option<f64> {
    match data.dtype() {
        DType::F32 => Some(squares(data.as_slice::<f32>().ok()?, |v| f64::from(*v))),
        DType::F64 => Some(squares(data.as_slice::<f64>().ok()?, |v| *v)),
        DType::F16 => Some(squares(data.as_slice::<f16>().ok()?, |v| v.to_f64())),
        DType::BF16 => Some(squares(data.as_slice::<bf16>().ok()?, |v| v.to_f64())),
        _ => None,
    }
}

/// How many sums of squares are formed side by side. Their number decides the bits, so it is the same for all
/// processors.
const LANES: usize = 16;

fn squares<T>(values: &[T], double: impl Fn(&T) -> f64) -> f64 {
    let mut sums = [0.0; LANES];
    let chunks = values.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (sum, value) in sums.iter_mut().zip(chunk) {
            let value = double(value);
            *sum += value * value;
        }
    }
    for (sum, value) in sums.iter_mut().zip(rest) {
        *sum += double(value).powi(2);
    }
    sums.iter().sum()
}

pub(crate) fn scaled(data: TensorData, factor: f64) -> TensorData {
    macro_rules! of_type {
        ($type:ty) => {{
            let values: &[$type] = data.as_slice().unwrap_or_default();
            let values = values.iter().map(|v| v.times(factor)).collect::<Vec<_>>();
            TensorData::new(values, data.shape().clone())
        }};
    }
    match data.dtype() {
        _ if factor == 1.0 => data,
        DType::F32 => of_type!(f32),
        DType::F64 => of_type!(f64),
        DType::F16 => of_type!(f16),
        DType::BF16 => of_type!(bf16),
        _ => data,
    }
}

fn add<T: Gradient>(own: &mut [T], other: &[T]) {
    for (own, other) in own.iter_mut().zip(other) {
        *own = own.plus(*other, 1.0);
    }
}

fn put<T: Gradient>(place: &mut [T], new: &[T], factor: f64, how: Put) -> Result<(), String> {
    if place.len() != new.len() {
        return Err(format!(
            "it has {} elements instead of {}",
            new.len(),
            place.len()
        ));
    }
    let pairs = place.iter_mut().zip(new);
    match (how, factor == 1.0) {
        (Put::Add, _) => pairs.for_each(|(place, new)| *place = place.plus(*new, factor)),
        (Put::Replace, true) => place.copy_from_slice(new),
        (Put::Replace, false) => pairs.for_each(|(place, new)| *place = new.times(factor)),
    }
    Ok(())
}

#[cfg(test)]
mod tests;
