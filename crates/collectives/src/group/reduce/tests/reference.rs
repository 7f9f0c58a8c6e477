//! Reductions written one number at a time, to compare with.

use half::{bf16, f16};

use super::super::*;

/// Reductions written one number at a time, to compare with.
pub(super) trait Reference: Element {
    fn bits(self) -> u64;
    /// The number of these bits; the surplus is ignored.
    fn from_bits(bits: u64) -> Self;
    /// Numbers at the edges of the type, by their bits.
    const EDGES: &[u64];
    /// Combines the numbers of all ranks.
    fn reduce(op: ReduceOp, all: &[Self]) -> Self;
}

macro_rules! float_reference {
    ($type:ident, $bits:ty, $wide:ident, $nan:expr, $widen:expr, $narrow:expr, $edges:expr) => {
        impl Reference for $type {
            fn bits(self) -> u64 {
                self.to_bits().into()
            }
            fn from_bits(bits: u64) -> Self {
                $type::from_bits(bits as $bits)
            }
            const EDGES: &[u64] = &$edges;
            fn reduce(op: ReduceOp, all: &[Self]) -> Self {
                let all: Vec<$wide> = all.iter().map(|x| $widen(*x)).collect();
                let settle = |x: $wide| {
                    if x.is_nan() {
                        $wide::from_bits($nan)
                    } else {
                        x
                    }
                };
                let sum = || all[1..].iter().fold(all[0], |sum, x| sum + x);
                // By NaN first: the lowest rank's.
                let by = |better: fn(&$wide, &$wide) -> bool| {
                    let nan = all.iter().find(|x| x.is_nan()).copied();
                    let best = |a, b| if better(&a, &b) { a } else { b };
                    nan.unwrap_or_else(|| all[1..].iter().copied().fold(all[0], best))
                };
                $narrow(match op {
                    ReduceOp::Sum => settle(sum()),
                    ReduceOp::Mean => settle(sum() / all.len() as $wide),
                    ReduceOp::Product => settle(all[1..].iter().fold(all[0], |p, x| p * x)),
                    ReduceOp::Min => by(<$wide>::lt),
                    ReduceOp::Max => by(<$wide>::gt),
                })
            }
        }
    };
}

macro_rules! integer_reference {
    ($($type:ty),*) => {$(
        impl Reference for $type {
            fn bits(self) -> u64 {
                self as u64
            }
            fn from_bits(bits: u64) -> Self {
                bits as $type
            }
            const EDGES: &[u64] = &[0, 1, <$type>::MAX as u64, <$type>::MIN as u64, u64::MAX];
            fn reduce(op: ReduceOp, all: &[Self]) -> Self {
                let all = all.iter().copied();
                match op {
                    ReduceOp::Sum | ReduceOp::Mean => all.fold(0, <$type>::wrapping_add),
                    ReduceOp::Product => all.fold(1, <$type>::wrapping_mul),
                    ReduceOp::Min => all.min().unwrap(),
                    ReduceOp::Max => all.max().unwrap(),
                }
            }
        }
    )*};
}

// Zero, one, the subnormals' ends, the greatest, infinity, a quiet and a signalling NaN; then the
// same with a sign and other payloads.
float_reference!(
    f32,
    u32,
    f32,
    0x7fc0_0000,
    |x| x,
    |x| x,
    [
        0, 0x3f800000, 1, 0x007fffff, 0x7f7fffff, 0x7f800000, 0x7fc00001, 0x7f800001, 0x80000000,
        0xbf800000, 0x80000001, 0x807fffff, 0xff7fffff, 0xff800000, 0xffc00002, 0xffa00002,
    ]
);
float_reference!(
    f64,
    u64,
    f64,
    0x7ff8_0000_0000_0000,
    |x| x,
    |x| x,
    [
        0,
        0x3ff0_0000_0000_0000,
        1,
        0x000f_ffff_ffff_ffff,
        0x7fef_ffff_ffff_ffff,
        0x7ff0_0000_0000_0000,
        0x7ff8_0000_0000_0001,
        0x7ff0_0000_0000_0001,
        0x8000_0000_0000_0000,
        0xbff0_0000_0000_0000,
        0x8000_0000_0000_0001,
        0x800f_ffff_ffff_ffff,
        0xffef_ffff_ffff_ffff,
        0xfff0_0000_0000_0000,
        0xfff8_0000_0000_0002,
        0xfff4_0000_0000_0002,
    ]
);
float_reference!(
    f16,
    u16,
    f32,
    0x7fc0_0000,
    f16::to_f32,
    f16::from_f32,
    [
        0, 0x3c00, 1, 0x03ff, 0x7bff, 0x7c00, 0x7e01, 0x7c01, 0x8000, 0xbc00, 0x8001, 0x83ff,
        0xfbff, 0xfc00, 0xfe02, 0xfd02,
    ]
);
float_reference!(
    bf16,
    u16,
    f32,
    0x7fc0_0000,
    bf16::to_f32,
    bf16::from_f32,
    [
        0, 0x3f80, 1, 0x007f, 0x7f7f, 0x7f80, 0x7fc1, 0x7f81, 0x8000, 0xbf80, 0x8001, 0x807f,
        0xff7f, 0xff80, 0xffc2, 0xffa2,
    ]
);
integer_reference!(i32, i64, u8);
