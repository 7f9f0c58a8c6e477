//! What is known of a run, in bounded memory: what the views draw.

mod bounds;
mod history;
mod ranks;
mod words;

use std::collections::VecDeque;

use everburn_record::{Event, EventKind, Live, MetricKind, MetricLine, Phase, Settings};

use self::bounds::MOST_RANKS;
pub use self::history::{Column, History};
use self::ranks::Wait;
pub use self::ranks::{RankState, RankStatus};
use crate::update::Update;

/// How many events are kept.
const MOST_EVENTS: usize = 500;

/// How many points of the loss are kept; a longer curve is thinned out.
const MOST_POINTS: usize = 2048;

/// What is known of a run. Fed with [`Update`]s, in any order; drawn by [`crate::draw_ranks`].
///
/// ```
/// use everburn_monitor::{RunState, Update};
/// use everburn_record::{Live, Phase};
///
/// let mut state = RunState::default();
/// let live = Live { step: 10, steps: Some(110), seconds_a_step: Some(0.5), phase: Phase::Training, ..Live::default() };
/// state.take(&Update::Live(live), 1_000);
/// assert_eq!(state.seconds_left(), Some(50.0));
/// ```
#[derive(Debug, Clone, Default)]
pub struct RunState {
    pub(crate) name: String,
    pub(crate) model: String,
    /// How many ranks the configuration asks for.
    pub(crate) planned_ranks: usize,
    /// How many of them each machine has, where there are several.
    ranks_per_machine: Option<usize>,
    pub(crate) live: Live,
    pub(crate) running: Option<bool>,
    pub(crate) reached: Option<bool>,
    /// The newest line of each kind.
    pub(crate) step: Option<MetricLine>,
    pub(crate) validation: Option<MetricLine>,
    pub(crate) test: Option<MetricLine>,
    /// Loss by step.
    pub(crate) losses: Vec<(u64, f64)>,
    pub(crate) history: History,
    pub(crate) events: VecDeque<Event>,
    /// How often a rank was started again.
    pub(crate) restarts: u64,
    /// How many checkpoints could not be written.
    pub(crate) failed_checkpoints: u64,
    pub(crate) finished: bool,
    /// Why it ended before its time.
    pub(crate) stopped: Option<String>,
    /// What is to be said if it was cut off.
    cut_off: Option<Event>,
    ranks: ranks::Ranks,
    /// Something of a rank was left out, because there are more than are kept.
    ranks_left_out: bool,
    /// The newest time that is known, in milliseconds since 1970: this machine's clock, or what the run has told.
    pub(crate) now_ms: u64,
    /// When something came last, by this machine's clock.
    heard_ms: u64,
    /// Who writes `live.json`.
    writer: usize,
    /// When the step or the phase was another one last, by this machine's clock.
    moved_ms: u64,
}

impl RunState {
    /// Takes a piece of news. `now_ms` is the time by this machine's clock, in milliseconds since 1970.
    pub fn take(&mut self, update: &Update, now_ms: u64) {
        self.now_ms = now_ms;
        match update {
            Update::Reset => {
                let (running, reached) = (self.running, self.reached);
                *self = Self {
                    running,
                    reached,
                    now_ms,
                    ..Self::default()
                };
            }
            Update::Run { name, config } => self.read_config(name, config),
            Update::Metric(line) => self.take_metric(line),
            Update::Ranks(line) => {
                let (line, all) = bounds::rank_line(line);
                self.ranks_left_out |= !all;
                if self.history.push(&line) {
                    self.ranks.step(&line);
                }
            }
            Update::Event(event) => self.take_event(event),
            Update::Live(live) => {
                if live.unix_time_ms != self.live.unix_time_ms {
                    // What was there before anybody looked is as old as it says: by clocks of one machine, mostly.
                    self.heard_ms = match self.heard_ms {
                        0 => live.unix_time_ms.min(now_ms),
                        _ => now_ms,
                    };
                    self.writer = live.writer();
                }
                let at = |live: &Live| (live.phase, live.step);
                if self.moved_ms == 0 || at(live) != at(&self.live) {
                    // By the clock of the run's machine: it may not have moved since long before anybody looked.
                    let moved = live.moved_unix_ms.unwrap_or(live.unix_time_ms);
                    let still = live.unix_time_ms.saturating_sub(moved);
                    self.moved_ms = now_ms.saturating_sub(still);
                }
                let (ranks, all) = bounds::live_ranks(live);
                let (members, all_members) = bounds::members(&live.members);
                self.ranks_left_out |= !all || !all_members;
                self.ranks.live(ranks, members);
                // What it says of ranks is kept there alone.
                self.live = Live {
                    members: Vec::new(),
                    ranks: Vec::new(),
                    failure: None,
                    unwritable: live.unwritable.as_deref().map(bounds::cut),
                    ..*live
                };
            }
            Update::Report(report) => {
                self.finished = true;
                self.stopped = report["stopped"].as_str().map(bounds::cut);
            }
            Update::CutOff(event) => {
                self.take_event(event);
                // A report is of the run as it was before it was resumed.
                (self.finished, self.stopped) = (false, None);
                self.cut_off = self.events.back().cloned();
            }
            Update::Running(running) => {
                self.running = Some(*running);
                self.reached = Some(true);
            }
            Update::Reached(reached) => self.reached = Some(*reached),
        }
    }

    /// Takes several at once, now.
    pub fn take_all(&mut self, updates: &[Update]) {
        let now_ms = everburn_record::unix_time_ms();
        for update in updates {
            self.take(update, now_ms);
        }
    }

    /// Time has gone by.
    pub fn tick(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
    }

