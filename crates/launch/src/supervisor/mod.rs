//! Stays with the ranks from the first one's start to the last one's end.

mod all_stopped;
mod continued;
mod elastic;
mod interrupt;
pub(crate) mod machine_processes;
mod outcome;
mod own_pause;
mod stop_elsewhere;
pub(crate) mod stopped;
mod store_client;
mod story;
mod writing;

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use everburn_collectives::store::TcpStoreServer;
use everburn_record::proc;
use rustix::process::Signal;

use self::continued::SaidStopped;
use self::elastic::Elastic;
use self::machine_processes::StoreEvent;
use self::own_pause::OwnPause;
use self::stopped::{LongStopped, Process};
use self::store_client::{Machine, StoreClient};
use self::writing::Writing;
use crate::cause::{Blame, blame};
use crate::config::LaunchConfig;
use crate::error::LaunchError;
use crate::event::{LaunchEvent, Tell};
use crate::exit::RankExit;
use crate::outcome::EndedRank;
use crate::output::ShownErrors;
use crate::ranks::{Job, KILL_PATIENCE, PumpAlive, RunningRank};

/// How often the launcher that holds the store looks whether other machines are still there, once no rank of
/// its own is.
const LOOK: Duration = Duration::from_millis(500);

/// What the launcher waits for.
pub(crate) enum Event {
    /// The rank at this position has ended.
    Ended(usize),
    /// A signal has reached the launcher.
    Signal(i32),
    /// The store of an elastic job has news.
    Store(StoreEvent),
}

/// What is needed to start a rank.
struct Starter<'a> {
    job: &'a Job<'a>,
    alive: PumpAlive,
    events: Sender<Event>,
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
    /// In the order in which they ended; in an elastic job those after which no restart was decided.
    ended: Vec<EndedRank>,
    starter: Option<Starter<'a>>,
    elastic: Option<Elastic>,
    long_stopped: LongStopped,
    said_stopped: SaidStopped,
    /// The ranks of a job that is not elastic that were stopped when the first one failed.
    stopped_ranks: Vec<usize>,
    own_pause: OwnPause,
    /// Why the launcher has ended a job that is not elastic.
    gave_up: Option<String>,
    /// Whether a dashboard has the terminal, and the lines of ranks go to their logs alone.
    dashboard: bool,
    hosted: Option<&'a TcpStoreServer>,
    /// Since when nobody else is connected to it, while this machine has no ranks.
    alone_since: Option<Instant>,
    inbox: Receiver<Event>,
    plan: Plan,
    /// The first signal that asked the job to stop, and when it came.
    interrupted: Option<(i32, Instant)>,
    writing: Writing,
    /// The errors that ranks have printed.
    errors: Arc<ShownErrors>,
    tell: Tell,
}

impl<'a> Supervisor<'a> {
    pub(crate) fn new(
        config: &'a LaunchConfig,
        hosted: Option<&'a TcpStoreServer>,
        inbox: Receiver<Event>,
        tell: Tell,
    ) -> Self {
        let (running, ended) = (Vec::new(), Vec::new());
        Self {
            config,
            running,
            ended,
            starter: None,
            elastic: None,
            long_stopped: LongStopped::new(config.ranks),
            said_stopped: SaidStopped::default(),
            stopped_ranks: Vec::new(),
            own_pause: OwnPause::new(config.heartbeat_timeout),
            gave_up: None,
            dashboard: false,
            hosted,
            alone_since: None,
            inbox,
            plan: Plan::Train,
            interrupted: None,
            writing: Writing::new(config.step_limit),
            errors: Arc::default(),
            tell,
        }
    }

    /// Starts all ranks; those of an elastic job are started once they have been numbered.
    pub(crate) fn start(
        &mut self,
        job: &'a Job<'a>,
        logs: Vec<File>,
        alive: PumpAlive,
        events: Sender<Event>,
    ) -> Result<(), LaunchError> {
        self.running.extend(logs.iter().map(|_| None));
        let client_events = events.clone();
        self.dashboard = job.dashboard;
        self.errors = Arc::clone(&job.errors);
        self.starter = Some(Starter { job, alive, events });
        if let Some(limits) = self.config.elastic.clone() {
            let access = self.config.store_access(&job.token);
            let machine = Machine {
                first_rank: self.config.global_rank(0),
                node_rank: self.config.node_rank,
                nodes: self.config.nodes,
            };
            let (store, limit) = (job.store.clone(), self.config.step_limit);
            let client = StoreClient::start((store, access), limit, machine, client_events)
                .map_err(|source| system("start the store client", source))?;
            self.elastic = Some(Elastic::new(limits, client, machine.first_rank, logs));
            return Ok(());
        }
        for (local_rank, log) in logs.into_iter().enumerate() {
            while let Ok(event) = self.inbox.try_recv() {
                self.handle(event)?;
            }
            if self.was_interrupted() {
                return Ok(());
            }
            self.start_rank(local_rank, None, log)?;
        }
        Ok(())
    }

    fn start_rank(
        &mut self,
        local_rank: usize,
        incarnation: Option<u64>,
        log: File,
    ) -> Result<(), LaunchError> {
        let Some(starter) = &self.starter else {
            return Ok(());
        };
        let mut rank =
            RunningRank::start(starter.job, local_rank, incarnation, log, &starter.alive)?;
        let events = starter.events.clone();
        let watched = rank.watch(move || drop(events.send(Event::Ended(local_rank))));
        if let Err(source) = watched {
            // Nobody would learn of its end.
            rank.signal(Signal::KILL);
            rank.reap_within(KILL_PATIENCE, self.config)
                .map_err(|source| system("reap a rank", source))?;
            return Err(system("wait for ranks", source));
        }
        self.running[local_rank] = Some(rank);
        Ok(())
    }

