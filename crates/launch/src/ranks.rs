//! The processes of this machine's ranks: start, signal, reap.

use std::env::var_os;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread;
use std::time::Duration;

use everburn_auth::JobToken;
use everburn_collectives::store::{StoreError, StoreOptions};
use everburn_record::unix_time_ms;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid,
};

use crate::children::ends_within;
use crate::config::LaunchConfig;
use crate::environment::variables as v;
use crate::error::LaunchError;
use crate::exit::RankExit;
use crate::failure::RankReport;
use crate::job_store::{JobStore, ReachedStore};
use crate::outcome::EndedRank;
use crate::output::{ProgressLine, Screen, ShownErrors, pump};
use crate::rank_log::{add_to_log, last_line};

/// What every rank of the job is given.
pub(crate) struct Job<'a> {
    pub(crate) config: &'a LaunchConfig,
    pub(crate) store: JobStore,
    /// Also where the store is open: the ranks' own connections need it.
    pub(crate) token: JobToken,
    pub(crate) threads: usize,
    /// Whether rank 0 draws on the terminal; then nobody else may.
    pub(crate) dashboard: bool,
    /// The terminal that shows lines of progress in place, if standard output is one.
    pub(crate) progress: Option<Arc<ProgressLine>>,
    /// The errors that ranks have printed.
    pub(crate) errors: Arc<ShownErrors>,
}

impl Job<'_> {
    /// Reaches the store of the job as its ranks do; each request may take `timeout`.
    pub(crate) fn reach_store(&self, timeout: Duration) -> Result<ReachedStore, StoreError> {
        let access = self.config.store_access(&self.token);
        let options = StoreOptions {
            timeout,
            ..StoreOptions::new(access)
        };
        self.store.reach(options, timeout)
    }
}

/// mallopt(3): glibc hands freed memory back to the system where more than this many bytes are free, and
/// takes blocks larger than this directly from it. Each step of a training frees what the
/// next one needs: the page faults would be a tenth of it. The second is the largest that glibc takes.
const ALLOCATOR: [(&str, &str); 2] = [
    ("MALLOC_TRIM_THRESHOLD_", "17179869184"),
    ("MALLOC_MMAP_THRESHOLD_", "33554432"),
];

/// How long a process may take to vanish after SIGKILL.
pub(crate) const KILL_PATIENCE: Duration = Duration::from_secs(1);

/// Has the process of `command` keep what it frees for its next step, unless the user has said otherwise.
pub fn keep_freed_memory(command: &mut Command) {
    let unsaid = |(name, _): &(&str, &str)| var_os(name).is_none();
    command.envs(ALLOCATOR.into_iter().filter(unsaid));
}

/// A rank's process, not yet reaped: its process id is its own until then.
pub(crate) struct RunningRank {
    pub(crate) rank: usize,
    child: Child,
    pid: Pid,
    /// Whether it leads a process group of its own, which is then signalled as a whole.
    leads_group: bool,
    signalled: bool,
}

/// Something that keeps a channel open for as long as output is still being copied.
pub(crate) type PumpAlive = Sender<std::convert::Infallible>;

impl RunningRank {
    /// Starts the rank, in an elastic job its process `incarnation`. Must be called from a thread that lives as
    /// long as the launcher: the kernel takes the end of that thread for the end of the parent.
    pub(crate) fn start(
        job: &Job,
        local_rank: usize,
        incarnation: Option<u64>,
        log: File,
        alive: &PumpAlive,
    ) -> Result<Self, LaunchError> {
        let rank = job.config.global_rank(local_rank);
        Self::try_start(job, local_rank, incarnation, log, alive)
            .map_err(|source| LaunchError::Spawn { rank, source })
    }

