//! Numbers in the GPUs' memory, and their sums.

use everburn_collectives::group::{DType, ReduceOp};
use half::{bf16, f16};

/// A number that the GPUs' memory can hold.
pub trait Number: Copy + Send + 'static {
    /// Its type.
    const DTYPE: DType;

    /// As it is in memory.
    fn bytes(self) -> Vec<u8>;

    /// From memory; missing bytes count as zeros.
    fn from_bytes(bytes: &[u8]) -> Self;

    /// As a number of 64 bits.
    fn wide(self) -> f64;

    /// The nearest to it.
    fn narrow(wide: f64) -> Self;
}

macro_rules! numbers {
    ($($number:ty = $dtype:ident, $wide:expr, $narrow:expr;)*) => {
        $(impl Number for $number {
            const DTYPE: DType = DType::$dtype;

            fn bytes(self) -> Vec<u8> {
                self.to_ne_bytes().to_vec()
            }

            fn from_bytes(bytes: &[u8]) -> Self {
                let mut own = [0; size_of::<$number>()];
                let len = own.len().min(bytes.len());
                own[..len].copy_from_slice(&bytes[..len]);
                Self::from_ne_bytes(own)
            }

            fn wide(self) -> f64 {
                $wide(self)
            }

            fn narrow(wide: f64) -> Self {
                $narrow(wide)
            }
        })*
    };
}

numbers! {
    f32 = F32, f64::from, |wide| wide as f32;
    f64 = F64, |own| own, |wide| wide;
    f16 = F16, f64::from, f16::from_f64;
    bf16 = Bf16, f64::from, bf16::from_f64;
    i32 = I32, f64::from, |wide| wide as i32;
    i64 = I64, |own| own as f64, |wide| wide as i64;
    u8 = U8, f64::from, |wide| wide as u8;
}

/// All ranks' numbers, combined in rank order: exact for whole numbers up to 2^53, and rounded once
/// for others.
pub(super) fn combine(dtype: DType, op: ReduceOp, parts: &[Vec<u8>]) -> Vec<u8> {
    match dtype {
        DType::F64 => combine_as::<f64>(op, parts),
        DType::F16 => combine_as::<f16>(op, parts),
        DType::Bf16 => combine_as::<bf16>(op, parts),
        DType::I32 => combine_as::<i32>(op, parts),
        DType::I64 => combine_as::<i64>(op, parts),
        DType::U8 => combine_as::<u8>(op, parts),
        _ => combine_as::<f32>(op, parts),
    }
}

fn combine_as<T: Number>(op: ReduceOp, parts: &[Vec<u8>]) -> Vec<u8> {
    let size = T::DTYPE.size();
    let len = parts.first().map_or(0, |part| part.len() / size);
    let at = |part: &Vec<u8>, index: usize| {
        T::from_bytes(&part[index * size..(index + 1) * size]).wide()
    };
    let combined = (0..len).flat_map(|index| {
        let numbers = parts.iter().map(|part| at(part, index));
        let result = match op {
            ReduceOp::Product => numbers.product(),
            ReduceOp::Min => numbers.fold(f64::INFINITY, f64::min),
            ReduceOp::Max => numbers.fold(f64::NEG_INFINITY, f64::max),
            ReduceOp::Mean => numbers.sum::<f64>() / parts.len() as f64,
            _ => numbers.sum(),
        };
        T::narrow(result).bytes()
    });
    combined.collect()
}
