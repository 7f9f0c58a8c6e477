//! The thread of a screen: it reads keys, follows the run, and draws.

use std::fs::File;
use std::io::Read;
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use everburn_record::sync::lock;
use everburn_record::unix_time_ms;
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::terminal::{BeginSynchronizedUpdate, EndSynchronizedUpdate};
use ratatui::crossterm::{execute, queue};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::keys::{Key, Keys};
use super::painted::Painted;
use super::pseudo_terminal::PseudoTerminal;
use super::streams::OwnStreams;
use super::{Purpose, Restore};
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

/// How often a training's ranks are looked at while the dashboard is shown, whose border names those in trouble.
const CALM_LOOK: Duration = Duration::from_secs(2);

/// How often time goes by on the screen where nothing else happens.
const SLOW_FRAME: Duration = Duration::from_millis(500);

/// The thread that reads keys and draws.
pub(super) struct ScreenThread {
    pub(super) own: Arc<OwnStreams>,
    pub(super) inner: PseudoTerminal,
    pub(super) painted: Painted,
    pub(super) keys: Keys,
    /// When the last key was pressed.
    pub(super) pressed: Option<Instant>,
    /// The dashboard has been asked to quit, and asks how.
    pub(super) asks_how: bool,
    /// The training was killed, and nothing more is shown.
    pub(super) killed: bool,
    pub(super) view: RanksView,
    /// The ranks are on the screen.
    pub(super) ranks: bool,
    /// From where a training's screen knows the ranks.
    pub(super) source: Option<Source>,
    /// When it last looked there.
    pub(super) looked: Instant,
    pub(super) purpose: Purpose,
    pub(super) state: Arc<Mutex<RunState>>,
    pub(super) stop: Receiver<std::convert::Infallible>,
    pub(super) leave: Sender<()>,
    pub(super) restored: Arc<Restore>,
}

impl ScreenThread {
    pub(super) fn run(mut self) {
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
                *self.own.said() = self.painted.drain();
                return;
            }
            if self.killed {
                drawn = Instant::now();
                continue;
            }
            let wanted = if due { self.frame() } else { SLOW_FRAME };
            if drawn.elapsed() < wanted {
                continue;
            }
            self.follow();
            if self.draw(&mut terminal).is_err() {
                // The terminal is gone; who monitors has left. A drop would show the cursor, and print that it cannot: a
                // panic where standard error is that terminal, too.
                std::mem::forget(terminal);
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
        if stands.is_zero() || ends {
            let pipe = self.painted.pipe();
            waited.push(PollFd::from_borrowed_fd(pipe, PollFlags::IN));
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
        if ready.get(1) == Some(&true) {
            news |= self.painted.read() && !self.ranks;
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
            (Key::Char('r'), _) => self.ranks = !self.ranks,
            (Key::Char('q' | 'd'), _) if !training => {
                // Nobody waits any more where it fails.
                let _ = self.leave.send(());
            }
            (Key::Char('q'), _) => {
                (self.ranks, self.asks_how) = (false, true);
                self.inner.type_in(&key.bytes());
            }
            (Key::Char('w'), true) => self.view.work = !self.view.work,
            (Key::Char('z'), true) => self.view.whole = !self.view.whole,
            (Key::Up, true) => self.view.scrolled = self.view.scrolled.saturating_sub(1),
            (Key::Down, true) => self.scroll_to(self.view.scrolled + 1),
            (Key::PageUp, true) => self.view.scrolled = self.view.scrolled.saturating_sub(10),
            (Key::PageDown, true) => self.scroll_to(self.view.scrolled + 10),
            (_, true) => {}
            (Key::Char('k'), false) if self.asks_how => self.kill(),
            (key, false) => {
                // Its other answers.
                self.asks_how &= !matches!(key, Key::Char('s' | 'c'));
                self.inner.type_in(&key.bytes());
            }
        }
    }

    /// Ends the training. The dashboard's own way is a panic, and waits for an event of the training, which may hang.
    fn kill(&mut self) {
        self.killed = true;
        if let Purpose::Train { stop, .. } = &self.purpose {
            self.restored.now();
            stop.kill();
        }
    }

    fn scroll_to(&mut self, rank: usize) {
        let ranks = lock(&self.state).ranks().len();
        self.view.scrolled = rank.min(ranks.saturating_sub(1));
    }

    /// A training's screen follows the run: closely while somebody sees the ranks.
    fn follow(&mut self) {
        let Purpose::Train { run: Some(run), .. } = &self.purpose else {
            return;
        };
        if !self.ranks && self.looked.elapsed() < CALM_LOOK {
            return;
        }
        self.looked = Instant::now();
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
            if self.ranks {
                draw_ranks(&state, self.view, area, frame.buffer_mut());
            } else {
                let looks_on = !self.view.training;
                // Of a run that is over, burn-train's picture shows the last thing that it did.
                let news = state.news(looks_on);
                self.painted
                    .draw(looks_on, news.as_deref(), area, frame.buffer_mut());
            }
        })?;
        execute!(terminal.backend_mut(), EndSynchronizedUpdate)
    }
}
