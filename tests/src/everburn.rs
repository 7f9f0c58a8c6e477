//! The `everburn` binary and a command line of it.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::job::{Ended, Job};
use crate::processes::{MARK, new_mark};

/// The secret of jobs that need one.
pub const TOKEN: &str = "a token of the tests";

/// Flags for a run that takes a moment: 500 synthetic digits to learn from.
pub const SMALL: &str =
    "--data synthetic --train-samples 600 --validation-samples 100 --test-samples 200";

/// The recipe of a training without a preset, in place of a model's own: what a test measures does not change with that.
pub const NO_PRESET: &str =
    "--batch-size 64 --learning-rate 0.001 --lr-schedule constant --warmup-steps 0";

/// Commands whose process begins anew for its allocator, unless its environment has these variables. That is tested by
/// `crates/everburn/tests/command.rs`, and would be a second start of most processes here.
const BEGIN_ANEW: [&str; 6] = ["train", "bottleneck", "eval", "predict", "generate", "chat"];

/// The variables that such a process sets.
const ALLOCATOR: [(&str, &str); 2] = [
    ("MALLOC_TRIM_THRESHOLD_", "17179869184"),
    ("MALLOC_MMAP_THRESHOLD_", "33554432"),
];

/// The binary: `$EVERBURN_BIN`, else `everburn` where cargo has put this workspace's binaries.
///
/// # Panics
/// Where there is none, with what to do.
pub fn binary() -> PathBuf {
    match std::env::var_os("EVERBURN_BIN") {
        Some(path) => path.into(),
        None => built("everburn"),
    }
}

/// The binary `name` where cargo has put this workspace's.
fn built(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own path");
    let profile = test.parent().and_then(Path::parent);
    let profile = profile.expect("cargo puts tests into <profile>/deps");
    let path = profile.join(name);
    assert!(
        path.is_file(),
        "there is no binary at {}: build it with `cargo build --release --workspace` and test in release",
        path.display()
    );
    path
}

/// Flags that add to what they were given before.
const REPEATED: [&str; 5] = ["--set", "--prompt", "--stop", "--init-skip", "--schedule"];

/// A command line of `everburn` that runs in a folder of the test's.
///
/// It inherits nothing of the environment but `PATH`: no data, no cache, no network, no ranks.
/// Its output goes to files, so it sees no terminal.
pub struct Everburn {
    command: Command,
    arguments: Vec<OsString>,
    mark: String,
    output: [PathBuf; 2],
    is_read: bool,
}

impl Everburn {
    /// `everburn <arguments>` in `folder`.
    pub fn new<I>(folder: &Path, arguments: I) -> Self
    where
        I: IntoIterator<Item: AsRef<OsStr>>,
    {
        Self::of_program(&binary(), folder, arguments)
    }

    /// `everburn <line>` in `folder`: words with a space between them.
    pub fn line(folder: &Path, line: impl AsRef<str>) -> Self {
        Self::new(folder, line.as_ref().split_whitespace())
    }

    /// `everburn-bench <arguments>` in `folder`.
    pub fn bench<I>(folder: &Path, arguments: I) -> Self
    where
        I: IntoIterator<Item: AsRef<OsStr>>,
    {
        Self::of_program(&built("everburn-bench"), folder, arguments)
    }

    fn of_program<I>(program: &Path, folder: &Path, arguments: I) -> Self
    where
        I: IntoIterator<Item: AsRef<OsStr>>,
    {
        let mark = new_mark();
        let mut command = Command::new(program);
        surround(&mut command, folder, &mark);
        let output = ["stdout", "stderr"].map(|name| folder.join(format!("{name}-{mark}")));
        let this = Self {
            command,
            arguments: Vec::new(),
            mark,
            output,
            is_read: true,
        };
        this.args(arguments)
    }

    /// `everburn train <model>` with the flags of [`SMALL`].
    pub fn train(folder: &Path, model: &str) -> Self {
        Self::new(folder, ["train", model]).words(SMALL)
    }

    /// `everburn train <model>` for epochs enough that it runs until it is stopped.
    pub fn train_for_long(folder: &Path, model: &str) -> Self {
        Self::train(folder, model).args(["--epochs", "1000000", "--log-every", "1"])
    }

    /// Adds arguments. A flag with a value that is there already is replaced, but for those of [`REPEATED`].
    #[must_use]
    pub fn args<I>(mut self, arguments: I) -> Self
    where
        I: IntoIterator<Item: AsRef<OsStr>>,
    {
        for argument in arguments {
            let argument = argument.as_ref();
            let is_flag = argument.as_encoded_bytes().starts_with(b"--");
            let is_replaced = is_flag && REPEATED.iter().all(|flag| argument != *flag);
            let earlier = self.arguments.iter().position(|other| other == argument);
            if let Some(at) = earlier.filter(|_| is_replaced) {
                self.arguments.drain(at..at + 2);
            }
            self.arguments.push(argument.to_os_string());
        }
        self
    }

