//! A wish to stop after the current step.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A flag that a signal handler, say, sets; the training loop asks it once per step.
///
/// Stopping is a collective decision: where one rank's flag is set, all ranks stop after the same
/// step.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// let stop = everburn::train::StopSignal::default();
/// let for_the_handler = stop.clone();
/// for_the_handler.set();
/// assert!(stop.is_set());
/// ```
#[derive(Debug, Clone, Default)]
pub struct StopSignal(Arc<AtomicBool>);

impl StopSignal {
    /// The signal that is set whenever `flag` is.
    pub fn from_flag(flag: Arc<AtomicBool>) -> Self {
        Self(flag)
    }

    /// Asks the training to stop.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether the training was asked to stop.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
