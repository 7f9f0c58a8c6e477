//! Commands around training: they start this program's other commands, serve, examine, describe, and prepare text. None of
//! them has a model, so none uses Burn.

mod audit;
mod completions;
mod devices;
mod doctor;
mod manual;
mod new;
mod soak;
mod store;
mod tokenize;
mod verify;

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::Subcommand;
use everburn_launch::{ChildError, Children, EXIT_STALLED, EndedChild};
use everburn_record::EXIT_INTERRUPTED;

use crate::arguments::keys::with_flags;
use crate::error::{EXIT_FAILURE, EXIT_USAGE};
use crate::terminal::for_stderr;

/// A command that is the same whoever has started it: no launcher makes a rank of it.
#[derive(Debug, Subcommand)]
pub(crate) enum Tool {
    Verify(verify::VerifyArguments),
    Audit(audit::AuditArguments),
    Soak(soak::SoakArguments),
    Doctor(doctor::DoctorArguments),
    Store(store::StoreArguments),
    New(new::NewArguments),
    Tokenize(tokenize::TokenizeArguments),
    /// List the devices that ranks can use.
    Devices(devices::DevicesArguments),
    /// Print a shell's completions of this command line, as in `completions bash`.
    Completions(completions::CompletionsArguments),
    /// Write a manual page for each command into a folder, as in `man ~/.local/share/man/man1`.
    Man(manual::ManualArguments),
    /// A rank of `doctor --ranks`.
    #[command(hide = true)]
    DoctorRank(doctor::RankArguments),
}

impl Tool {
    /// Whether it starts trainings.
    pub(crate) fn trains(&self) -> bool {
        matches!(self, Self::Verify(_) | Self::Audit(_) | Self::Soak(_))
    }

    /// Runs it, says what went wrong, and returns the exit code.
    pub(crate) fn run(&self) -> ExitCode {
        let done = match self {
            Self::Verify(arguments) => verify::run(arguments),
            Self::Audit(arguments) => audit::run(arguments),
            Self::Soak(arguments) => soak::run(arguments),
            Self::Doctor(arguments) => doctor::run(arguments),
            Self::Store(arguments) => store::serve(arguments),
            Self::New(arguments) => new::run(arguments),
            Self::Tokenize(arguments) => tokenize::run(arguments),
            Self::Devices(arguments) => devices::run(arguments),
            Self::Completions(arguments) => Ok(completions::run(arguments)),
            Self::Man(arguments) => manual::run(arguments),
            Self::DoctorRank(arguments) => doctor::run_rank(arguments),
        };
        done.unwrap_or_else(|error| error.print())
    }
}

/// What ends a command of this folder.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ToolError {
    /// The command line cannot work.
    #[error("{0}")]
    Usage(String),
    /// Something that it started, or a signal.
    #[error(transparent)]
    Child(#[from] ChildError),
    /// Anything else, in words.
    #[error("{0}")]
    Failed(String),
}

impl ToolError {
    /// Tells the user, and returns the exit code.
    fn print(&self) -> ExitCode {
        let line = format!("error: {}", with_flags(&self.to_string()));
        say_error!("{}", for_stderr(&line));
        if let Self::Child(ChildError::TooLong { .. }) = self {
            say_error!("help: --run-timeout gives each training more time");
        }
        ExitCode::from(match self {
            Self::Usage(_) => EXIT_USAGE,
            Self::Child(ChildError::Interrupted) => EXIT_INTERRUPTED,
            Self::Child(ChildError::TooLong { .. }) => {
                u8::try_from(EXIT_STALLED).unwrap_or(EXIT_FAILURE)
            }
            Self::Child(_) | Self::Failed(_) => EXIT_FAILURE,
        })
    }
}

fn failed(error: impl std::fmt::Display) -> ToolError {
    ToolError::Failed(error.to_string())
}

/// The task that a command is about: the one that is named, else the only one, else `usual`.
fn task_or(named: Option<&str>, usual: Option<&str>) -> Result<String, ToolError> {
    let usual = usual.filter(|name| crate::tasks::find(name).is_some());
    let only = || crate::tasks::only().map(everburn_train::AnyTask::name);
    let name = named.or_else(only).or(usual);
    name.map(ToOwned::to_owned).ok_or_else(|| {
        let program = everburn_record::invocation::name();
        ToolError::Usage(format!(
            "no model was named; `{program} train --list` shows them all"
        ))
    })
}

/// This program, for children that are its other commands.
fn this_program() -> Result<std::path::PathBuf, ToolError> {
    std::env::current_exe()
        .map_err(|error| ToolError::Failed(format!("this program cannot find itself: {error}")))
}

/// Runs a training called `name` to any end, which comes within `seconds`.
fn run_to_end(
    children: &Children,
    name: &str,
    mut command: Command,
    seconds: u64,
) -> Result<EndedChild, ToolError> {
    let output = tempfile::tempdir().map_err(failed)?;
    let deadline = Duration::from_secs(seconds);
    Ok(children.run_to_any_end(name, &mut command, output.path(), deadline)?)
}

/// The name of this program's file, by which shells and manuals know it.
fn program_name() -> String {
    let program = std::env::args_os().next();
    let name = program.as_deref().map(Path::new).and_then(Path::file_name);
    name.map_or_else(
        || "everburn".to_owned(),
        |name| name.to_string_lossy().into_owned(),
    )
}