    /// Adds words with a space between them, as [`args`](Self::args) does.
    #[must_use]
    pub fn words(self, words: impl AsRef<str>) -> Self {
        self.args(words.as_ref().split_whitespace())
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Sets environment variables.
    #[must_use]
    pub fn envs<'a, V>(mut self, variables: impl IntoIterator<Item = (&'a str, V)>) -> Self
    where
        V: AsRef<OsStr>,
    {
        self.command.envs(variables);
        self
    }

    /// Starts it through another program, a launcher say, whose arguments end where the binary's name
    /// comes. Variables that are to be set are set after this.
    #[must_use]
    pub fn by<I>(mut self, folder: &Path, program: &Path, arguments: I) -> Self
    where
        I: IntoIterator<Item: AsRef<OsStr>>,
    {
        self.command = Command::new(program);
        surround(&mut self.command, folder, &self.mark);
        self.command.args(arguments).arg(binary());
        self
    }

    /// Reads this text from standard input, which has none otherwise.
    #[must_use]
    pub fn input(mut self, text: &str) -> Self {
        let path = self.output[0].with_extension("input");
        std::fs::write(&path, text).expect("the test's folder can be written");
        let file = File::open(path).expect("it was written");
        self.command.stdin(file);
        self
    }

    /// Nobody reads what it writes: pipes whose other ends are closed, as after `2>&1 | head -1`.
    #[must_use]
    pub fn read_by_nobody(mut self) -> Self {
        self.is_read = false;
        self
    }

    /// Starts it.
    pub fn start(mut self) -> Job {
        let [stdout, stderr] = self
            .output
            .each_ref()
            .map(|path| File::create(path).expect("the test's folder can be written"));
        self.command.args(&self.arguments);
        let command = self.arguments.first().and_then(|word| word.to_str());
        if command.is_some_and(|command| BEGIN_ANEW.contains(&command)) {
            self.command.envs(ALLOCATOR);
        }
        self.command.stdout(stdout).stderr(stderr);
        if !self.is_read {
            let [output, errors] = [(); 2].map(|()| {
                let (reader, writer) = std::io::pipe().expect("a pipe can be made");
                drop(reader);
                writer
            });
            self.command.stdout(output).stderr(errors);
        }
        let child = self.command.spawn();
        let child = child.expect("the binary can be started");
        Job::new(child, self.mark, self.output)
    }

    /// Runs it to its end.
    ///
    /// # Panics
    /// When it does not end within [`DEADLINE`](crate::DEADLINE).
    pub fn run(self) -> Ended {
        self.start().wait()
    }

    /// Runs it to its end, which is a success.
    ///
    /// # Panics
    /// With the output, when it has failed; as [`run`](Self::run).
    #[track_caller]
    pub fn succeed(self) -> Ended {
        self.run().succeeded()
    }

    /// Runs it to its end: it refuses with the exit code 2 and these messages, as [`Ended::failed_with`] finds them.
    ///
    /// # Panics
    /// With the output, when it does not; as [`run`](Self::run).
    #[track_caller]
    pub fn refused(self, messages: &[&str]) -> Ended {
        let ended = self.run();
        ended.failed_with(2, messages);
        ended
    }
}

/// Demands that small trainings of a model are refused before anything is started, each in a folder of its own. Each is
/// a line: its flags and the messages, with `|` between them.
///
/// # Panics
/// With the output, when one is not.
#[track_caller]
pub fn assert_refused(model: &str, trainings: &str) {
    let lines = trainings.lines().map(str::trim);
    for line in lines.filter(|line| !line.is_empty()) {
        let (flags, messages) = line.split_once('|').expect("flags and messages");
        let folder = tempfile::tempdir().expect("a folder for a test can be made");
        let training = Everburn::train(folder.path(), model).words(flags);
        let ended = training.refused(&messages.split('|').map(str::trim).collect::<Vec<_>>());
        ended.started_nothing();
        assert!(!folder.path().join("runs").exists(), "{ended}");
    }
}

/// A folder to run in, and an environment without anything of the test's own.
pub(crate) fn surround(command: &mut Command, folder: &Path, mark: &str) {
    let home = folder.join("home");
    command
        .current_dir(folder)
        .stdin(Stdio::null())
        .env_clear()
        .envs(std::env::var_os("PATH").map(|path| ("PATH", path)))
        .env("HOME", &home)
        .env("XDG_CACHE_HOME", home.join("cache"))
        .env("EVERBURN_OFFLINE", "1")
        .env(MARK, mark);
}
