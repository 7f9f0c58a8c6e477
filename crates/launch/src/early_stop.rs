//! A signal that comes before there are ranks, or before a rank has joined the others.

use std::io;
use std::ops::ControlFlow;
use std::thread;

use everburn_record::proc::value_in;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::{Handle, Signals};
use signal_hook::low_level::{self, signal_name};

/// The signals by which a job is asked to stop.
pub(crate) const ASKED_BY: [i32; 6] = [SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGQUIT];

/// The signals by which a rank is asked to stop. Batch scripts for PyTorch have Slurm send SIGUSR1 before the end of a job's time,
/// submitit SIGUSR2.
pub(crate) const RANK_ASKED_BY: [i32; 5] = [SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2];

/// Listens for signals while a launcher prepares its job, until [`Launcher::run`](crate::Launcher::run) does: one that comes
/// before ends the process with 128 + its number, as later ones end the job, and not without a word.
///
/// Once it is dropped these signals have no effect, until something else listens for them.
///
/// ```no_run
/// # mod everburn { pub use everburn_launch as launch; }
/// use everburn::launch::{EarlyStop, LaunchConfig, Launcher};
///
/// let early = EarlyStop::listen(|signal| eprintln!("{signal}: no rank was started"))?;
/// // Read the data, make the run directory; then:
/// let launcher = Launcher::new(LaunchConfig::new("everburn", 4, "logs")).after(early);
/// std::process::exit(launcher.run()?.exit_code());
/// # #[allow(unreachable_code)]
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct EarlyStop {
    handle: Handle,
}

impl EarlyStop {
    /// Listens for SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2 and SIGQUIT. `tell` gets the name of the one that ends the process.
    ///
    /// # Errors
    /// When the system refuses a signal handler or a thread.
    pub fn listen(tell: impl Fn(&str) + Send + 'static) -> io::Result<Self> {
        Self::start(&ASKED_BY, |signal| 128 + signal, tell)
    }

    /// Does the same in a rank until it has joined the others, for SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2, to which
    /// [`listen_for_stop`](crate::listen_for_stop) listens then. `code` makes the exit code of the signal's number.
    ///
    /// # Errors
    /// As [`listen`](Self::listen).
    pub fn listen_in_a_rank(
        code: fn(i32) -> i32,
        tell: impl Fn(&str) + Send + 'static,
    ) -> io::Result<Self> {
        Self::start(&RANK_ASKED_BY, code, tell)
    }

    fn start(
        listened: &[i32],
        code: fn(i32) -> i32,
        tell: impl Fn(&str) + Send + 'static,
    ) -> io::Result<Self> {
        let obey = move |signal| -> ControlFlow<()> {
            tell(name_of(signal));
            low_level::exit(code(signal));
        };
        let handle = on_signals("early-signals", listened, obey)?;
        Ok(Self { handle })
    }
}

/// `signals` without a SIGHUP that this process was started to ignore, as by `nohup`: a handler would undo that.
///
/// SIGINT and SIGQUIT stay, though a shell without job control has its background jobs ignore them: scripts stop such a job by
/// SIGINT. Where the system has no `/proc` all stay.
#[must_use]
pub fn signals_to_hear(signals: &[i32]) -> Vec<i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let hears = |signal: &i32| *signal != SIGHUP || !is_ignored(*signal, &status);
    signals.iter().copied().filter(hears).collect()
}

/// Whether a process whose `/proc/PID/status` this is ignores `signal`.
fn is_ignored(signal: i32, status: &str) -> bool {
    let mask = value_in(status, "SigIgn").and_then(|mask| u64::from_str_radix(mask, 16).ok());
    mask.is_some_and(|mask| mask & (1 << (signal - 1)) != 0)
}

/// As in `SIGTERM`.
pub(crate) fn name_of(signal: i32) -> &'static str {
    signal_name(signal).unwrap_or("a signal")
}

/// Calls `obey` on a thread of its own with each signal that comes, until it breaks or the handle is closed.
pub(crate) fn on_signals(
    thread: &str,
    listened: &[i32],
    mut obey: impl FnMut(i32) -> ControlFlow<()> + Send + 'static,
) -> io::Result<Handle> {
    let mut signals = Signals::new(signals_to_hear(listened))?;
    let handle = signals.handle();
    thread::Builder::new()
        .name(thread.to_owned())
        .spawn(move || {
            // It breaks off where nobody listens any more.
            let _ = signals.forever().try_for_each(&mut obey);
        })?;
    Ok(handle)
}

impl Drop for EarlyStop {
    fn drop(&mut self) {
        self.handle.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ignored_signal_is_a_bit_of_the_status() {
        let status = "SigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n";
        assert!(is_ignored(SIGHUP, status));
        assert!(!is_ignored(SIGINT, status) && !is_ignored(SIGTERM, status));
        assert!(!is_ignored(SIGHUP, "SigIgn:\t0000000000001000\n"));
        assert!(!is_ignored(SIGHUP, ""));
    }
}
