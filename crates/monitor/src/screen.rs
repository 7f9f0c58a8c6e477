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

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use everburn_record::unix_time_ms;
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::terminal::{BeginSynchronizedUpdate, EndSynchronizedUpdate};
use ratatui::crossterm::{execute, queue};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr,
};

use self::keys::{Key, Keys};
use self::painted::Painted;
use self::pseudo_terminal::PseudoTerminal;
use self::streams::{OwnStreams, Pace, Redirected};
use crate::error::MonitorError;
use crate::source::{Source, Target};
use crate::state::RunState;
use crate::view::{RanksView, draw_ranks};

/// How often the screen is drawn at most, while somebody presses keys.
const FRAME: Duration = Duration::from_millis(100);

/// How often what the dashboard paints is taken and drawn while nobody presses any: it paints ten times per second, which
/// is more than a reader sees, and what it costs is taken from the training.
const CALM_FRAME: Duration = Duration::from_millis(400);

/// How long somebody is at the keys after a key.
const AT_THE_KEYS: Duration = Duration::from_secs(2);

/// How often time goes by on the screen where nothing else happens.
const SLOW_FRAME: Duration = Duration::from_millis(500);

/// In the place of a key of the terminal: there is none (`_POSIX_VDISABLE`).
const NO_KEY: u8 = 0;

