//! A wish to stop after the current step.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

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
    by: Arc<OnceLock<String>>,
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
    pub fn from_flag(flag: Arc<AtomicBool>) -> Self {
        Self {
            flag,
            ..Self::default()
        }
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

    /// Asks the training to stop, because of the signal of this name. The first name counts.
    ///
    /// ```
    /// let stop = everburn_record::StopSignal::default();
    /// stop.set_by("SIGHUP");
    /// stop.set_by("SIGTERM");
    /// assert!(stop.is_set());
    /// assert_eq!(stop.by(), Some("SIGHUP"));
    /// ```
    pub fn set_by(&self, signal: &str) {
        // Before the flag, with which it is read.
        let _ = self.by.set(signal.to_owned());
        self.flag.store(true, Ordering::Release);
    }

    /// The name of the signal that has asked for the stop, where this process has got it.
    pub fn by(&self) -> Option<&str> {
        self.by.get().map(String::as_str)
    }

    /// Whether the training was asked to stop.
    pub fn is_set(&self) -> bool {
        self.flag.load(Ordering::Acquire)
    }
}

/// Why a training was stopped after `step`, as its report has it: on request, where known by which signal. That may be followed by
/// where it came, as in `SIGTERM at machine 1`.
///
/// ```
/// use everburn_record::stopped_on_request;
///
/// assert_eq!(stopped_on_request(None, 7), "on request after step 7");
/// let closed = "on request by SIGHUP (its terminal was closed) after step 7";
/// assert_eq!(stopped_on_request(Some("SIGHUP"), 7), closed);
/// let elsewhere = "on request by Ctrl-C at machine 1 after step 7";
/// assert_eq!(stopped_on_request(Some("SIGINT at machine 1"), 7), elsewhere);
/// ```
pub fn stopped_on_request(by: Option<&str>, step: usize) -> String {
    let Some(by) = by else {
        return format!("on request after step {step}");
    };
    let name = by.split(' ').next().unwrap_or(by);
    let place = &by[name.len()..];
    let name = match name {
        "SIGINT" => "Ctrl-C",
        "SIGHUP" => "SIGHUP (its terminal was closed)",
        other => other,
    };
    format!("on request by {name}{place} after step {step}")
}
