//! Children of a coordinator that are no ranks of a [`Launcher`](crate::Launcher): each with a deadline, none left
//! after. [`Children`] runs programs to their end; a [`WorkerPool`] takes orders while it lives.

mod heard;
mod running;
mod worker_pool;

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use self::heard::Growing;
pub use self::heard::Said;
use self::running::Running;
pub(crate) use self::running::ends_within;
pub use self::worker_pool::WorkerPool;
use crate::early_stop::signals_to_hear;
use crate::output::last_lines_of;

/// How much of a failed child's output is shown.
const LINES_SHOWN: usize = 12;

/// Variables that would make a child a rank of something else, or set its number of threads.
const NOT_HANDED_ON: [&str; 10] = [
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "EVERBURN_STORE",
    "RAYON_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "EVERBURN_JOB_TOKEN",
];

/// Why a child has not done its work.
///
/// ```
/// # mod everburn { pub use everburn_launch as launch; }
/// use everburn::launch::ChildError;
///
/// let error = ChildError::new("the disk is full");
/// assert_eq!(error, ChildError::Failed("the disk is full".to_owned()));
/// assert!(!matches!(error, ChildError::TooLong { .. }));
/// ```
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChildError {
    /// A signal asked for the end.
    #[error("interrupted")]
    Interrupted,

    /// Its deadline passed, and it was ended.
    #[error("{name} was ended: it took longer than {} s", timeout.as_secs_f64())]
    TooLong {
        /// What was run.
        name: String,
        /// How long it might take.
        timeout: Duration,
    },

    /// A worker of a pool had not answered at the deadline; all of the pool was ended.
    #[error(
        "{name} was ended: rank {rank} has not answered within {} s; its last words:\n{last_words}",
        timeout.as_secs_f64()
    )]
    Silent {
        /// The pool.
        name: String,
        /// The first worker that had not answered.
        rank: usize,
        /// How long it might take.
        timeout: Duration,
        /// The end of its standard error.
        last_words: String,
    },

    /// It could not be started or waited for, or it failed: who, and its last words.
    #[error("{0}")]
    Failed(String),
}

impl ChildError {
    /// A failure in words.
    #[must_use]
    pub fn new(what: impl Into<String>) -> Self {
        Self::Failed(what.into())
    }
}

/// Starts programs and ends them when the user asks for it.
///
/// ```
/// # mod everburn { pub use everburn_launch as launch; }
/// use std::process::Command;
/// use std::time::Duration;
/// use everburn::launch::Children;
///
/// let children = Children::listen()?;
/// let folder = tempfile::tempdir()?;
/// let mut greeting = Command::new("echo");
/// let told = children.run("a greeting", greeting.arg("hello"), folder.path(), Duration::from_secs(60))?;
/// assert_eq!(told, "hello\n");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Children {
    interrupted: Arc<AtomicBool>,
}

impl Children {
    /// Children that no signal interrupts, for tests.
    #[cfg(test)]
    fn unheard() -> Self {
        Self {
            interrupted: Arc::default(),
        }
    }

    /// From now on SIGINT, SIGTERM and SIGHUP end the running child first, then its coordinator, by
    /// [`ChildError::Interrupted`].
    ///
    /// # Errors
    /// [`ChildError::Failed`] if a signal cannot be listened for.
    pub fn listen() -> Result<Self, ChildError> {
        let interrupted = Arc::new(AtomicBool::new(false));
        for signal in signals_to_hear(&[SIGINT, SIGTERM, SIGHUP]) {
            signal_hook::flag::register(signal, Arc::clone(&interrupted))
                .map_err(|error| ChildError::new(format!("cannot listen for signals: {error}")))?;
        }
        Ok(Self { interrupted })
    }

    /// Whether a signal has come, also while no child ran.
    ///
    /// # Errors
    /// [`ChildError::Interrupted`] if one has.
    pub fn check_interrupted(&self) -> Result<(), ChildError> {
        match self.interrupted.load(Ordering::Relaxed) {
            true => Err(ChildError::Interrupted),
            false => Ok(()),
        }
    }

    /// Runs `command` to its end and returns its standard output. Both outputs go to files in
    /// `folder`, so that no pipe can fill up.
    ///
    /// # Errors
    /// [`ChildError`] if it cannot be started, fails, takes longer than `deadline`, or a signal comes.
    pub fn run(
        &self,
        name: &str,
        command: &mut Command,
        folder: &Path,
        deadline: Duration,
    ) -> Result<String, ChildError> {
        let ended = self.run_to_any_end(name, command, folder, deadline)?;
        if ended.status.success() {
            return Ok(ended.stdout);
        }
        Err(ChildError::new(format!(
            "{name} has failed ({}); its last words:\n{}",
            ended.status,
            ended.last_words()
        )))
    }

    /// The same for a command that may fail.
    ///
    /// # Errors
    /// [`ChildError`] if it cannot be started, takes longer than `deadline`, or a signal comes.
    pub fn run_to_any_end(
        &self,
        name: &str,
        command: &mut Command,
        folder: &Path,
        deadline: Duration,
    ) -> Result<EndedChild, ChildError> {
        self.check_interrupted()?;
        forget_ranks(command);
        self.start(name, command, folder)?.wait(deadline)
    }

