//! How much memory a rank has used at most.

use burn::prelude::Device;
use everburn_record::proc;

/// The most memory that a rank has used since it last asked: of its device where the device reports it, else
/// the resident set of its process, which ranks that are threads of one process share.
///
/// A device of CUDA reports what its pool has reserved, which does not shrink. The resident set also counts
/// the data set and what the allocator keeps for later. Where neither is available (other systems than
/// Linux, without a GPU) nothing is reported.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use burn::prelude::Device;
/// use everburn::train::PeakMemory;
///
/// let memory = PeakMemory::of(&Device::flex());
/// memory.restart();
/// if let Some(bytes) = memory.bytes() {
///     assert!(bytes > 1 << 20, "no process is smaller than a MiB");
/// }
/// ```
#[derive(Debug, Clone)]
pub struct PeakMemory {
    device: Device,
}

impl PeakMemory {
    /// That of a rank on `device`.
    pub fn of(device: &Device) -> Self {
        Self {
            device: device.clone(),
        }
    }

    /// Forgets what has been, as far as the system allows it.
    pub fn restart(&self) {
        proc::restart_peak_memory();
    }

    /// The memory that is in use now, and counts for the next peak, in bytes.
    pub fn in_use(&self) -> Option<u64> {
        let pool = self.device.memory_pool_usage();
        pool.map(|pool| pool.bytes_reserved)
            .or_else(proc::resident_memory)
    }

    /// The most memory since [`restart`](Self::restart), in bytes.
    pub fn bytes(&self) -> Option<u64> {
        let pool = self.device.memory_pool_usage();
        pool.map(|pool| pool.bytes_reserved)
            .or_else(proc::peak_memory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn what_is_allocated_and_given_back_raises_the_peak() {
        const SIZE: usize = 64 << 20;
        let memory = PeakMemory::of(&Device::flex());
        memory.restart();
        let before = memory.bytes().unwrap();
        let numbers = vec![1_u8; SIZE];
        assert_eq!(std::hint::black_box(&numbers)[SIZE - 1], 1);
        drop(numbers);
        let after = memory.bytes().unwrap();
        assert!(
            after >= before.saturating_add(SIZE as u64 / 2),
            "{before} {after}"
        );
    }
}
