//! The rank's side of Ctrl-C: stop after this step.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use everburn_record::{EXIT_INTERRUPTED, StopSignal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;
use signal_hook::low_level;

/// Signals that come within this time are one request: `timeout` sends one to its child and one to its process group.
const ONE_REQUEST: Duration = Duration::from_millis(250);

/// Whether a signal that comes `now` is another request than the one at `first`.
pub(crate) fn asks_again(first: Instant, now: Instant) -> bool {
    now.saturating_duration_since(first) > ONE_REQUEST
}

/// Listens for SIGINT, SIGTERM and SIGHUP, which from now on only set the signal.
///
/// Without a launcher a second SIGINT or SIGTERM ends the process at once, with 128 + the signal's
/// number; signals within a quarter of a second count as one. Under one (`under_launcher`) it does not: a Ctrl-C may reach
/// a rank twice, from the terminal and from the launcher, and it is the launcher that ends ranks at once.
///
/// Stopping is a collective decision: one rank's answer must be agreed on by all before any acts.
///
/// # Errors
/// When the system refuses a signal handler.
///
/// ```
/// # mod everburn { pub use everburn_launch as launch; }
/// let stop = everburn::launch::listen_for_stop(false)?;
/// assert!(!stop.is_set());
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn listen_for_stop(under_launcher: bool) -> io::Result<StopSignal> {
    let asked = Arc::new(AtomicBool::new(false));
    let listened = [SIGINT, SIGTERM, SIGHUP];
    // No handlers of the process's exit run, which might wait for what hangs.
    let kill = || low_level::exit(EXIT_INTERRUPTED.into());
    let stop = StopSignal::from_flag(Arc::clone(&asked)).with_kill(kill);
    if under_launcher {
        for signal in listened {
            flag::register(signal, Arc::clone(&asked))?;
        }
        return Ok(stop);
    }
    let mut signals = Signals::new(listened)?;
    let obey = move || {
        let mut first = None::<Instant>;
        for signal in signals.forever() {
            let was_asked = asked.swap(true, Ordering::Relaxed);
            let is_another = first.is_none_or(|first| asks_again(first, Instant::now()));
            // A closed terminal may say so twice, by itself and by its shell.
            if was_asked && is_another && signal != SIGHUP {
                low_level::exit(128 + signal);
            }
            first.get_or_insert_with(Instant::now);
        }
    };
    thread::Builder::new().name("signals".into()).spawn(obey)?;
    Ok(stop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_that_come_together_are_one_request() {
        let first = Instant::now();
        assert!(!asks_again(first, first + Duration::from_millis(5)));
        assert!(asks_again(first, first + Duration::from_millis(300)));
    }
}
