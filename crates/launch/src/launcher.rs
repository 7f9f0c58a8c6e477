//! Starts the ranks and stays with them until the last has ended.

use std::any::Any;
use std::io::{self, IsTerminal};
use std::net::TcpListener;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use everburn_collectives::rendezvous::{give_up_joining, stop_joining};
use everburn_collectives::store::{
    StoreAccess, StoreOptions, TcpStoreServer, raise_descriptor_limit,
};

use crate::config::LaunchConfig;
use crate::early_stop::{ASKED_BY, EarlyStop, on_signals};
use crate::environment::variables;
use crate::error::LaunchError;
use crate::event::{LaunchEvent, Tell};
use crate::job_store::JobStore;
use crate::outcome::Outcome;
use crate::rank_log::open_log;
use crate::ranks::Job;
use crate::supervisor::{Event, Supervisor};
use crate::terminal::{SavedTerminal, can_show_dashboard};

/// How long output may still arrive after the last rank's end (a helper may hold the pipe open).
const OUTPUT_PATIENCE: Duration = Duration::from_secs(1);

/// How long other machines may take to end, once they have been notified that the job was stopped: those of which ranks have not
/// joined do nothing but wait for that.
const TOLD_PATIENCE: Duration = Duration::from_secs(5);

/// How long ranks of other machines may use the store after a failure: each looks there who is to blame, which takes three
/// seconds at most.
const BLAME_PATIENCE: Duration = Duration::from_secs(4);

/// How long a launcher that ends by an error of its own tries to reach the store, and how long each request may take then.
const GIVE_UP_LIMITS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(3)];

/// A running store; it ends when this is dropped.
///
/// ```no_run
/// # mod everburn { pub use everburn_launch as launch; }
/// use everburn::launch::{HostedStore, LaunchConfig, Launcher};
///
/// let config = LaunchConfig::new(std::env::current_exe()?, 4, "runs/a/logs");
/// let launcher = Launcher::new(config).host_store_with(|listener, _access| {
///     // A server would take the listener, and end when it is dropped.
///     let store: HostedStore = Box::new(listener);
///     Ok(store)
/// });
/// # Ok::<(), std::io::Error>(())
/// ```
pub type HostedStore = Box<dyn Any + Send>;

type HostStore = Box<dyn FnOnce(TcpListener, StoreAccess) -> Result<HostedStore, String>>;

/// Starts one process per rank and stays with them until the last has ended.
///
/// ```no_run
/// # mod everburn { pub use everburn_launch as launch; }
/// use everburn::launch::{LaunchConfig, Launcher};
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
#[doc(alias = "torchrun")]
pub struct Launcher {
    config: LaunchConfig,
    host_store: HostStore,
    tell: Tell,
    early: Option<EarlyStop>,
}

impl Launcher {
    /// A launcher that hosts our own store on machine 0, unless [`LaunchConfig::store`] has another. Nothing happens before [`Launcher::run`].
    #[must_use]
    pub fn new(config: LaunchConfig) -> Self {
        Self {
            config,
            host_store: Box::new(host_our_store),
            tell: Box::new(|_| {}),
            early: None,
        }
    }

    /// Refuses what can never work, before anything is started: what contradicts itself in
    /// `config`, several machines without a secret, and a rendezvous address that cannot be bound now.
    ///
    /// # Errors
    /// [`LaunchError`] that says what to change.
    pub fn check(config: &LaunchConfig) -> Result<(), LaunchError> {
        config.validate()?;
        let (host, port) = rendezvous_or_loopback(config)?;
        if config.node_rank == 0 && config.store.is_none() {
            drop(bind(&host, port)?);
        }
        config.secret_of_this_job().map(drop)
    }

    /// Says at the job's store that the launcher of this machine ends before it has started its ranks, and why: ranks of other
    /// machines that wait for them fail at once, with that reason. Nothing happens where the job is elastic, and continues
    /// without this machine, where ranks of it wait there, or where the store cannot be reached within a second.
    ///
    /// For programs that prepare a job before they call [`run`](Self::run), and fail.
    pub fn give_up(config: &LaunchConfig, reason: &str) {
        // Machine 0 would host the store; what listens there is that of another job.
        if config.node_rank == 0 {
            return;
        }
        let (Ok(Some((host, port))), Ok(token)) =
            (config.rendezvous_parts(), config.secret_of_this_job())
        else {
            return;
        };
        let store = JobStore::Hosted(host, port);
        give_up_at(&store, config, config.store_access(&token), reason);
    }

    /// Hosts another store instead: `host` gets the bound listener and who may use the store, and
    /// returns what keeps it alive, or why it cannot run.
    #[must_use]
    pub fn host_store_with(
        mut self,
        host: impl FnOnce(TcpListener, StoreAccess) -> Result<HostedStore, String> + 'static,
    ) -> Self {
        self.host_store = Box::new(host);
        self
    }

