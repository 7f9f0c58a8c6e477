//! Buckets that are added up by Burn's own collective, between the GPUs of one process.

use burn::prelude::*;
use burn::tensor::distributed::{CollectiveTensor, ReduceOperation, all_reduce};

use super::exchange::{DeviceExchange, PendingTensor};
use crate::error::DdpError;

/// Adds buckets up by Burn's `all_reduce`: NCCL in CubeCL's hands, for ranks that are threads of one
/// process, each with a GPU of its own.
///
/// CubeCL's communicators know neither deadlines nor an end: a rank that does not come makes the others'
/// GPUs wait for ever, and a failure in NCCL is a line of the log and a tensor that cannot be read. Where
/// that matters, take [`NcclExchange`](crate::NcclExchange), which serves threads as well.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use burn::prelude::Device;
/// use everburn::distributed::{BurnExchange, DeviceExchange};
///
/// // Burn has such a collective on CUDA only.
/// let refused = BurnExchange::new(vec![Device::flex(), Device::flex()]).unwrap_err();
/// assert!(refused.to_string().contains("NVIDIA GPUs of one process"), "{refused}");
/// ```
#[derive(Debug)]
pub struct BurnExchange {
    devices: Vec<Device>,
}

impl BurnExchange {
    /// Between `devices`, one a rank, the same on all of them.
    ///
    /// # Errors
    /// [`DdpError::Config`] where they are not GPUs, or not all different.
    pub fn new(devices: Vec<Device>) -> Result<Self, DdpError> {
        let devices: Vec<Device> = devices.into_iter().map(Device::inner).collect();
        let mut numbers = devices
            .iter()
            .map(super::cuda_index)
            .collect::<Option<Vec<_>>>()
            .ok_or_else(|| {
                DdpError::Config(format!(
                    "Burn's own all_reduce is between NVIDIA GPUs of one process, not {devices:?}"
                ))
            })?;
        numbers.sort_unstable();
        numbers.dedup();
        if numbers.len() < devices.len() {
            return Err(DdpError::Config(
                "Burn's own all_reduce wants a GPU of its own for each rank".to_string(),
            ));
        }
        Ok(Self { devices })
    }
}

impl DeviceExchange for BurnExchange {
    fn name(&self) -> &'static str {
        "burn"
    }

    fn begin(
        &self,
        _bucket: usize,
        numbers: Tensor<1>,
    ) -> Result<Box<dyn PendingTensor>, DdpError> {
        let sum = all_reduce(numbers, ReduceOperation::Sum, self.devices.clone());
        Ok(Box::new(BurnSum(sum)))
    }

    // What goes wrong is found when a parameter is read, which Burn then refuses.
    fn check(&self) -> Result<(), DdpError> {
        Ok(())
    }

    fn settle(&self) -> Result<(), DdpError> {
        Ok(())
    }

    // CubeCL has no way to take a collective back: the process ends with the failed rank's error.
    fn abort(&self, reason: &str) {
        tracing::debug!("Burn's all_reduce cannot be given up: {reason}");
    }
}

struct BurnSum(CollectiveTensor<1>);

impl PendingTensor for BurnSum {
    fn collect(self: Box<Self>) -> Result<Tensor<1>, DdpError> {
        Ok(self.0.resolve())
    }
}