    /// Starts `command` as the head of a process group of its own: a Ctrl-C of the terminal does not reach it. Both outputs
    /// go to files in `folder`. [`forget_ranks`] before it is given what it is.
    ///
    /// # Errors
    /// [`ChildError`] if it cannot be started.
    pub fn start(
        &self,
        name: &str,
        command: &mut Command,
        folder: &Path,
    ) -> Result<StartedChild, ChildError> {
        let create = |path: &Path| {
            File::create(path).map_err(|error| {
                ChildError::new(format!("cannot write {}: {error}", folder.display()))
            })
        };
        let (stdout_path, stderr_path) = (folder.join("stdout"), folder.join("stderr"));
        command
            .stdin(Stdio::null())
            .stdout(create(&stdout_path)?)
            .stderr(create(&stderr_path)?)
            .process_group(0);
        let child = command
            .spawn()
            .map_err(|error| ChildError::new(format!("{name} cannot be started: {error}")))?;
        Ok(StartedChild {
            name: name.to_owned(),
            running: Running::new(child),
            interrupted: Arc::clone(&self.interrupted),
            stdout_path,
            stderr_path,
        })
    }
}

/// A child that was started. No process of its group outlives this value.
///
/// ```
/// # mod everburn { pub use everburn_launch as launch; }
/// use std::process::Command;
/// use std::time::Duration;
/// use everburn::launch::Children;
///
/// let folder = tempfile::tempdir()?;
/// let children = Children::listen()?;
/// let sleeper = children.start("a sleeper", Command::new("sleep").arg("60"), folder.path())?;
/// assert!(!sleeper.has_ended());
/// sleeper.kill();
/// assert!(!sleeper.wait(Duration::from_secs(30))?.status.success());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct StartedChild {
    name: String,
    running: Running,
    interrupted: Arc<AtomicBool>,
    stdout_path: PathBuf,
    stderr_path: PathBuf,
}

impl StartedChild {
    /// The id of its process.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.running.child.id()
    }

    /// Whether it has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.running.has_ended()
    }

    /// Asks it to stop, as Ctrl-C would.
    pub fn interrupt(&self) {
        self.running.signal_head(Signal::INT);
    }

    /// Ends it at once, without the rest of its group: what a machine does that runs out of memory.
    pub fn kill(&self) {
        self.running.signal_head(Signal::KILL);
    }

    /// Waits for its end, then ends what is left of its group.
    ///
    /// # Errors
    /// [`ChildError`] if it takes longer than `deadline`, or a signal comes.
    pub fn wait(self, deadline: Duration) -> Result<EndedChild, ChildError> {
        self.wait_looking(deadline, || {})
    }

    /// The same; `hear` is given each line soon after it was said, also where the child takes too long.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn wait_hearing(
        self,
        deadline: Duration,
        mut hear: impl FnMut(Said<'_>),
    ) -> Result<EndedChild, ChildError> {
        let mut output = Growing::open(&self.stdout_path);
        let mut complaints = Growing::open(&self.stderr_path);
        let mut listen = |end| {
            output.hear(end, |line| hear(Said::Output(line)));
            complaints.hear(end, |line| hear(Said::Error(line)));
        };
        let ended = self.wait_looking(deadline, || listen(false));
        listen(true);
        ended
    }

    fn wait_looking(
        self,
        deadline: Duration,
        look: impl FnMut(),
    ) -> Result<EndedChild, ChildError> {
        let interrupted = self.interrupted;
        let status = (self.running).wait(&self.name, deadline, &interrupted, look)?;
        if !status.success() && interrupted.load(Ordering::Relaxed) {
            // Its own Ctrl-C may have ended the child before we looked.
            return Err(ChildError::Interrupted);
        }
        Ok(EndedChild {
            status,
            stdout: text_of(&self.stdout_path),
            stderr: text_of(&self.stderr_path),
        })
    }
}

/// How a child ended, and what it said.
///
/// ```
/// # mod everburn { pub use everburn_launch as launch; }
/// use everburn::launch::EndedChild;
///
/// /// The first line that a child has written, if it has succeeded.
/// fn first_line(ended: &EndedChild) -> Option<&str> {
///     ended.status.success().then(|| ended.stdout.lines().next())?
/// }
/// ```
#[derive(Debug)]
pub struct EndedChild {
    /// Success, a code or a signal.
    pub status: ExitStatus,
    /// All of its standard output.
    pub stdout: String,
    /// All of its standard error.
    pub stderr: String,
}

impl EndedChild {
    /// The last lines that it said: of its standard output, if it wrote few to its standard error.
    #[must_use]
    pub fn last_words(&self) -> String {
        last_lines(&[self.stdout.as_str(), self.stderr.as_str()].join("\n"))
    }
}

/// Removes from `command` the variables of a rank of another job. Call it before the command is given
/// what it is.
pub fn forget_ranks(command: &mut Command) {
    for variable in NOT_HANDED_ON {
        command.env_remove(variable);
    }
}

fn text_of(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}

/// The last lines of `text` that say anything.
fn last_lines(text: &str) -> String {
    last_lines_of(text, LINES_SHOWN).join("\n")
}

#[cfg(test)]
mod tests;
