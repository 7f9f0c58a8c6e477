//! One terminal for two views: burn-train's dashboard, which takes a terminal to itself, and the ranks.
//!
//! burn-train's dashboard draws on the standard output of its process and reads keys from the standard input, and asks
//! nobody. So both are put in its way: its input becomes the inner end of a pseudo terminal, into which every key goes
//! that is not ours, and its output a pipe, which a reader of terminal sequences ([`vt100`]) turns into a picture. That is
//! shown, or the ranks are. The terminal itself is ours: its raw mode, in which Ctrl-C still reaches the launcher and all
//! ranks as everywhere else, and its screen.

mod keys;
mod painted;
mod pseudo_terminal;
mod streams;
mod thread;

use std::io::Write;
use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use everburn_record::StopSignal;
use everburn_record::sync::lock;
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr,
};

use self::keys::Keys;
use self::painted::Painted;
use self::pseudo_terminal::PseudoTerminal;
use self::streams::{OwnStreams, Pace, Redirected};
use self::thread::ScreenThread;
use crate::error::MonitorError;
use crate::state::RunState;
use crate::view::RanksView;

/// In the place of a key of the terminal: there is none (`_POSIX_VDISABLE`).
const NO_KEY: u8 = 0;

/// What takes over a terminal: the other screen, no cursor, the mouse (which burn-train's dashboard knows).
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l\x1b[?1000h\x1b[?1002h\x1b[?1003h\x1b[?1006h\x1b[2J";

/// What gives it back.
const LEAVE: &[u8] = b"\x1b[?1006l\x1b[?1003l\x1b[?1002l\x1b[?1000l\x1b[?25h\x1b[0m\x1b[?1049l";

/// What the screen is for.
#[derive(Debug, Clone)]
pub enum Purpose {
    /// To look on: `q` leaves, and the run continues.
    LookOn,
    /// To show the training of this process: `q` is the dashboard's, which asks whether to stop.
    Train {
        /// The folder of the run, from which the ranks are known.
        run: Option<std::path::PathBuf>,
        /// Kills the training by the dashboard's keys `q` and `k`.
        stop: StopSignal,
    },
}

/// The terminal, while a view is on it. Dropping it gives the terminal back as it was.
///
/// ```no_run
/// use std::time::Duration;
///
/// use everburn_monitor::{Purpose, Screen};
///
/// let screen = Screen::take_over(Purpose::LookOn)?;
/// while !screen.wait_within(Duration::from_secs(1)) {}
/// # Ok::<(), everburn_monitor::MonitorError>(())
/// ```
pub struct Screen {
    state: Arc<Mutex<RunState>>,
    /// Dropping it ends the thread.
    running: Option<Sender<std::convert::Infallible>>,
    left: Mutex<Receiver<()>>,
    thread: Option<JoinHandle<()>>,
    redirected: Option<Redirected>,
    own: Arc<OwnStreams>,
    restored: Arc<Restore>,
}

/// The terminal as it was.
struct Restore {
    settings: Termios,
    own: Arc<OwnStreams>,
    done: Mutex<bool>,
}

impl Restore {
    /// Once. Errors are of no use to anyone: the terminal may have been closed.
    fn now(&self) {
        let mut done = lock(&self.done);
        if !std::mem::replace(&mut *done, true) {
            let _ = self.own.output().write_all(LEAVE);
            let _ = tcsetattr(self.own.input(), OptionalActions::Now, &self.settings);
        }
    }
}

impl Screen {
    /// Takes over the terminal on standard input and output. The dashboard has to be made after this.
    ///
    /// # Errors
    /// [`MonitorError::Terminal`] if there is none, or the system refuses.
    pub fn take_over(purpose: Purpose) -> Result<Self, MonitorError> {
        let own = Arc::new(OwnStreams::duplicate().map_err(MonitorError::terminal)?);
        let settings = tcgetattr(own.input()).map_err(MonitorError::terminal)?;
        let mut raw = settings.clone();
        raw.make_raw();
        raw.local_modes.insert(LocalModes::ISIG);
        // Ctrl-Z would leave the shell on this screen, and stop some ranks of a training and others not.
        raw.special_codes[SpecialCodeIndex::VSUSP] = NO_KEY;
        // It would end this rank as if by itself.
        raw.special_codes[SpecialCodeIndex::VQUIT] = NO_KEY;
        let restored = Arc::new(Restore {
            settings,
            own: own.clone(),
            done: Mutex::new(false),
        });
        let inner = PseudoTerminal::open().map_err(MonitorError::terminal)?;
        tcsetattr(own.input(), OptionalActions::Now, &raw).map_err(MonitorError::terminal)?;
        restore_on_panic(&restored);
        own.output()
            .write_all(ENTER)
            .map_err(MonitorError::terminal)?;
        let pace = match &purpose {
            Purpose::LookOn => Pace::OfTheReader,
            // The training itself writes into the pipe, and must not wait for who reads.
            Purpose::Train { .. } => Pace::Free,
        };
        let (redirected, output) = Redirected::to(&inner, pace).map_err(MonitorError::terminal)?;
        let state = Arc::new(Mutex::new(RunState::default()));
        let (running, stop) = channel();
        let (leave, left) = channel();
        let body = ScreenThread {
            own: own.clone(),
            inner,
            painted: Painted::of(output),
            keys: Keys::default(),
            pressed: None,
            asks_how: false,
            killed: false,
            view: RanksView {
                dashboard: true,
                training: matches!(purpose, Purpose::Train { .. }),
                ..RanksView::default()
            },
            ranks: false,
            source: None,
            looked: Instant::now(),
            purpose,
            state: state.clone(),
            stop,
            leave,
            restored: restored.clone(),
        };
        let thread = std::thread::Builder::new()
            .name("everburn-screen".to_string())
            .spawn(move || body.run())
            .map_err(MonitorError::terminal)?;
        Ok(Self {
            state,
            running: Some(running),
            left: Mutex::new(left),
            thread: Some(thread),
            redirected: Some(redirected),
            own,
            restored,
        })
    }

    /// What the ranks view draws; fed by who follows the run.
    #[must_use]
    pub fn state(&self) -> Arc<Mutex<RunState>> {
        self.state.clone()
    }

    /// Whether the user wants to leave.
    #[must_use]
    pub fn is_left(&self) -> bool {
        !matches!(
            lock(&self.left).try_recv(),
            Err(std::sync::mpsc::TryRecvError::Empty)
        )
    }

    /// Waits until the user wants to leave, but not longer than `patience`; returns whether it is so.
    pub fn wait_within(&self, patience: Duration) -> bool {
        use std::sync::mpsc::RecvTimeoutError;
        !matches!(
            lock(&self.left).recv_timeout(patience),
            Err(RecvTimeoutError::Timeout)
        )
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Whoever writes to standard output from now on reaches the terminal; the thread reads the rest.
        drop(self.redirected.take());
        drop(self.running.take());
        let rest = self.thread.take().map(JoinHandle::join);
        self.restored.now();
        if matches!(rest, Some(Err(_))) {
            tracing::debug!("the screen's thread has panicked");
        }
        // What the dashboard printed after it had left its screen belongs to the user.
        let said = std::mem::take(&mut *self.own.said());
        let _ = self.own.output().write_all(&said);
    }
}

/// A panic's message must not be lost on a screen that is about to vanish.
fn restore_on_panic(restore: &Arc<Restore>) {
    let weak = Arc::downgrade(restore);
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if let Some(restore) = weak.upgrade() {
            restore.now();
        }
        before(info);
    }));
}

/// Whether a screen can be taken over: a terminal on both sides.
#[must_use]
pub fn is_terminal() -> bool {
    use std::io::IsTerminal;
    std::io::stdin().is_terminal() && std::io::stdout().as_fd().is_terminal()
}
