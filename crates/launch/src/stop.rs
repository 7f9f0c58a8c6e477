//! The rank's side of Ctrl-C: stop after this step.

use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use everburn_record::{EXIT_INTERRUPTED, StopSignal};
use signal_hook::consts::SIGHUP;
use signal_hook::flag;
use signal_hook::low_level;

use crate::RankEnvironment;
use crate::early_stop::{RANK_ASKED_BY, name_of, on_signals, signals_to_hear};

/// Signals that come within this time are one request: `timeout` sends one to its child and one to its process group.
const ONE_REQUEST: Duration = Duration::from_millis(250);

/// How long the end of the process waits for its last words: standard error may be a pipe that nobody reads.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// The number of the newest signal that has asked this process to stop, if it is a rank under a launcher; else 0.
static RECEIVED: AtomicUsize = AtomicUsize::new(0);

/// The name of the signal that has asked this rank to stop, under a launcher; empty if none has.
pub(crate) fn received_signal() -> &'static str {
    let signal = i32::try_from(RECEIVED.load(Ordering::SeqCst)).ok();
    signal.filter(|number| *number != 0).map_or("", name_of)
}

/// Whether a signal that comes `now` is another request than the one at `first`.
pub(crate) fn asks_again(first: Instant, now: Instant) -> bool {
    now.saturating_duration_since(first) > ONE_REQUEST
}

/// Listens for SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2, which from now on only set the signal. A SIGHUP that the process was
/// started to ignore, as by `nohup`, stays ignored.
///
/// In a process that is no `rank` a second SIGINT, SIGTERM, SIGUSR1 or SIGUSR2 ends the process at once, with 128 + the signal's
/// number; signals within a quarter of a second count as one. `tell` gets the name of the first signal with `false`, which
/// [`StopSignal::by`] has too, and that of the second with `true`, before the end. In a rank a second signal ends nothing: a
/// Ctrl-C may reach it twice, from the terminal and from its launcher. Where that is Everburn's, `tell` gets none: it is the
/// launcher that ends ranks at once, and says so. Such a rank reports the signal with its end
/// ([`RankEnvironment::report`]): the launcher names it, unless it has sent that signal itself.
///
/// Stopping is a collective decision: one rank's answer must be agreed on by all before any acts.
///
/// # Errors
/// When the system refuses a signal handler.
///
/// ```
/// # mod everburn { pub use everburn_launch as launch; }
/// let stop = everburn::launch::listen_for_stop(None, |signal, again| match again {
///     false => eprintln!("{signal}: stopping after this step"),
///     true => eprintln!("{signal} again: ended at once"),
/// })?;
/// assert!(!stop.is_set());
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn listen_for_stop(
    rank: Option<&RankEnvironment>,
    tell: impl Fn(&str, bool) + Send + Sync + 'static,
) -> io::Result<StopSignal> {
    let asked = Arc::new(AtomicBool::new(false));
    // No handlers of the process's exit run, which might wait for what hangs.
    let kill = || low_level::exit(EXIT_INTERRUPTED.into());
    let stop = StopSignal::from_flag(Arc::clone(&asked)).with_kill(kill);
    if rank.is_some_and(|rank| rank.launcher_pid.is_some()) {
        for signal in signals_to_hear(&RANK_ASKED_BY) {
            flag::register_usize(signal, &RECEIVED, signal as usize)?;
            flag::register(signal, Arc::clone(&asked))?;
        }
        return Ok(stop);
    }
    let tell = Arc::new(tell);
    let mut first = None::<Instant>;
    let (named, is_rank) = (stop.clone(), rank.is_some());
    let obey = move |signal| {
        let was_asked = asked.load(Ordering::Relaxed);
        named.set_by(name_of(signal));
        match request(signal, was_asked, first, Instant::now()) {
            Request::Stop => drop(say(&tell, signal, false)),
            Request::End if !is_rank => {
                let _ = say(&tell, signal, true).recv_timeout(LAST_WORDS);
                low_level::exit(128 + signal);
            }
            Request::End | Request::Known => {}
        }
        first.get_or_insert_with(Instant::now);
        ControlFlow::Continue(())
    };
    on_signals("signals", &RANK_ASKED_BY, obey)?;
    Ok(stop)
}

/// What a signal asks for.
#[derive(Debug, PartialEq, Eq)]
enum Request {
    /// To stop after the step.
    Stop,
    /// To end at once.
    End,
    /// What the one before has asked for.
    Known,
}

/// What a signal asks for that comes `now`, after the `first` one.
fn request(signal: i32, was_asked: bool, first: Option<Instant>, now: Instant) -> Request {
    let is_another = first.is_none_or(|first| asks_again(first, now));
    match was_asked {
        // A closed terminal may say so twice, by itself and by its shell.
        true if is_another && signal != SIGHUP => Request::End,
        _ if first.is_some() => Request::Known,
        _ => Request::Stop,
    }
}

/// Says it on a thread of its own: a standard error that nobody reads must keep no signal waiting. Yields when it is said.
fn say<T>(tell: &Arc<T>, signal: i32, again: bool) -> Receiver<()>
where
    T: Fn(&str, bool) + Send + Sync + 'static,
{
    let (done, said) = mpsc::channel();
    let tell = Arc::clone(tell);
    let speak = move || {
        tell(name_of(signal), again);
        let _ = done.send(());
    };
    // Without a thread it stays unsaid, and the signal is obeyed all the same.
    let _ = thread::Builder::new()
        .name("stop-words".into())
        .spawn(speak);
    said
}

#[cfg(test)]
mod tests {
    use signal_hook::consts::{SIGINT, SIGTERM};

    use super::*;

    #[test]
    fn a_first_signal_asks_for_a_stop_and_a_second_one_for_the_end() {
        let first = Instant::now();
        let later = first + Duration::from_secs(1);
        let soon = first + Duration::from_millis(5);
        assert_eq!(request(SIGINT, false, None, first), Request::Stop);
        assert_eq!(request(SIGINT, true, Some(first), soon), Request::Known);
        assert_eq!(request(SIGHUP, true, Some(first), later), Request::Known);
        assert_eq!(request(SIGTERM, true, Some(first), later), Request::End);
        // The training had stopped by itself.
        assert_eq!(request(SIGINT, true, None, first), Request::End);
    }

    #[test]
    fn what_is_said_has_the_name_of_the_signal() {
        let (sender, heard) = mpsc::channel();
        let tell =
            move |signal: &str, again: bool| sender.send((signal.to_owned(), again)).unwrap();
        let tell = Arc::new(tell);
        let said = say(&tell, SIGINT, true);
        said.recv_timeout(Duration::from_secs(10)).unwrap();
        assert_eq!(heard.recv().unwrap(), ("SIGINT".to_owned(), true));
    }

    #[test]
    fn words_that_nobody_hears_keep_no_signal_waiting() {
        let tell = Arc::new(|_: &str, _: bool| thread::sleep(Duration::from_secs(60)));
        let begun = Instant::now();
        say(&tell, SIGINT, true)
            .recv_timeout(LAST_WORDS)
            .unwrap_err();
        assert!(begun.elapsed() < Duration::from_secs(30));
    }
}