    /// Has `tell` called as soon as something happens to a rank. It must not wait for anything: it is called where
    /// ranks are watched.
    #[must_use]
    pub fn tell_with(mut self, tell: impl Fn(&LaunchEvent) + 'static) -> Self {
        self.tell = Box::new(tell);
        self
    }

    /// Takes the place of what has listened for signals so far, as soon as it listens itself.
    #[must_use]
    pub fn after(mut self, early: EarlyStop) -> Self {
        self.early = Some(early);
        self
    }

    /// Starts the ranks, waits until all have ended, and says how. It has no deadline while ranks
    /// run and nothing fails; after that, every wait has one.
    ///
    /// It listens for signals before it does anything else. One that comes while ranks are started lets no further one
    /// begin.
    ///
    /// Call it once, from a thread that lives as long as the process (`main`'s): its end would
    /// count as the launcher's. SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2 and SIGQUIT are taken over and stay without effect
    /// after the return, so the process should end soon.
    ///
    /// # Errors
    /// [`LaunchError`] when nothing was started, or all that was has been ended again. That ranks
    /// fail is an [`Outcome`].
    pub fn run(self) -> Result<Outcome, LaunchError> {
        let Self {
            config,
            host_store,
            tell,
            early,
        } = self;
        let (events, inbox) = mpsc::channel();
        let forward = events.clone();
        let forward = move |signal| match forward.send(Event::Signal(signal)) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        };
        let signals = on_signals("signals", &ASKED_BY, forward);
        let signals = signals.map_err(|source| LaunchError::System {
            operation: "listen for signals",
            source,
        })?;
        drop(early);
        config.validate()?;
        rendezvous_or_loopback(&config)?;
        let token = config.secret_of_this_job()?;
        std::fs::create_dir_all(&config.log_dir).map_err(|source| LaunchError::LogDir {
            path: config.log_dir.clone(),
            source,
        })?;
        let ranks = (0..config.ranks).map(|local_rank| config.global_rank(local_rank));
        let logs = ranks
            .map(|rank| open_log(&config, rank))
            .collect::<Result<Vec<_>, _>>()?;
        let (store, hosted) = open_store(&config, config.store_access(&token), host_store)?;

        if let Some(warning) = config.single_point() {
            tracing::info!("{warning}");
        }
        let inherited = std::env::var(variables::THREADS).ok();
        let job = Job {
            config: &config,
            store,
            token,
            threads: config.resolved_threads(inherited.as_deref()),
            dashboard: config.dashboard && config.node_rank == 0 && can_show_dashboard(),
            progress: io::stdout().is_terminal().then(Arc::default),
            errors: Arc::default(),
        };
        let terminal = job.dashboard.then(SavedTerminal::of_stdin).flatten();
        let memory_kills = everburn_record::proc::memory_kills().unwrap_or(0);

        // Each rank inherits it, and has connections to all others.
        if let Err(error) = raise_descriptor_limit() {
            tracing::debug!(%error, "the limit of open files stays as it is");
        }
        let (alive, output_ended) = mpsc::channel();
        let server = hosted.as_ref().and_then(our_store);
        let mut supervisor = Supervisor::new(&config, server, inbox, tell);
        let supervised = supervisor
            .start(&job, logs, alive, events)
            .and_then(|()| supervisor.wait_for_all());
        if let Err(error) = &supervised {
            supervisor.kill_all();
            // The first error is the one to show.
            let _ = supervisor.wait_for_all();
            let_others_fail(&job, server, &error.to_string());
        }
        // Disconnected, which is what is waited for, once the last pump has dropped its end.
        let _ = output_ended.recv_timeout(OUTPUT_PATIENCE);
        signals.close();
        if let Some(terminal) = terminal {
            terminal.restore(supervisor.rank_0_was_killed());
        }
        supervised?;
        let by_signal = supervisor.was_interrupted();
        let outcome = supervisor.outcome(memory_kills)?;
        let_others_end(&job, server, &outcome, by_signal);
        if let Some(server) = server {
            // `bench scale` reads it.
            tracing::debug!("the store has answered {} requests", server.requests());
        }
        Ok(outcome)
    }
}

fn host_our_store(listener: TcpListener, access: StoreAccess) -> Result<HostedStore, String> {
    let server = TcpStoreServer::from_listener(listener, StoreOptions::new(access));
    server
        .map(|server| Box::new(server) as HostedStore)
        .map_err(|error| error.to_string())
}

fn our_store(hosted: &HostedStore) -> Option<&TcpStoreServer> {
    hosted.downcast_ref()
}