    /// Returns once no rank runs, none is to be started, and no other machine needs the store. None can be
    /// started after that.
    pub(crate) fn wait_for_all(&mut self) -> Result<(), LaunchError> {
        while self.has_ranks() || self.serves_others() {
            let before = proc::uptime();
            let event = self.next_event();
            self.own_pause
                .waited(before, proc::uptime(), Instant::now());
            match event {
                Some(event) => self.handle(event)?,
                None => self.advance(),
            }
        }
        self.say_who_asked();
        self.starter = None;
        Ok(())
    }

    fn handle(&mut self, event: Event) -> Result<(), LaunchError> {
        match event {
            Event::Ended(local_rank) => self.reap(local_rank),
            Event::Store(event) => self.take(event),
            Event::Signal(signal) => {
                self.interrupt(signal);
                Ok(())
            }
        }
    }

    /// Whether a rank of this machine runs or will be started.
    fn has_ranks(&self) -> bool {
        self.running.iter().any(Option::is_some) || self.will_start()
    }

    /// Whether ranks of other machines continue without this machine's, and with its store.
    fn serves_others(&mut self) -> bool {
        let Some(store) = self.hosted.filter(|_| self.config.nodes > 1) else {
            return false;
        };
        if !self.goes_on() {
            return false;
        }
        // One of the connections is this launcher's own.
        if store.connections() > 1 {
            self.alone_since = None;
            return true;
        }
        // How the job has ended may have to be learnt yet: the others write it to the store before they go.
        let since = *self.alone_since.get_or_insert_with(Instant::now);
        since.elapsed() < LOOK
    }

    fn will_start(&self) -> bool {
        self.elastic.as_ref().is_some_and(Elastic::will_start)
    }

    fn plan_ends(&self) -> Option<Instant> {
        match self.plan {
            Plan::Train => None,
            Plan::Stopping(at) | Plan::Grace(at) | Plan::Terminating(at) | Plan::Killing(at) => {
                Some(at)
            }
        }
    }

    /// The next event; `None` when the plan's time, or that of a restart or a look, has come first.
    fn next_event(&self) -> Option<Event> {
        let restart = self.elastic.as_ref().and_then(Elastic::next_start);
        let look = (!self.has_ranks()).then(|| Instant::now() + LOOK);
        let stopped = self.elastic.as_ref().and_then(Elastic::next_look);
        let long_stopped = self.long_stopped.next_look();
        let looks = restart.into_iter().chain(stopped).chain([long_stopped]);
        let ends = self.plan_ends().into_iter().chain(looks);
        let deadline = ends.chain(look).min();
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
            .map_err(|source| system("reap a rank", source))?;
        let failed = !self.ends_well(&ended);
        tracing::debug!("{ended}");
        if self.elastic.is_some() {
            self.settle(local_rank, ended);
            return Ok(());
        }
        if failed && blame(&ended) == Blame::Own {
            (self.tell)(&LaunchEvent::Lost {
                rank: ended.rank,
                text: ended.to_string(),
            });
        }
        self.ended.push(ended);
        if failed && matches!(self.plan, Plan::Train | Plan::Stopping(_)) {
            let looked = Process::all(&self.running).into_iter().enumerate();
            let stopped = looked.filter(|(_, process)| process.is_some_and(|it| it.is_stopped));
            let stopped = stopped.map(|(local_rank, _)| self.config.global_rank(local_rank));
            self.stopped_ranks = stopped.collect();
            self.plan = Plan::Grace(Instant::now() + self.config.grace);
        }
        self.end_if_the_rest_is_stopped();
        Ok(())
    }

    /// The time of the present plan, or of a restart, has come.
    fn advance(&mut self) {
        if let Some(elastic) = &mut self.elastic {
            elastic.start_those_due();
        }
        self.end_stopped_ranks();
        self.end_if_all_are_stopped();
        if self.plan_ends().is_none_or(|at| at > Instant::now()) {
            return;
        }
        match self.plan {
            Plan::Train => {}
            Plan::Grace(_) => {
                self.signal_all(Signal::TERM);
                self.plan = Plan::Terminating(Instant::now() + self.config.kill_after);
            }
            Plan::Stopping(_) => self.wait_for_those_that_work(),
            Plan::Terminating(_) => self.kill_all(),
            Plan::Killing(_) => {
                let stuck = self.running.iter_mut().filter_map(Option::take);
                self.ended
                    .extend(stuck.map(|rank| rank.give_up(self.config)));
            }
        }
    }

    fn cancel_restarts(&mut self) {
        if let Some(elastic) = &mut self.elastic {
            elastic.cancel();
        }
    }

    /// Whether a process of rank 0 died of a signal.
    pub(crate) fn rank_0_was_killed(&self) -> bool {
        let earlier = self.elastic.iter().flat_map(Elastic::ends);
        earlier
            .chain(&self.ended)
            .any(|rank| rank.rank == 0 && matches!(rank.exit, RankExit::Signal(_)))
    }

    pub(crate) fn kill_all(&mut self) {
        self.cancel_restarts();
        self.signal_all(Signal::KILL);
        self.plan = Plan::Killing(Instant::now() + KILL_PATIENCE);
    }

    fn signal_all(&mut self, signal: Signal) {
        for rank in self.running.iter_mut().flatten() {
            rank.signal(signal);
        }
    }
}

fn system(operation: &'static str, source: io::Error) -> LaunchError {
    LaunchError::System { operation, source }
}
