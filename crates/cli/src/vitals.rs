//! What a rank tells of its process and device while it goes on.

use everburn_nccl::GpuSensor;
use everburn_report::Vitals;

use crate::devices::DeviceName;

/// Where a rank's vital signs come from.
pub(crate) struct VitalSigns {
    host: Option<String>,
    gpu: Option<GpuSensor>,
}

impl VitalSigns {
    /// Those of the rank with this number on its machine.
    pub(crate) fn of_rank(devices: &[String], local_rank: usize) -> Self {
        let name = devices.get(local_rank % devices.len().max(1));
        let gpu = match name.map(|name| name.parse()) {
            Some(Ok(DeviceName::Cuda(index))) => GpuSensor::of(index),
            _ => None,
        };
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
        Self {
            host: host.map(|name| name.trim().to_string()),
            gpu,
        }
    }

    /// How they are now.
    pub(crate) fn read(&self) -> Vitals {
        let gpu = self.gpu.as_ref().map(GpuSensor::read).unwrap_or_default();
        Vitals {
            host: self.host.clone(),
            memory_bytes: resident(),
            gpu_percent: gpu.percent,
            gpu_celsius: gpu.celsius,
            gpu_memory_bytes: gpu.used_bytes,
            gpu_memory_total: gpu.memory_bytes,
        }
    }
}

/// The memory of this process in bytes, proc_pid_status(5).
fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let mut lines = status.lines();
    let line = lines.find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes = line.trim().strip_suffix("kB")?.trim_end();
    kibibytes.parse::<u64>().ok()?.checked_mul(1024)
}