/// What takes over a terminal: the other screen, no cursor, the mouse (which burn-train's dashboard knows).
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l\x1b[?1000h\x1b[?1002h\x1b[?1003h\x1b[?1006h\x1b[2J";

/// What gives it back.
const LEAVE: &[u8] = b"\x1b[?1006l\x1b[?1003l\x1b[?1002l\x1b[?1000l\x1b[?25h\x1b[0m\x1b[?1049l";

/// What the screen is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Purpose {
    /// To look on: `q` leaves, and the run continues. There may be no dashboard to show beside the ranks.
    LookOn {
        /// Whether burn-train's dashboard is fed, too, in this process.
        dashboard: bool,
    },
    /// To show the training of this process: `q` is the dashboard's, which asks whether to stop.
    Train {
        /// The folder of the run, from which the ranks are known once somebody wants to see them.
        run: Option<std::path::PathBuf>,
    },
}

/// The terminal, while a view is on it. Dropping it gives the terminal back as it was.
///
/// ```no_run
/// use everburn_monitor::{Purpose, Screen};
///
/// let screen = Screen::take_over(Purpose::LookOn { dashboard: false })?;
/// screen.wait();
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
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        if !std::mem::replace(&mut *done, true) {
            let _ = self.own.output().write_all(LEAVE);
            let _ = tcsetattr(self.own.input(), OptionalActions::Now, &self.settings);
        }
    }
}

impl Screen {
    /// Takes over the terminal on standard input and output. Where there is a dashboard, it has to be made after this.
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
        let restored = Arc::new(Restore {
            settings,
            own: own.clone(),
            done: Mutex::new(false),
        });
        let with_dashboard = match &purpose {
            Purpose::LookOn { dashboard } => *dashboard,
            Purpose::Train { .. } => true,
        };
        let inner = match with_dashboard {
            true => Some(PseudoTerminal::open().map_err(MonitorError::terminal)?),
            false => None,
        };
        tcsetattr(own.input(), OptionalActions::Now, &raw).map_err(MonitorError::terminal)?;
        restore_on_panic(&restored);
        own.output()
            .write_all(ENTER)
            .map_err(MonitorError::terminal)?;
        let pace = match &purpose {
            Purpose::LookOn { .. } => Pace::OfTheReader,
            // The training itself writes into the pipe, and must not wait for who reads.
            Purpose::Train { .. } => Pace::Free,
        };
        let redirected = inner.as_ref().map(|inner| Redirected::to(inner, pace));
        let redirected = redirected.transpose();
        let (redirected, painted) = match redirected.map_err(MonitorError::terminal)? {
            Some((redirected, output)) => (Some(redirected), Some(output)),
            None => (None, None),
        };
        let state = Arc::new(Mutex::new(RunState::default()));
        let (running, stop) = channel();
        let (leave, left) = channel();
        let shown = Shown {
            own: own.clone(),
            inner,
            painted: painted.map(Painted::of),
            keys: Keys::default(),
            pressed: None,
            view: RanksView {
                dashboard: with_dashboard,
                training: matches!(purpose, Purpose::Train { .. }),
                ..RanksView::default()
            },
            ranks: !with_dashboard,
            source: None,
            purpose,
            state: state.clone(),
            stop,
            leave,
        };
        let thread = std::thread::Builder::new()
            .name("everburn-screen".to_string())
            .spawn(move || shown.run())
            .map_err(MonitorError::terminal)?;
        Ok(Self {
            state,
            running: Some(running),
            left: Mutex::new(left),
            thread: Some(thread),
            redirected,
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

    /// Waits until the user wants to leave.
    pub fn wait(&self) {
        // An error is that the thread has ended, which is as good.
        let _ = lock(&self.left).recv();
    }

    /// Waits for that, but not longer than `patience`; tells whether it is so.
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

/// What the thread has.
struct Shown {
    own: Arc<OwnStreams>,
    inner: Option<PseudoTerminal>,
    painted: Option<Painted>,
    keys: Keys,
    /// When the last key was pressed.
    pressed: Option<Instant>,
    view: RanksView,
    /// The ranks are on the screen.
    ranks: bool,
    /// From where a training's screen knows the ranks.
    source: Option<Source>,
    purpose: Purpose,
    state: Arc<Mutex<RunState>>,
    stop: Receiver<std::convert::Infallible>,
    leave: Sender<()>,
}

impl Shown {
    fn run(mut self) {
        let Ok(output) = self.own.output().try_clone() else {
            return;
        };
        let Ok(mut terminal) = Terminal::new(CrosstermBackend::new(output)) else {
            return;
        };
        let mut drawn = Instant::now();
        let mut due = true;
        loop {
            use std::sync::mpsc::TryRecvError;
            let ends = matches!(self.stop.try_recv(), Err(TryRecvError::Disconnected));
            due |= self.wait(drawn, ends);
            if ends {
                // What is still in the pipe comes after the dashboard's end.
                if let Some(painted) = &mut self.painted {
                    *self.own.said() = painted.drain();
                }
                return;
            }
            let wanted = if due { self.frame() } else { SLOW_FRAME };
            if drawn.elapsed() < wanted {
                continue;
            }
            self.follow_if_wanted();
            if self.draw(&mut terminal).is_err() {
                // The terminal is gone; who monitors has left.
                let _ = self.leave.send(());
                return;
            }
            (drawn, due) = (Instant::now(), false);
        }
    }

    /// How long a picture is at least.
    fn frame(&self) -> Duration {
        match self.pressed {
            Some(pressed) if pressed.elapsed() < AT_THE_KEYS => FRAME,
            _ => CALM_FRAME,
        }
    }

    /// Waits for keys and, once the picture that was `drawn` has stood for its time, for what the dashboard paints; tells
    /// whether there was any to be seen.
    fn wait(&mut self, drawn: Instant, ends: bool) -> bool {
        let stands = self.frame().saturating_sub(drawn.elapsed());
        let patience = match (ends, stands.is_zero()) {
            (true, _) => Duration::ZERO,
            (false, true) => SLOW_FRAME.saturating_sub(drawn.elapsed()).min(CALM_FRAME),
            (false, false) => stands,
        };
        let mut waited = vec![PollFd::new(self.own.input(), PollFlags::IN)];
        if let (Some(painted), true) = (&self.painted, stands.is_zero() || ends) {
            waited.push(PollFd::from_borrowed_fd(painted.pipe(), PollFlags::IN));
        }
        let patience = Timespec::try_from(patience).ok();
        if poll(&mut waited, patience.as_ref()).is_err() {
            return false;
        }
        let ready: Vec<bool> = waited.iter().map(|fd| !fd.revents().is_empty()).collect();
        let mut news = false;
        if ready[0] {
            news |= self.read_keys();
        }
        if let (Some(true), Some(painted)) = (ready.get(1), &mut self.painted) {
            news |= painted.read() && !self.ranks;
        }
        news
    }

    fn read_keys(&mut self) -> bool {
        let mut bytes = [0; 1024];
        let count = match self.own.input().read(&mut bytes) {
            Ok(0) | Err(_) => {
                // The terminal is gone. Not asked again at once, for it would answer at once.
                let _ = self.leave.send(());
                std::thread::sleep(FRAME);
                return false;
            }
            Ok(count) => count,
        };
        self.pressed = Some(Instant::now());
        for key in self.keys.read(&bytes[..count]) {
            self.press(&key);
        }
        count > 0
    }

    fn press(&mut self, key: &Key) {
        let training = self.view.training;
        match (key, self.ranks) {
            (Key::Char('r'), _) if self.inner.is_some() => self.ranks = !self.ranks,
            (Key::Char('q' | 'd'), _) if !training => {
                // Nobody waits any more where it fails.
                let _ = self.leave.send(());
            }
            (Key::Char('q'), true) => {
                // The dashboard asks how.
                self.ranks = false;
                self.hand_on(key);
            }
            (Key::Char('w'), true) => self.view.work = !self.view.work,
            (Key::Char('z'), true) => self.view.whole = !self.view.whole,
            (Key::Up, true) => self.view.scrolled = self.view.scrolled.saturating_sub(1),
            (Key::Down, true) => self.scroll_to(self.view.scrolled + 1),
            (Key::PageUp, true) => self.view.scrolled = self.view.scrolled.saturating_sub(10),
            (Key::PageDown, true) => self.scroll_to(self.view.scrolled + 10),
            (_, true) => {}
            (key, false) => self.hand_on(key),
        }
    }

    fn scroll_to(&mut self, rank: usize) {
        let ranks = lock(&self.state).ranks().len();
        self.view.scrolled = rank.min(ranks.saturating_sub(1));
    }

    fn hand_on(&mut self, key: &Key) {
        if let Some(inner) = &mut self.inner {
            inner.type_in(&key.bytes());
        }
    }

    /// A training's screen follows the run from when somebody wants to see the ranks.
    fn follow_if_wanted(&mut self) {
        let Purpose::Train { run: Some(run) } = &self.purpose else {
            return;
        };
        if !self.ranks {
            return;
        }
        if self.source.is_none() {
            self.source = Target::Folder(run.clone()).open(None).ok();
        }
        let Some(source) = &mut self.source else {
            return;
        };
        let updates = source.poll();
        let mut state = lock(&self.state);
        for update in updates {
            state.take(&update, unix_time_ms());
        }
    }

    fn draw(&mut self, terminal: &mut Terminal<CrosstermBackend<File>>) -> std::io::Result<()> {
        let mut state = lock(&self.state);
        state.tick(unix_time_ms());
        // A terminal that knows these shows no frame in halves; the others pass over them.
        queue!(terminal.backend_mut(), BeginSynchronizedUpdate)?;
        terminal.draw(|frame| {
            let area = frame.area();
            match &self.painted {
                Some(painted) if !self.ranks => {
                    let looks_on = !self.view.training;
                    let trouble = state.trouble();
                    painted.draw(looks_on, trouble.as_deref(), area, frame.buffer_mut());
                }
                _ => draw_ranks(&state, self.view, area, frame.buffer_mut()),
            }
        })?;
        execute!(terminal.backend_mut(), EndSynchronizedUpdate)
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a screen can be taken over: a terminal on both sides.
#[must_use]
pub fn is_terminal() -> bool {
    use std::io::IsTerminal;
    std::io::stdin().is_terminal() && std::io::stdout().as_fd().is_terminal()
}
