//! How many bytes a rank holds.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

/// How many bytes of the training's state a rank holds, counted from the tensors that it has. Where they are
/// held by all ranks alike, that is the whole; a slice is about a `W`th of it.
///
/// ```
/// use everburn_distributed::HeldBytes;
///
/// let held = HeldBytes { parameters: 400, gradients: 100, optimizer: 200, ..HeldBytes::default() };
/// assert_eq!(held.total(), 700);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct HeldBytes {
    /// Trained parameters, between two steps.
    pub parameters: u64,
    /// Averaged gradients, when the optimizer takes them.
    pub gradients: u64,
    /// The optimizer's state, between two steps.
    pub optimizer: u64,
    /// The most that buckets of gradients have held at a time during a step: those that were being filled or
    /// were on their way. 0 where gradients are not cut.
    #[serde(default)]
    pub gradient_buckets: u64,
    /// The most that gathered parameters have held at a time during a step, but the first one, which shows what
    /// a step asks for. 0 where parameters are not cut. (On a device that has memory of its own, what has been
    /// copied there does not count.)
    #[serde(default)]
    pub gathered: u64,
}

impl HeldBytes {
    /// Parameters, gradients and the optimizer's state.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.parameters + self.gradients + self.optimizer
    }
}

/// Bytes that are held for a while: how many now, and the most there ever were.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gauge(Arc<Level>);

#[derive(Debug, Default)]
struct Level {
    now: AtomicU64,
    most: AtomicU64,
}

impl Gauge {
    /// `bytes` are held until what this yields is dropped.
    pub(crate) fn hold(&self, bytes: u64) -> Held {
        let now = self.0.now.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.0.most.fetch_max(now, Ordering::Relaxed);
        Held {
            gauge: self.clone(),
            bytes,
        }
    }

    /// Forgets the most there ever was, for what is held now.
    pub(crate) fn restart(&self) {
        let now = self.0.now.load(Ordering::Relaxed);
        self.0.most.store(now, Ordering::Relaxed);
    }

    /// The most bytes that were held at a time.
    pub(crate) fn most(&self) -> u64 {
        self.0.most.load(Ordering::Relaxed)
    }
}

/// Bytes that a [`Gauge`] counts.
#[derive(Debug)]
pub(crate) struct Held {
    gauge: Gauge,
    bytes: u64,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.gauge.0.now.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_that_was_held_at_a_time_is_remembered() {
        let gauge = Gauge::default();
        let first = gauge.hold(10);
        drop(gauge.hold(20));
        let second = gauge.hold(5);
        drop((first, second));
        drop(gauge.hold(29));
        assert_eq!(gauge.most(), 30);
    }
}
