//! How a GPU is at this moment.

use crate::foreign::{Driver, Nvml};
use crate::vendor::Vendor;

/// A GPU that can be asked how it is, by NVML.
///
/// ```
/// # mod everburn { pub use everburn_nccl as nccl; }
/// if let Some(sensor) = everburn::nccl::GpuSensor::of(0) {
///     println!("{:?}", sensor.read());
/// }
/// ```
pub struct GpuSensor {
    nvml: Nvml,
    uuid: String,
}

/// What a GPU reports of itself; the rest is absent.
///
/// ```
/// # mod everburn { pub use everburn_nccl as nccl; }
/// let reading = everburn::nccl::GpuReading { celsius: Some(61), ..Default::default() };
/// assert_eq!(reading.percent, None);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GpuReading {
    /// For which share of the time a kernel ran lately, in per cent.
    pub percent: Option<u32>,
    /// How warm it is, in degrees Celsius.
    pub celsius: Option<u32>,
    /// How many bytes of its memory anybody has.
    pub used_bytes: Option<u64>,
    /// How many bytes of memory it has.
    pub memory_bytes: Option<u64>,
}

impl GpuSensor {
    /// That of the GPU with this number, `cuda:0` being the first of `CUDA_VISIBLE_DEVICES`; `None` where there is no
    /// such GPU, or no NVML.
    #[must_use]
    pub fn of(index: usize) -> Option<Self> {
        let driver = Driver::load(Vendor::Nvidia).ok()?;
        if index >= driver.count().ok()? {
            return None;
        }
        let uuid = driver.uuid(driver.device(index).ok()?).ok()?;
        let nvml = Nvml::load()?;
        Some(Self { nvml, uuid })
    }

    /// How it is now. Takes less than a millisecond, and no time of the GPU.
    #[must_use]
    pub fn read(&self) -> GpuReading {
        let memory = self.nvml.all_and_free_memory(&self.uuid);
        GpuReading {
            percent: self.nvml.utilization(&self.uuid),
            celsius: self.nvml.temperature(&self.uuid),
            used_bytes: memory.map(|(all, free)| all - free),
            memory_bytes: memory.map(|(all, _)| all),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_gpu_that_is_not_there_nothing_is_known() {
        assert!(GpuSensor::of(100_000).is_none());
    }
}
