//! Buckets that go through host memory in 16 bits: what the communication hooks fp16 and bf16 do on a GPU.
//!
//! The device multiplies and rounds a bucket (`communication_hook/half.rs` says why), so that half as many bytes are
//! read from it, sent and written back. The sum has the bits of the hook's sum of the same numbers, where the device
//! rounds to the nearest, ties to even, as CUDA's do. The numbers themselves stay on the device until their rounded sum
//! is known to be of use. A device without the type is read in `f32`, and its numbers are rounded in host memory.

use std::collections::HashMap;
use std::sync::Mutex;

use burn::prelude::*;
use burn::tensor::{DType, Element, bf16, f16};
use everburn_collectives::group::ProcessGroup;
use everburn_collectives::sync::lock;

use super::staging::{Staged, numbers_of, stage};
use crate::communication_hook::{
    CommunicationHookConfig, HalfType, power_of_two, sum_over_ranks, sum_rounded,
};
use crate::error::DdpError;

/// How a communicator rounds its buckets.
#[derive(Debug)]
pub(super) struct Rounding {
    dtype: DType,
    /// The exponent of the power of two by which each bucket is multiplied, by index. A bucket has none while it is
    /// under way. Changed by the thread that begins and collects sums, so that all ranks have the same.
    exponents: Mutex<HashMap<usize, i32>>,
}

/// How a bucket is rounded in one step.
pub(super) struct Rounded {
    dtype: DType,
    exponent: Option<i32>,
    /// The numbers, rounded by the device, if it does that.
    message: Option<Staged>,
}

/// A sum over all ranks, on the device again.
pub(super) struct HostSum {
    pub(super) numbers: Tensor<1>,
    /// How many bytes collectives were handed.
    pub(super) bytes: u64,
    /// The exponent of the power of two by which the numbers are still multiplied.
    pub(super) exponent: i32,
    pub(super) next_exponent: Option<i32>,
}

impl Rounding {
    /// As `hook` rounds; `None` for a hook that does something else.
    pub(super) fn of(hook: CommunicationHookConfig) -> Option<Self> {
        let dtype = match hook {
            CommunicationHookConfig::Fp16 => DType::F16,
            CommunicationHookConfig::Bf16 => DType::BF16,
            CommunicationHookConfig::None | CommunicationHookConfig::PowerSgd { .. } => {
                return None;
            }
        };
        Some(Self {
            dtype,
            exponents: Mutex::default(),
        })
    }

    pub(super) fn name(&self) -> &'static str {
        match self.dtype {
            DType::F16 => "host-fp16",
            _ => "host-bf16",
        }
    }

    /// Begins to round a bucket, on its device if that can; does not wait for the device.
    pub(super) fn begin(&self, bucket: usize, numbers: &Tensor<1>) -> Rounded {
        let mut rounded = self.begin_in_host_memory(bucket);
        if numbers.device().supports_dtype(self.dtype) {
            rounded.message = rounded.exponent.map(|exponent| {
                let scaled = times_power_of_two(numbers.clone(), exponent);
                stage(scaled.cast(self.dtype))
            });
        }
        rounded
    }

    fn begin_in_host_memory(&self, bucket: usize) -> Rounded {
        let exponent = match self.dtype {
            DType::BF16 => Some(0),
            _ => lock(&self.exponents).remove(&bucket),
        };
        Rounded {
            dtype: self.dtype,
            exponent,
            message: None,
        }
    }

    /// The sum in `f32`.
    pub(super) fn finish(&self, bucket: usize, sum: HostSum) -> Tensor<1> {
        if let (DType::F16, Some(next)) = (self.dtype, sum.next_exponent) {
            lock(&self.exponents).insert(bucket, next);
        }
        times_power_of_two(sum.numbers.cast(DType::F32), -sum.exponent)
    }
}

impl Rounded {
    /// The sum of `numbers` over all ranks of `group`; waits for the device and for the ranks.
    pub(super) fn sum(
        self,
        bucket: usize,
        numbers: Staged,
        group: &ProcessGroup,
    ) -> Result<HostSum, DdpError> {
        match self.dtype {
            DType::F16 => self.sum_of::<f16>(bucket, numbers, group),
            _ => self.sum_of::<bf16>(bucket, numbers, group),
        }
    }

    fn sum_of<T: HalfType + Element>(
        self,
        bucket: usize,
        numbers: Staged,
        group: &ProcessGroup,
    ) -> Result<HostSum, DdpError> {
        let device = numbers.device();
        let (mut next_exponent, mut bytes) = (self.exponent, 0);
        if let (Some(exponent), Some(message)) = (self.exponent, self.message) {
            let mut data = message.read(bucket, group)?;
            let message = numbers_of::<T>(bucket, &mut data, group)?;
            bytes += sum_over_ranks(group, message)?;
            next_exponent = T::exponent_after(message, exponent);
            if next_exponent.is_some() {
                return Ok(HostSum {
                    numbers: Tensor::from_data(data, (&device, self.dtype)),
                    bytes,
                    exponent,
                    next_exponent,
                });
            }
        }
        let mut data = numbers.read(bucket, group)?;
        let values = numbers_of::<f32>(bucket, &mut data, group)?;
        bytes += sum_rounded::<T>(values, &mut next_exponent, &mut Vec::new(), group)?;
        Ok(HostSum {
            numbers: Tensor::from_data(data, (&device, DType::F32)),
            bytes,
            exponent: 0,
            next_exponent,
        })
    }
}

fn times_power_of_two(numbers: Tensor<1>, exponent: i32) -> Tensor<1> {
    match exponent {
        0 => numbers,
        _ => numbers.mul_scalar(power_of_two(exponent)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::communication_hook::GradientBucket;
    use crate::test_ranks::on_ranks;

    fn values(rank: usize, step: usize) -> Vec<f32> {
        let scale = [1e-3, 2e-3, 1e9, 1e-9, 1.0][step];
        let numbers = (0..500).map(|i| ((i * 37 + rank * 11) % 101) as f32 - 50.0);
        numbers.map(|number| number * scale).collect()
    }

    #[test]
    fn a_device_without_the_type_sends_what_the_others_send() {
        let hooks = [CommunicationHookConfig::Fp16, CommunicationHookConfig::Bf16];
        for hook in hooks {
            on_ranks(3, |group| {
                let (rounding, mut on_host) = (Rounding::of(hook).unwrap(), hook.build());
                for step in 0..5 {
                    let mut values = values(group.rank(), step);
                    let numbers = Tensor::<1>::from_floats(&*values, &Device::flex());
                    let rounded = match group.rank() {
                        0 => rounding.begin_in_host_memory(0),
                        _ => rounding.begin(0, &numbers),
                    };
                    let sum = rounded.sum(0, stage(numbers), &group).unwrap();
                    let bytes = sum.bytes;
                    let found = rounding.finish(0, sum).into_data();
                    let bucket = GradientBucket {
                        index: 0,
                        slots: &[],
                        values: &mut values,
                    };
                    assert_eq!(bytes, on_host.reduce(bucket, &group).unwrap(), "{step}");
                    let found: Vec<f32> = found.iter().collect();
                    assert_eq!(found, values, "{hook}, {step}");
                }
            });
        }
    }
}