    fn try_start(
        job: &Job,
        local_rank: usize,
        incarnation: Option<u64>,
        log: File,
        alive: &PumpAlive,
    ) -> io::Result<Self> {
        let config = job.config;
        let rank = config.global_rank(local_rank);
        let owns_terminal = job.dashboard && rank == 0;
        let mut command = Command::new(&config.program);
        keep_freed_memory(&mut command);
        command
            .args(&config.args)
            .env(v::RANK, rank.to_string())
            .env(v::WORLD_SIZE, config.world_size().to_string())
            .env(v::LOCAL_RANK, local_rank.to_string())
            .env(v::LOCAL_WORLD_SIZE, config.ranks.to_string())
            .env(v::NODE_RANK, config.node_rank.to_string())
            .env(v::AGENT_STORE, "True")
            .env(v::LAUNCHER_PID, std::process::id().to_string())
            .env(v::ERROR_FILE, std::path::absolute(config.error_path(rank))?)
            .env(
                v::FINISHED_FILE,
                std::path::absolute(config.finished_path(rank))?,
            )
            .env(v::THREADS, job.threads.to_string())
            .envs(incarnation.map(|number| (v::INCARNATION, number.to_string())))
            .envs(config.elastic.as_ref().map(|elastic| {
                let bounds = format!("{}:{}", elastic.min, elastic.max);
                (v::ELASTIC, bounds)
            }))
            .env(v::JOB_TOKEN, job.token.reveal())
            .envs(job.progress.as_ref().map(|_| (v::PROGRESS, "1")));
        job.store.tell(&mut command);
        command.envs(config.env.iter().map(|(name, value)| (name, value)));
        match config.open_store {
            true => command.env(v::OPEN_STORE, "1"),
            // The launcher's own says nothing about this job.
            false => command.env_remove(v::OPEN_STORE),
        };
        let pumps = if owns_terminal {
            // It stays in the terminal's foreground group, or its first read would stop it.
            command.stderr(log);
            None
        } else {
            // A group of its own: the terminal's Ctrl-C must reach ranks only through us.
            command.stdin(Stdio::null()).process_group(0);
            if job.dashboard {
                command.stdout(log.try_clone()?).stderr(log);
                None
            } else {
                command.stdout(Stdio::piped()).stderr(Stdio::piped());
                Some(log)
            }
        };
        let child = command.spawn()?;
        let pid = Pid::from_child(&child);
        let mut this = Self {
            rank,
            child,
            pid,
            leads_group: !owns_terminal,
            signalled: false,
        };
        if let Some(log) = pumps
            && let Err(error) = this.start_pumps(job, log, alive)
        {
            this.signal(Signal::KILL);
            // Why it has no pumps is the error to show.
            let _ = this.reap_within(KILL_PATIENCE, config);
            return Err(error);
        }
        Ok(this)
    }

    /// Copies both streams in threads of their own, so that errors stay on standard error.
    fn start_pumps(&mut self, job: &Job<'_>, log: File, alive: &PumpAlive) -> io::Result<()> {
        job.errors.begin(self.rank);
        let log = Arc::new(log);
        let alone = job.config.world_size() == 1;
        let prefix = if alone {
            String::new()
        } else {
            format!("[rank {}] ", self.rank)
        };
        let screen = |output: Box<dyn Write + Send>| Screen::new(output, job.progress.clone());
        let start = |from: Box<dyn io::Read + Send>, screen: Screen<Box<dyn Write + Send>>| {
            let (log, prefix, alive) = (Arc::clone(&log), prefix.clone(), alive.clone());
            let copy = move || {
                pump(from, &log, &prefix, screen);
                drop(alive);
            };
            let name = format!("output-{}", self.rank);
            thread::Builder::new().name(name).spawn(copy).map(drop)
        };
        if let Some(from) = self.child.stdout.take() {
            start(Box::new(from), screen(Box::new(io::stdout())))?;
        }
        if let Some(from) = self.child.stderr.take() {
            let errors = Arc::clone(&job.errors);
            let screen = screen(Box::new(io::stderr()));
            start(
                Box::new(from),
                screen.without_repeated_errors(self.rank, errors),
            )?;
        }
        Ok(())
    }

    pub(crate) fn process_id(&self) -> u32 {
        self.child.id()
    }

    /// Calls `on_end` from a thread of its own once the process has ended, and does not reap it.
    pub(crate) fn watch(&self, on_end: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let pid = self.pid;
        let wait = move || {
            // Left unreaped, its process id cannot be given to a stranger whom we would signal.
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            while matches!(
                waitid(WaitId::Pid(pid), options),
                Err(rustix::io::Errno::INTR)
            ) {}
            on_end();
        };
        thread::Builder::new()
            .name(format!("wait-{}", self.rank))
            .spawn(wait)
            .map(drop)
    }