/// Does what the ranks of other machines need for their end, where they have not ended with those of this one.
fn let_others_end(
    job: &Job<'_>,
    server: Option<&TcpStoreServer>,
    outcome: &Outcome,
    by_signal: bool,
) {
    let config = job.config;
    if let Outcome::Failed(failure) = outcome
        && !by_signal
    {
        let access = config.store_access(&job.token);
        give_up_at(&job.store, config, access, &failure.headline());
    }
    let (finish, failed) = match outcome {
        Outcome::Succeeded => (true, false),
        Outcome::Failed(failure) => (failure.unproved.is_some(), true),
        Outcome::Interrupted { .. } => (!by_signal, false),
    };
    match server {
        Some(server) if finish => let_other_machines_finish(config, server, config.stop_patience),
        Some(server) if by_signal && tells_of_a_stop(job) => {
            let_other_machines_finish(config, server, TOLD_PATIENCE);
        }
        Some(server) if failed && config.nodes > 1 => {
            // Ranks that hang do not keep it.
            let _ = server.wait_until_unused(BLAME_PATIENCE);
        }
        // Machine 0 hosts it, and may wait for ranks of this one.
        None if by_signal && job.store.is_hosted() && !job.store.has_ended() => {
            tells_of_a_stop(job);
        }
        _ => {}
    }
}

/// Has ranks of other machines that wait for those of this one fail: its launcher ends for `reason`.
fn let_others_fail(job: &Job<'_>, server: Option<&TcpStoreServer>, reason: &str) {
    let config = job.config;
    give_up_at(&job.store, config, config.store_access(&job.token), reason);
    if let Some(server) = server.filter(|_| config.nodes > 1 && config.elastic.is_none()) {
        // Ranks that hang do not keep it.
        let _ = server.wait_until_unused(BLAME_PATIENCE);
    }
}

/// Says at `store` that this machine has given up, and why, to the ranks of a job of several machines that still join.
fn give_up_at(store: &JobStore, config: &LaunchConfig, access: StoreAccess, reason: &str) {
    let has_readers = config.nodes > 1 && config.elastic.is_none() && store.is_hosted();
    if !has_readers || store.has_ended() {
        return;
    }
    let [limit, timeout] = GIVE_UP_LIMITS;
    let options = StoreOptions {
        timeout,
        ..StoreOptions::new(access)
    };
    let store = store.reach(options, limit);
    let said = store.and_then(|store| give_up_joining(&*store.shared, config.node_rank, reason));
    if let Err(error) = said {
        tracing::debug!("other machines do not learn why this one ends: {error}");
    }
}

/// Ranks of other machines may still need the store for a moment after ours have ended.
fn let_other_machines_finish(config: &LaunchConfig, server: &TcpStoreServer, patience: Duration) {
    if config.nodes > 1 && !server.wait_until_unused(patience) {
        let others = server.connections();
        tracing::warn!("the store ends though other machines still hold {others} connections");
    }
}

/// Tells the ranks of other machines that still wait for the rest that the job was stopped; whether they may have to read
/// it. Launchers of an elastic job read it too, and were notified before.
fn tells_of_a_stop(job: &Job<'_>) -> bool {
    let config = job.config;
    if config.nodes == 1 || config.elastic.is_some() {
        return config.nodes > 1;
    }
    let store = job.reach_store(TOLD_PATIENCE);
    let told = store.and_then(|store| stop_joining(&*store.shared));
    told.unwrap_or_else(|error| {
        tracing::debug!("other machines do not learn of the stop: {error}");
        false
    })
}

/// Binds and hosts the store where it belongs on this machine; returns where it is.
fn open_store(
    config: &LaunchConfig,
    access: StoreAccess,
    host_store: HostStore,
) -> Result<(JobStore, Option<HostedStore>), LaunchError> {
    if let Some(address) = &config.store {
        return Ok((JobStore::Etcd(address.clone()), None));
    }
    let (host, port) = rendezvous_or_loopback(config)?;
    if config.node_rank > 0 {
        return Ok((JobStore::Hosted(host, port), None));
    }
    let listener = bind(&host, port)?;
    let bound = listener.local_addr().map_err(|source| LaunchError::Bind {
        address: format!("{host}:{port}"),
        source,
    })?;
    let port = bound.port();
    let store = host_store(listener, access).map_err(|reason| LaunchError::Store {
        address: format!("{host}:{port}"),
        reason,
    })?;
    Ok((JobStore::Hosted(host, port), Some(store)))
}

/// Without a rendezvous there is one machine, on which any free port will do.
fn rendezvous_or_loopback(config: &LaunchConfig) -> Result<(String, u16), LaunchError> {
    let given = config.rendezvous_parts()?;
    Ok(given.unwrap_or_else(|| ("127.0.0.1".into(), 0)))
}

fn bind(host: &str, port: u16) -> Result<TcpListener, LaunchError> {
    TcpListener::bind((host, port)).map_err(|source| {
        let address = format!("{host}:{port}");
        match source.kind() {
            io::ErrorKind::AddrInUse => LaunchError::PortInUse { address, port },
            _ => LaunchError::Bind { address, source },
        }
    })
}
