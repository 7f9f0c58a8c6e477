//! Starts the ranks and stays with them until the last has ended.

use std::any::Any;
use std::io;
use std::net::TcpListener;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGKILL, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

use crate::cause::{Blame, blame, root_cause};
use everburn_collectives::store::{StoreOptions, TcpStoreServer};

use crate::config::LaunchConfig;
use crate::error::LaunchError;
use crate::exit::RankExit;
use crate::outcome::{EndedRank, JobFailure, Outcome};
use crate::output::last_lines;
use crate::ranks::{Job, PumpAlive, RunningRank, open_log};
use crate::terminal::{SavedTerminal, can_show_dashboard};

/// How many lines of the log of the rank to blame are shown.
const LOG_TAIL_LINES: usize = 15;

/// How long output may still arrive after the last rank's end (a helper may hold the pipe open).
const OUTPUT_PATIENCE: Duration = Duration::from_secs(1);

/// How long a process may take to vanish after SIGKILL.
const KILL_PATIENCE: Duration = Duration::from_secs(1);

/// A running store; it ends when this is dropped.
pub type HostedStore = Box<dyn Any + Send>;

type HostStore = Box<dyn FnOnce(TcpListener, Option<&str>) -> Result<HostedStore, String>>;

/// Starts one process a rank and stays with them until the last has ended.
///
/// ```no_run
/// use everburn_launch::{LaunchConfig, Launcher};
///
/// let program = std::env::current_exe()?;
/// let config = LaunchConfig {
///     args: std::env::args_os().skip(1).collect(),
///     ..LaunchConfig::new(program, 4, "runs/a/logs")
/// };
/// let outcome = Launcher::new(config).run()?;
/// eprintln!("{outcome}");
/// std::process::exit(outcome.exit_code());
/// # #[allow(unreachable_code)]
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Launcher {
    config: LaunchConfig,
    host_store: HostStore,
}

impl Launcher {
    /// A launcher that hosts our own store on machine 0. Nothing happens before [`Launcher::run`].
    #[must_use]
    pub fn new(config: LaunchConfig) -> Self {
        Self {
            config,
            host_store: Box::new(|listener, token| {
                let options = StoreOptions {
                    job_token: token.map(str::to_owned),
                    ..StoreOptions::default()
                };
                match TcpStoreServer::from_listener(listener, options) {
                    Ok(server) => Ok(Box::new(server)),
                    Err(error) => Err(error.to_string()),
                }
            }),
        }
    }

    /// Hosts another store instead: `host` gets the bound listener and the job token, and returns
    /// what keeps the store alive, or why it cannot run.
    #[must_use]
    pub fn host_store_with(
        mut self,
        host: impl FnOnce(TcpListener, Option<&str>) -> Result<HostedStore, String> + 'static,
    ) -> Self {
        self.host_store = Box::new(host);
        self
    }

    /// Starts the ranks, waits until all have ended, and says how. It has no deadline while ranks
    /// run and nothing fails; after that, every wait has one.
    ///
    /// Call it once, from a thread that lives as long as the process (`main`'s): its end would
    /// count as the launcher's. SIGINT, SIGTERM and SIGHUP are taken over and stay without effect
    /// after the return, so the process should end soon.
    ///
    /// # Errors
    /// [`LaunchError`] when nothing was started, or all that was has been ended again. That ranks
    /// fail is an [`Outcome`].
    pub fn run(self) -> Result<Outcome, LaunchError> {
        let Self { config, host_store } = self;
        config.validate()?;
        std::fs::create_dir_all(&config.log_dir).map_err(|source| LaunchError::LogDir {
            path: config.log_dir.clone(),
            source,
        })?;
        let ranks = (0..config.ranks).map(|local_rank| config.global_rank(local_rank));
        let logs = ranks
            .map(|rank| open_log(&config, rank))
            .collect::<Result<Vec<_>, _>>()?;
        let (store, _hosted) = open_store(&config, host_store)?;

        let inherited = std::env::var(crate::variables::THREADS).ok();
        let job = Job {
            config: &config,
            store,
            threads: config.resolved_threads(inherited.as_deref()),
            dashboard: config.dashboard && config.node_rank == 0 && can_show_dashboard(),
        };
        let terminal = job.dashboard.then(SavedTerminal::of_stdin).flatten();
        let memory_kills = memory_kills();

        let (events, inbox) = mpsc::channel();
        let signals = forward_signals(events.clone()).map_err(|source| LaunchError::System {
            operation: "listen for signals",
            source,
        })?;
        let (alive, output_ended) = mpsc::channel();
        let mut supervisor = Supervisor::new(&config, inbox);
        let supervised = supervisor
            .start(&job, logs, &alive, &events)
            .and_then(|()| supervisor.wait_for_all());
        if supervised.is_err() {
            supervisor.kill_all();
            // The first error is the one to tell.
            let _ = supervisor.wait_for_all();
        }
        drop(alive);
        // Disconnected, which is what is waited for, once the last pump has dropped its end.
        let _ = output_ended.recv_timeout(OUTPUT_PATIENCE);
        signals.close();
        if let Some(terminal) = terminal {
            let killed = |rank: &EndedRank| matches!(rank.exit, RankExit::Signal(_));
            terminal.restore(
                supervisor
                    .ended
                    .iter()
                    .any(|rank| rank.rank == 0 && killed(rank)),
            );
        }
        supervised?;
        Ok(supervisor.outcome(memory_kills))
    }
}