    /// Sends `signal` to the rank and its helpers. One that has ended meanwhile is no error.
    pub(crate) fn signal(&mut self, signal: Signal) {
        self.signalled = true;
        let sent = if self.leads_group {
            kill_process_group(self.pid, signal)
        } else {
            kill_process(self.pid, signal)
        };
        if let Err(error) = sent {
            tracing::debug!("rank {} was not signalled: {error}", self.rank);
        }
        // A stopped process obeys no request before it continues.
        if signal == Signal::TERM {
            self.signal(Signal::CONT);
        }
    }

    /// Reaps the process, which has ended or is ending; what it leaves in its group is
    /// killed.
    pub(crate) fn reap(mut self, config: &LaunchConfig) -> io::Result<EndedRank> {
        let unix_time_ms = unix_time_ms();
        if self.leads_group {
            let _ = kill_process_group(self.pid, Signal::KILL);
        }
        let exit = RankExit::from_status(self.child.wait()?);
        let ended = EndedRank {
            unix_time_ms,
            ..self.ended_as(exit, config)
        };
        if let Some(line) = last_line(&ended)
            && let Err(error) = add_to_log(config, self.rank, &line)
        {
            tracing::warn!("the log of rank {} lacks its last line: {error}", self.rank);
        }
        Ok(ended)
    }

    /// Reaps the process if it ends within `patience`, and gives it up otherwise.
    pub(crate) fn reap_within(
        self,
        patience: Duration,
        config: &LaunchConfig,
    ) -> io::Result<EndedRank> {
        match ends_within(self.pid, patience) {
            true => self.reap(config),
            false => Ok(self.give_up(config)),
        }
    }

    /// A process that even SIGKILL does not end soon (it hangs inside the kernel).
    pub(crate) fn give_up(self, config: &LaunchConfig) -> EndedRank {
        tracing::error!(
            "rank {} (process {}) hangs inside the kernel and will end when that lets it go",
            self.rank,
            self.pid.as_raw_nonzero()
        );
        self.ended_as(RankExit::Signal(signal_hook::consts::SIGKILL), config)
    }

    /// What the process has said that bears on its end, should it have said two things.
    fn report(&self, exit: RankExit, config: &LaunchConfig) -> Option<RankReport> {
        let read =
            |path: PathBuf| RankReport::read(&path).filter(|report| report.rank == self.rank);
        let finished = read(config.finished_path(self.rank)).filter(|it| !it.kind.is_failure());
        let failure = read(config.error_path(self.rank)).filter(|it| it.kind.is_failure());
        match exit.is_success() {
            // It may have survived a panic.
            true => finished.or(failure),
            false => failure.or(finished),
        }
    }

    fn ended_as(&self, exit: RankExit, config: &LaunchConfig) -> EndedRank {
        use signal_hook::consts::{SIGKILL, SIGTERM};
        let dies_when_asked = matches!(exit, RankExit::Signal(SIGKILL | SIGTERM))
            || exit == RankExit::Code(128 + SIGTERM);
        EndedRank {
            rank: self.rank,
            exit,
            ended_by_launcher: self.signalled && dies_when_asked,
            unix_time_ms: unix_time_ms(),
            report: self.report(exit, config),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn running() -> RunningRank {
        let mut command = Command::new("sleep");
        let child = command.arg("600").process_group(0).spawn().unwrap();
        RunningRank {
            rank: 1,
            pid: Pid::from_child(&child),
            child,
            leads_group: true,
            signalled: false,
        }
    }

    #[test]
    fn a_process_that_does_not_end_is_given_up_and_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let config = LaunchConfig::new("true", 2, folder.path());
        // No signal reaches it, as one that hangs inside the kernel.
        let hangs = running();
        let pid = hangs.pid;
        let ended = hangs.reap_within(Duration::ZERO, &config).unwrap();
        assert_eq!(ended.rank, 1);
        assert!(!ends_within(pid, Duration::ZERO), "it was only given up");
        kill_process_group(pid, Signal::KILL).unwrap();
        let generous = Duration::from_secs(60);
        assert!(ends_within(pid, generous));

        let mut killed = running();
        killed.signal(Signal::KILL);
        let ended = killed.reap_within(generous, &config).unwrap();
        let killed = RankExit::Signal(signal_hook::consts::SIGKILL);
        assert_eq!((ended.exit, ended.ended_by_launcher), (killed, true));
    }
}
