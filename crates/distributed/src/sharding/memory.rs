//! The peak of what a rank holds for a while.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

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
