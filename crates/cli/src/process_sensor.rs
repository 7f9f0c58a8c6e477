//! Process metrics: what a rank reports of its process and device during training.

use crate::devices::DeviceName;
use everburn_nccl::GpuSensor;
use everburn_record::{ProcessMetrics, proc};

/// Where a rank's process metrics come from.
pub(crate) struct ProcessSensor {
    gpu: Option<GpuSensor>,
}

impl ProcessSensor {
    /// Those of the rank with this number on its machine.
    pub(crate) fn of_rank(devices: &[String], local_rank: usize) -> Self {
        let name = devices.get(local_rank % devices.len().max(1));
        let gpu = match name.map(|name| name.parse()) {
            Some(Ok(DeviceName::Cuda(index))) => GpuSensor::of(index),
            _ => None,
        };
        Self { gpu }
    }

    /// How they are now.
    pub(crate) fn read(&self) -> ProcessMetrics {
        let gpu = self.gpu.as_ref().map(GpuSensor::read).unwrap_or_default();
        ProcessMetrics {
            memory_bytes: proc::resident_memory(),
            gpu_percent: gpu.percent,
            gpu_celsius: gpu.celsius,
            gpu_memory_bytes: gpu.used_bytes,
            gpu_memory_total: gpu.memory_bytes,
        }
    }
}
