//! A wish to stop after the current step.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The exit code of a process that its user stopped or killed, as a shell has it: 128 + SIGINT.
pub const EXIT_INTERRUPTED: u8 = 130;

/// A flag that a signal handler sets and the training loop reads once per step, and the way to end the training at once.
///
/// Stopping is a collective decision: where one rank's flag is set, all ranks stop after the same
/// step.
///
/// ```
/// let stop = everburn_record::StopSignal::default();
/// let for_the_handler = stop.clone();
/// for_the_handler.set();
/// assert!(stop.is_set());
/// ```
#[derive(Clone, Default)]
pub struct StopSignal {
    flag: Arc<AtomicBool>,
    kill: Option<Arc<dyn Fn() + Send + Sync>>,
}

impl fmt::Debug for StopSignal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_tuple("StopSignal")
            .field(&self.is_set())
            .finish()
    }
}

impl StopSignal {
    /// The signal that is set whenever `flag` is.
    #[must_use]
    pub fn from_flag(flag: Arc<AtomicBool>) -> Self {
        Self { flag, kill: None }
    }

    /// The same signal, where `kill` ends all ranks at once. Without it [`kill`](Self::kill) ends this process alone.
    #[must_use]
    pub fn with_kill(self, kill: impl Fn() + Send + Sync + 'static) -> Self {
        Self {
            kill: Some(Arc::new(kill)),
            ..self
        }
    }

    /// Ends the training without waiting for the step's end, as the dashboard's keys `q` and `k` do: by what
    /// [`with_kill`](Self::with_kill) was given, or else by the end of this process, with exit code 130.
    pub fn kill(&self) {
        match &self.kill {
            Some(kill) => kill(),
            None => std::process::exit(EXIT_INTERRUPTED.into()),
        }
    }

    /// Asks the training to stop.
    pub fn set(&self) {
        self.flag.store(true, Ordering::Relaxed);
    }

    /// Whether the training was asked to stop.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
    }
}
