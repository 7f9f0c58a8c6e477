//! Stays with the ranks from the first one's start to the last one's end.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use signal_hook::consts::SIGKILL;

use crate::cause::{Blame, blame, root_cause};
use crate::config::LaunchConfig;
use crate::error::LaunchError;
use crate::exit::RankExit;
use crate::outcome::{EndedRank, JobFailure, Outcome};
use crate::output::last_lines;
use crate::ranks::{Job, PumpAlive, RunningRank};

/// How many lines of the log of the rank to blame are shown.
const LOG_TAIL_LINES: usize = 15;

/// How long a process may take to vanish after SIGKILL.
const KILL_PATIENCE: Duration = Duration::from_secs(1);

/// What the launcher waits for.
pub(crate) enum Event {
    /// The rank at this position has ended.
    Ended(usize),
    /// A signal has reached the launcher.
    Signal(i32),
}

/// What happens next to ranks that still run, and when.
#[derive(Debug, Clone, Copy)]
enum Plan {
    /// They train; nothing happens.
    Train,
    /// They were asked to stop after their step; then SIGKILL.
    Stopping(Instant),
    /// A rank has failed and they may notice it by themselves; then SIGTERM.
    Grace(Instant),
    /// They got SIGTERM because of a failure; then SIGKILL.
    Terminating(Instant),
    /// They got SIGKILL; then they are given up.
    Killing(Instant),
}

pub(crate) struct Supervisor<'a> {
    config: &'a LaunchConfig,
    /// By local rank; `None` once reaped.
    running: Vec<Option<RunningRank>>,
    /// In the order in which they ended.
    pub(crate) ended: Vec<EndedRank>,
    inbox: Receiver<Event>,
    plan: Plan,
    interrupted_by: Option<i32>,
}

impl<'a> Supervisor<'a> {
    pub(crate) fn new(config: &'a LaunchConfig, inbox: Receiver<Event>) -> Self {
        let (running, ended) = (Vec::new(), Vec::new());
        Self {
            config,
            running,
            ended,
            inbox,
            plan: Plan::Train,
            interrupted_by: None,
        }
    }

    pub(crate) fn start(
        &mut self,
        job: &Job,
        logs: Vec<std::fs::File>,
        alive: &PumpAlive,
        events: &Sender<Event>,
    ) -> Result<(), LaunchError> {
        for (local_rank, log) in logs.into_iter().enumerate() {
            let rank = RunningRank::start(job, local_rank, log, alive)?;
            let events = events.clone();
            let watched = rank.watch(move || drop(events.send(Event::Ended(local_rank))));
            self.running.push(Some(rank));
            watched.map_err(|source| LaunchError::System {
                operation: "wait for ranks",
                source,
            })?;
        }
        Ok(())
    }

    pub(crate) fn wait_for_all(&mut self) -> Result<(), LaunchError> {
        while self.running.iter().any(Option::is_some) {
            match self.next_event() {
                Some(Event::Ended(local_rank)) => self.reap(local_rank)?,
                Some(Event::Signal(signal)) => self.interrupt(signal),
                None => self.advance(),
            }
        }
        Ok(())
    }

    /// The next event; `None` when the plan's time has come first.
    fn next_event(&self) -> Option<Event> {
        let deadline = match self.plan {
            Plan::Train => None,
            Plan::Stopping(at) | Plan::Grace(at) | Plan::Terminating(at) | Plan::Killing(at) => {
                Some(at)
            }
        };
        let received = match deadline {
            None => self
                .inbox
                .recv()
                .map_err(|_| RecvTimeoutError::Disconnected),
            Some(at) => self
                .inbox
                .recv_timeout(at.saturating_duration_since(Instant::now())),
        };
        received.ok()
    }

    fn reap(&mut self, local_rank: usize) -> Result<(), LaunchError> {
        let Some(rank) = self.running[local_rank].take() else {
            return Ok(());
        };
        let ended = rank
            .reap(self.config)
            .map_err(|source| LaunchError::System {
                operation: "reap a rank",
                source,
            })?;
        let failed = !ended.exit.is_success();
        tracing::debug!("{ended}");
        self.ended.push(ended);
        if failed && matches!(self.plan, Plan::Train | Plan::Stopping(_)) {
            self.plan = Plan::Grace(Instant::now() + self.config.grace);
        }
        Ok(())
    }

    /// A first signal asks the ranks to stop after their step, a second one ends them.
    fn interrupt(&mut self, signal: i32) {
        if self.interrupted_by.is_some() {
            self.kill_all();
            return;
        }
        self.interrupted_by = Some(signal);
        tracing::info!("stopping after this step; once more ends all ranks at once");
        self.signal_all(Signal::TERM);
        let now = Instant::now();
        self.plan = match self.plan {
            Plan::Train => Plan::Stopping(now + self.config.stop_patience),
            Plan::Grace(_) => Plan::Terminating(now + self.config.kill_after),
            already_ending => already_ending,
        };
    }

    /// The time of the present plan has come.
    fn advance(&mut self) {
        match self.plan {
            Plan::Train => {}
            Plan::Grace(_) => {
                self.signal_all(Signal::TERM);
                self.plan = Plan::Terminating(Instant::now() + self.config.kill_after);
            }
            Plan::Stopping(_) | Plan::Terminating(_) => self.kill_all(),
            Plan::Killing(_) => {
                let stuck = self.running.iter_mut().filter_map(Option::take);
                self.ended
                    .extend(stuck.map(|rank| rank.give_up(self.config)));
            }
        }
    }

    pub(crate) fn kill_all(&mut self) {
        self.signal_all(Signal::KILL);
        self.plan = Plan::Killing(Instant::now() + KILL_PATIENCE);
    }

    fn signal_all(&mut self, signal: Signal) {
        for rank in self.running.iter_mut().flatten() {
            rank.signal(signal);
        }
    }

    pub(crate) fn outcome(mut self, memory_kills_before: u64) -> Outcome {
        let Some(position) = root_cause(&self.ended) else {
            return match self.interrupted_by {
                Some(signal) => Outcome::Interrupted { signal },
                None => Outcome::Succeeded,
            };
        };
        if let Some(signal) = self.interrupted_by
            && blame(&self.ended[position]) != Blame::Own
        {
            return Outcome::Interrupted { signal };
        }
        let cause = self.ended.remove(position);
        self.ended.retain(|rank| !rank.exit.is_success());
        let log = self.config.log_path(cause.rank);
        Outcome::Failed(Box::new(JobFailure {
            log_tail: last_lines(&log, LOG_TAIL_LINES),
            log,
            out_of_memory: cause.exit == RankExit::Signal(SIGKILL)
                && memory_kills() > memory_kills_before,
            others: self.ended,
            cause,
        }))
    }
}

/// How many processes the kernel has ended for want of memory; 0 where it does not say.
pub(crate) fn memory_kills() -> u64 {
    let vmstat = std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let count = vmstat
        .lines()
        .find_map(|line| line.strip_prefix("oom_kill "));
    count
        .and_then(|count| count.trim().parse().ok())
        .unwrap_or(0)
}
