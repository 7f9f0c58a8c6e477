//! The rank's side of Ctrl-C: stop after this step.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

/// Whether this process has been asked to stop after the present step.
///
/// Stopping is a collective decision: one rank's answer must be agreed on by all before any acts.
///
/// ```
/// # mod everburn { pub use everburn_launch as launch; }
/// use everburn::launch::StopRequest;
///
/// let stop = StopRequest::listen(false)?;
/// assert!(!stop.is_set());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct StopRequest {
    asked: Arc<AtomicBool>,
}

impl StopRequest {
    /// Listens for SIGINT, SIGTERM and SIGHUP, which from now on only set the flag.
    ///
    /// Without a launcher a second SIGINT or SIGTERM ends the process at once, with 128 + the signal's
    /// number. Under one (`under_launcher`) it does not: a Ctrl-C may reach a rank twice, from the
    /// terminal and from the launcher, and it is the launcher that ends ranks at once.
    ///
    /// # Errors
    /// When the system refuses a signal handler.
    pub fn listen(under_launcher: bool) -> io::Result<Self> {
        let asked = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // A closed terminal may say so twice, by itself and by its shell.
            if !under_launcher && signal != SIGHUP {
                // Registered before the flag is: the first signal finds it still unset.
                flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&asked))?;
            }
            flag::register(signal, Arc::clone(&asked))?;
        }
        Ok(Self { asked })
    }

    /// Whether a signal has come.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// The flag itself, for loops that take one.
    #[must_use]
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.asked)
    }

    /// Asks for a stop from within, as a key of the dashboard does.
    pub fn set(&self) {
        self.asked.store(true, Ordering::Relaxed);
    }
}