    fn read_config(&mut self, name: &str, config: &str) {
        self.name = bounds::cut(name);
        let settings: Settings = config.parse().unwrap_or_default();
        self.model = bounds::cut(settings.get("model").unwrap_or("?"));
        let per_machine = settings.ranks_per_machine().unwrap_or(1).max(1);
        let machines = settings.machines().max(1);
        self.ranks_per_machine = (machines > 1).then_some(per_machine);
        let planned = per_machine.saturating_mul(machines);
        self.ranks_left_out |= planned > MOST_RANKS;
        self.planned_ranks = planned.min(MOST_RANKS);
    }

    fn take_event(&mut self, event: &Event) {
        let members = event.ranks.as_deref().map(bounds::members);
        let known = event.rank.is_none_or(|rank| rank < MOST_RANKS);
        let all = members.as_ref().is_none_or(|(_, all)| *all);
        self.ranks_left_out |= !known || !all;
        if known {
            self.ranks.event(event, members.map(|(members, _)| members));
        }
        self.restarts += u64::from(event.kind == EventKind::Restart);
        self.failed_checkpoints += u64::from(event.kind == EventKind::CheckpointFailed);
        if self.events.len() == MOST_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(Event {
            ranks: None,
            text: bounds::cut(&event.text),
            ..*event
        });
    }

    fn take_metric(&mut self, line: &MetricLine) {
        let newest = match line.kind {
            MetricKind::Step => &mut self.step,
            MetricKind::Validation => &mut self.validation,
            MetricKind::Test => &mut self.test,
            MetricKind::Train => return,
        };
        // A file that was written anew is told again.
        if newest
            .as_ref()
            .is_some_and(|newest| newest.step >= line.step)
        {
            return;
        }
        *newest = Some(bounds::metrics(line));
        if let (MetricKind::Step, Some(loss)) = (line.kind, line.known_loss()) {
            self.losses.push((line.step as u64, loss));
            if self.losses.len() > MOST_POINTS {
                let mut place = 0;
                self.losses.retain(|_| {
                    place += 1;
                    place % 2 == 0
                });
            }
        }
    }

    /// All ranks that are known of, by their numbers at the start of the job.
    #[must_use]
    pub fn ranks(&self) -> Vec<RankState> {
        self.ranks.all(self)
    }

    /// What is not shown, because there is more of it than is kept; `None` if nothing.
    #[must_use]
    pub fn left_out(&self) -> Option<String> {
        self.ranks_left_out
            .then(|| format!("only ranks below {MOST_RANKS}, each once, are shown"))
    }

    /// How long the run will still take, in seconds, as far as that can be told.
    #[must_use]
    pub fn seconds_left(&self) -> Option<f64> {
        if !self.goes_on() {
            return None;
        }
        // Nobody knows while nothing moves.
        if self.silence().or(self.stall()).is_some() {
            return None;
        }
        let left = self.live.steps?.checked_sub(self.live.step)?;
        Some(left as f64 * self.live.seconds_a_step?)
    }

    /// Whether a process has the run, as far as anybody knows.
    #[must_use]
    pub fn goes_on(&self) -> bool {
        let has_ended = self.finished && self.live.phase == Phase::Ended && !self.starts_again();
        self.running.unwrap_or(true) && !has_ended
    }

    /// For how many seconds rank 0 has said nothing, where that is too long.
    pub(crate) fn silence(&self) -> Option<f64> {
        let silent = self.now_ms.saturating_sub(self.heard_ms);
        let beats = self.goes_on() && self.heard_ms > 0 && self.live.phase != Phase::Ended;
        (beats && !self.starts_again() && silent >= Live::SILENT_MS).then_some(silent as f64 / 1e3)
    }

    /// For how many seconds a training has made no step, where that is too long.
    pub(crate) fn stall(&self) -> Option<f64> {
        let live = Live {
            moved_unix_ms: Some(self.moved_ms),
            ..self.live.clone()
        };
        let seconds = live.stalled(self.now_ms);
        seconds.filter(|_| self.goes_on() && !self.starts_again())
    }

    /// What is to be said of a run that was cut off: where, when and how to continue it.
    #[must_use]
    pub fn cut_off(&self) -> Option<&str> {
        let event = self.cut_off.as_ref().filter(|_| !self.goes_on())?;
        Some(&event.text)
    }

    /// Who is waited for, while a job starts or regroups. A run that starts again has the `live.json` of its earlier end.
    fn wait(&self) -> Option<&Wait> {
        let meets = matches!(self.live.phase, Phase::Starting | Phase::Regrouping);
        let wait = self.ranks.wait.as_ref()?;
        (meets || self.starts_again()).then_some(wait)
    }

    /// Whether ranks are waited for since a later time than that of `live.json`.
    fn starts_again(&self) -> bool {
        let wait = self.ranks.wait.as_ref();
        wait.is_some_and(|wait| wait.since_ms > self.live.unix_time_ms)
    }
}

#[cfg(any(test, fuzzing))]
impl RunState {
    /// About how many bytes it holds.
    pub(crate) fn held(&self) -> usize {
        let texts = self.events.iter().map(|event| event.text.len());
        let lines = [&self.step, &self.validation, &self.test];
        let named = lines.into_iter().flatten().flat_map(|line| &line.metrics);
        let names = named.map(|(name, _)| name.len() + size_of::<(String, f64)>());
        let texts = texts.sum::<usize>() + self.name.len() + self.model.len();
        let texts = texts + names.sum::<usize>();
        let events = self.events.len() * size_of::<Event>();
        let losses = self.losses.len() * size_of::<(u64, f64)>();
        texts + events + losses + self.history.held() + self.ranks.held()
    }
}

#[cfg(test)]
mod tests;