/// Binds and hosts the store where it belongs on this machine; returns the address for ranks.
fn open_store(
    config: &LaunchConfig,
    host_store: HostStore,
) -> Result<((String, u16), Option<HostedStore>), LaunchError> {
    let given = config.rendezvous_parts()?;
    if let Some(address) = &given
        && config.node_rank > 0
    {
        return Ok((address.clone(), None));
    }
    let (host, port) = given.unwrap_or_else(|| ("127.0.0.1".into(), 0));
    let address = format!("{host}:{port}");
    let in_words = |source: io::Error| match source.kind() {
        io::ErrorKind::AddrInUse => LaunchError::PortInUse {
            address: address.clone(),
            port,
        },
        _ => LaunchError::Bind {
            address: address.clone(),
            source,
        },
    };
    let listener = TcpListener::bind((host.as_str(), port)).map_err(in_words)?;
    let port = listener.local_addr().map_err(in_words)?.port();
    let store =
        host_store(listener, config.job_token.as_deref()).map_err(|reason| LaunchError::Store {
            address: format!("{host}:{port}"),
            reason,
        })?;
    Ok(((host, port), Some(store)))
}

/// What the launcher waits for.
enum Event {
    /// The rank at this position has ended.
    Ended(usize),
    /// A signal has reached the launcher.
    Signal(i32),
}

fn forward_signals(events: Sender<Event>) -> io::Result<Handle> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let handle = signals.handle();
    let forward = move || {
        for signal in signals.forever() {
            if events.send(Event::Signal(signal)).is_err() {
                return;
            }
        }
    };
    thread::Builder::new()
        .name("signals".into())
        .spawn(forward)?;
    Ok(handle)
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

struct Supervisor<'a> {
    config: &'a LaunchConfig,
    /// By local rank; `None` once reaped.
    running: Vec<Option<RunningRank>>,
    /// In the order in which they ended.
    ended: Vec<EndedRank>,
    inbox: Receiver<Event>,
    plan: Plan,
    interrupted_by: Option<i32>,
}

impl<'a> Supervisor<'a> {
    fn new(config: &'a LaunchConfig, inbox: Receiver<Event>) -> Self {
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

    fn start(
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

    fn wait_for_all(&mut self) -> Result<(), LaunchError> {
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

    fn kill_all(&mut self) {
        self.signal_all(Signal::KILL);
        self.plan = Plan::Killing(Instant::now() + KILL_PATIENCE);
    }

    fn signal_all(&mut self, signal: Signal) {
        for rank in self.running.iter_mut().flatten() {
            rank.signal(signal);
        }
    }

    fn outcome(mut self, memory_kills_before: u64) -> Outcome {
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
fn memory_kills() -> u64 {
    let vmstat = std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let count = vmstat
        .lines()
        .find_map(|line| line.strip_prefix("oom_kill "));
    count
        .and_then(|count| count.trim().parse().ok())
        .unwrap_or(0)
}
