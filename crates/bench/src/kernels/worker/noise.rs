//! Numbers that are the same on both sides of the comparison.

use everburn::burn::module::{Module, ModuleMapper, Param};
use everburn::burn::prelude::*;
use everburn::burn::tensor::{Int, TensorData};

use crate::failure::Failure;

/// The numbers of a tensor repeat after this many: a prime, so that they meet each other in ever new ways.
const PERIOD: usize = 65_521;

/// The seed of a module's first parameter; inputs count from 0.
const FIRST_PARAMETER: u32 = 100;

/// The seed of the gradient that comes into the backward pass.
pub(super) const GRADIENT: u32 = 200;

/// 4 GiB: more than any layer here has.
const MOST_NUMBERS: usize = 1 << 30;

/// Numbers in `-0.5..0.5` with 24 bits: MurmurHash3's finalizer of the index and the seed.
fn values(count: usize, seed: u32) -> Vec<f32> {
    let value = |index: usize| {
        let mut bits = (index as u32)
            .wrapping_mul(2_654_435_761)
            .wrapping_add(seed.wrapping_mul(0x9E37_79B9));
        bits ^= bits >> 16;
        bits = bits.wrapping_mul(0x85EB_CA6B);
        bits ^= bits >> 13;
        bits = bits.wrapping_mul(0xC2B2_AE35);
        bits ^= bits >> 16;
        (bits >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    let pattern: Vec<_> = (0..PERIOD.min(count)).map(value).collect();
    pattern.into_iter().cycle().take(count).collect()
}

/// A tensor of noise.
///
/// # Errors
/// If it would have no numbers, or more than any layer needs.
pub(super) fn noise<const D: usize>(
    shape: [usize; D],
    seed: u32,
    device: &Device,
) -> Result<Tensor<D>, Failure> {
    let count = shape
        .iter()
        .try_fold(1_usize, |count, size| count.checked_mul(*size));
    match count {
        Some(count @ 1..=MOST_NUMBERS) => Ok(Tensor::from_data(
            TensorData::new(values(count, seed), shape),
            device,
        )),
        _ => Err(Failure::usage(format!(
            "no tensor of shape {shape:?} is measured"
        ))),
    }
}

/// The module with parameters of noise.
pub(super) fn filled<M: Module>(module: M) -> M {
    module.map(&mut Filling {
        seed: FIRST_PARAMETER,
    })
}

struct Filling {
    seed: u32,
}

impl ModuleMapper for Filling {
    fn map_float<const D: usize>(&mut self, parameter: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let seed = self.seed;
        self.seed += 1;
        parameter.map(|old| {
            let shape = old.dims();
            let data = TensorData::new(values(shape.iter().product(), seed), shape);
            Tensor::from_data(data, &old.device()).set_require_grad(old.is_require_grad())
        })
    }
}

/// Numbers of classes or tokens that go round.
pub(super) fn counted<const D: usize>(
    shape: [usize; D],
    most: usize,
    device: &Device,
) -> Tensor<D, Int> {
    let numbers = (0..shape.iter().product::<usize>()).map(|index| (index * 7 % most) as i64);
    Tensor::from_data(TensorData::new(numbers.collect::<Vec<_>>(), shape), device)
}

/// The mean size of a tensor's numbers.
pub(super) fn size<const D: usize>(tensor: Tensor<D>) -> f64 {
    let data = tensor.into_data();
    let (sum, count) = data
        .iter::<f32>()
        .fold((0.0, 0_usize), |(sum, count), value| {
            (sum + f64::from(value.abs()), count + 1)
        });
    sum / count as f64
}
