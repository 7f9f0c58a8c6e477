//! How many bytes per rank holds, and the peak of what is held for a while.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

/// How many bytes of the training state a rank holds, counted from its tensors: all of it where the state is
/// replicated, about 1/`W` where it is sharded.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use everburn::distributed::HeldBytes;
///
/// let held = HeldBytes { parameters: 400, gradients: 100, optimizer: 200, ..HeldBytes::default() };
/// assert_eq!(held.total(), 700);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct HeldBytes {
    /// Trained parameters, between steps.
    pub parameters: u64,
    /// Averaged gradients, as passed to the optimizer.
    pub gradients: u64,
    /// Optimizer state, between steps.
    pub optimizer: u64,
    /// Peak size of the gradient buckets during a step: those being filled or in flight; the largest one, where they are
    /// summed on a device. 0 where gradients are not sharded.
    #[serde(default)]
    pub gradient_buckets: u64,
    /// Peak size of gathered parameters during a step, except the first one, which records the access trace. 0
    /// where parameters are not sharded. (On a device with memory of its own, copies there do not count.)
    #[serde(default)]
    pub gathered: u64,
}

impl HeldBytes {
    /// Parameters, gradients and optimizer state.
    pub const fn total(&self) -> u64 {
        self.parameters + self.gradients + self.optimizer
    }
}

/// Counts bytes of memory: how many are held now, and the peak.
#[derive(Debug, Clone, Default)]
pub(crate) struct MemoryTracker(Arc<Counters>);

#[derive(Debug, Default)]
struct Counters {
    current: AtomicU64,
    peak: AtomicU64,
}

impl MemoryTracker {
    /// Counts `bytes` until the returned guard is dropped.
    pub(crate) fn track(&self, bytes: u64) -> TrackedMemory {
        let now = self.0.current.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.0.peak.fetch_max(now, Ordering::Relaxed);
        TrackedMemory {
            tracker: self.clone(),
            bytes,
        }
    }

    /// Resets the peak to what is held now.
    pub(crate) fn reset_peak(&self) {
        let now = self.0.current.load(Ordering::Relaxed);
        self.0.peak.store(now, Ordering::Relaxed);
    }

    pub(crate) fn peak(&self) -> u64 {
        self.0.peak.load(Ordering::Relaxed)
    }
}

/// Bytes that a [`MemoryTracker`] counts, until this is dropped.
#[derive(Debug)]
pub(crate) struct TrackedMemory {
    tracker: MemoryTracker,
    bytes: u64,
}

impl Drop for TrackedMemory {
    fn drop(&mut self) {
        self.tracker
            .0
            .current
            .fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tracker_remembers_the_peak() {
        let tracker = MemoryTracker::default();
        let first = tracker.track(10);
        drop(tracker.track(20));
        let second = tracker.track(5);
        drop((first, second));
        drop(tracker.track(29));
        assert_eq!(tracker.peak(), 30);
    }
}
