//! The upper sums of the stacks of logical shards, whose memory serves the next step.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex};

use burn::tensor::DType;
use everburn_collectives::sync::lock;

use crate::host::HostBuffer;

/// Memory of earlier steps' sums.
#[derive(Debug, Clone, Default)]
pub(crate) struct SpareSums(Arc<Mutex<Vec<HostBuffer>>>);

impl SpareSums {
    /// `count` sums of `length` numbers, which are whatever an earlier step left.
    pub(super) fn take(&self, count: usize, dtype: DType, length: usize) -> UpperSums {
        let mut spare = lock(&self.0);
        let buffers = (0..count).filter_map(|_| {
            let fits = |buffer: &HostBuffer| buffer.dtype() == dtype && buffer.len() == length;
            match spare.iter().position(fits) {
                Some(found) => Some(spare.swap_remove(found)),
                None => HostBuffer::zeroed(dtype, length),
            }
        });
        UpperSums {
            buffers: buffers.collect(),
            spare: self.clone(),
        }
    }
}

/// The sums of a bucket above the lowest. Dropping them leaves their memory to the next step.
#[derive(Debug, Default)]
pub(crate) struct UpperSums {
    buffers: Vec<HostBuffer>,
    spare: SpareSums,
}

impl UpperSums {
    /// Leaves the sums from `count` on to the next step.
    pub(super) fn truncate(&mut self, count: usize) {
        let rest = self.buffers.split_off(count.min(self.buffers.len()));
        lock(&self.spare.0).extend(rest);
    }
}

impl Deref for UpperSums {
    type Target = [HostBuffer];

    fn deref(&self) -> &[HostBuffer] {
        &self.buffers
    }
}

impl DerefMut for UpperSums {
    fn deref_mut(&mut self) -> &mut [HostBuffer] {
        &mut self.buffers
    }
}

impl Drop for UpperSums {
    fn drop(&mut self) {
        self.truncate(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_serves_the_next_step() {
        let spare = SpareSums::default();
        let mut sums = spare.take(2, DType::F32, 3);
        sums[1].set_flag(0, true);
        sums.truncate(1);
        drop(sums);
        assert!(spare.take(1, DType::F32, 4).iter().all(|sum| !sum.flag(0)));
        let again = spare.take(2, DType::F32, 3);
        assert_eq!(again.iter().filter(|sum| sum.flag(0)).count(), 1);
        assert_eq!(spare.take(1, DType::F16, 3)[0].dtype(), DType::F16);
    }
}
