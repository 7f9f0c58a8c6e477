//! Error messages for the user.

mod different_runs;

use std::path::PathBuf;

use crate::arguments::keys::with_flags;
use crate::devices::DeviceError;
use crate::terminal::for_stderr;
use crate::{missing_run, tasks};
use everburn_collectives::group::CollectiveError;
use everburn_collectives::rendezvous::RendezvousError;
use everburn_collectives::store::StoreError;
use everburn_launch::{
    EXIT_FAILS_AGAIN, EXIT_PANIC, EXIT_PEER_LOST, EXIT_STALLED, EXIT_UNAVAILABLE, LaunchError,
    RankEnvironmentError,
};
use everburn_monitor::MonitorError;
use everburn_record::invocation;
use everburn_report::ReportError;
use everburn_schedules::{ScheduleError, SimulationError};
use everburn_train::{TaskError, TrainError};
use miette::Diagnostic;

/// The exit code for flags, files and devices that cannot be used: nothing was started.
pub(crate) const EXIT_USAGE: u8 = 2;

/// The exit code of a run that failed.
pub(crate) const EXIT_FAILURE: u8 = 1;

#[derive(Debug, thiserror::Error, Diagnostic)]
pub(crate) enum CliError {
    #[error("there is no model called `{name}`")]
    #[diagnostic(help("{hint}`{} train --list` shows them all", invocation::name()))]
    UnknownModel { name: String, hint: String },

    #[error("no model was named")]
    #[diagnostic(help(
        "name one, as in `{} train {}`; --list shows them all",
        invocation::name(),
        tasks::example("mnist")
    ))]
    NoModel,

    #[error("{message}")]
    Usage {
        message: String,
        #[help]
        help: Option<String>,
    },

    #[error("{path} cannot be used as a configuration: {reason}")]
    #[diagnostic(help("--config takes a TOML file like the config.toml of a run"))]
    Config { path: PathBuf, reason: String },

    #[error(transparent)]
    Schedule(#[from] ScheduleError),

    #[error(transparent)]
    Simulation(#[from] SimulationError),

    #[error("{}", with_flags(&_0.to_string()))]
    Rendezvous(#[from] RendezvousError),

    #[error("{}", with_flags(&_0.to_string()))]
    Collective(#[from] CollectiveError),

    #[error("{}", of_training(_0))]
    Train(#[from] TrainError),

    /// A training failed after a checkpoint.
    #[error("{}", of_training(error))]
    Failed {
        error: Box<TrainError>,
        #[help]
        help: String,
    },

    /// This rank gave up because another one had stalled, of which a report was printed.
    #[error("{}{error}", .waits_itself.as_ref().map_or(String::new(), |it| format!("{it}; ")))]
    Stalled {
        /// What this rank met.
        error: Box<CliError>,
        /// The rank that stalled, as the job counts, if the report names one.
        stalled: Option<usize>,
        /// That the rank that stalled waited itself, and in which other call.
        waits_itself: Option<String>,
    },

    /// This rank is the one that stalled: it did not run, or was busy with other work while others waited for it.
    #[error("{0}")]
    StalledItself(String),

    #[error("{}", with_flags(&_0.to_string()))]
    Launch(#[from] LaunchError),

    #[error("{}", with_flags(&_0.to_string()))]
    Environment(#[from] RankEnvironmentError),
}

/// An error of a training, with flags.
fn of_training(error: &TrainError) -> String {
    let text = with_flags(&error.to_string());
    let advice = match error {
        TrainError::DifferentRuns { ours, theirs, .. } => different_runs::advice(ours, theirs),
        _ => None,
    };
    match advice {
        Some(advice) => format!("{text}: {advice}"),
        None => text,
    }
}

// Libraries name keys of the configuration, the command line its flags.
impl From<TaskError> for CliError {
    fn from(error: TaskError) -> Self {
        Self::Usage {
            message: with_flags(&error.to_string()),
            help: error.help().map(with_flags),
        }
    }
}

impl From<ReportError> for CliError {
    fn from(error: ReportError) -> Self {
        match error {
            ReportError::Write { path, reason } => TrainError::Write { path, reason }.into(),
            error => Self::Usage {
                message: error.to_string(),
                help: error.missing_run().map(missing_run::help),
            },
        }
    }
}

impl From<MonitorError> for CliError {
    fn from(error: MonitorError) -> Self {
        Self::Usage {
            message: error.to_string(),
            help: error.missing_run().map(missing_run::help),
        }
    }
}

impl From<DeviceError> for CliError {
    fn from(error: DeviceError) -> Self {
        Self::Usage {
            message: error.message,
            help: error.help,
        }
    }
}

impl CliError {
    /// Prints the error, its causes, and what to do. Each line is of one of them by how it begins: the launcher shows once what
    /// several ranks print.
    pub(crate) fn print(&self) {
        let say = |what: &str, text: &str| {
            let line = format!("{what}: {}", text.replace('\n', "\n  "));
            say_error!("{}", for_stderr(&line));
        };
        say("error", &self.to_string());
        for (what, text) in self.causes_and_help() {
            say(what, &text);
        }
    }

    /// The error with its causes and what to do, a line each.
    pub(crate) fn in_full(&self) -> String {
        let more = self.causes_and_help().into_iter();
        let more = more.map(|(what, text)| format!("\n{what}: {text}"));
        self.to_string() + &more.collect::<String>()
    }

    fn causes_and_help(&self) -> Vec<(&'static str, String)> {
        let (mut parts, mut text) = (Vec::new(), self.to_string());
        let mut source = std::error::Error::source(self);
        while let Some(cause) = source {
            let cause_text = with_flags(&cause.to_string());
            if !text.contains(&cause_text) {
                parts.push(("  because", cause_text.clone()));
                text = cause_text;
            }
            source = cause.source();
        }
        parts.extend(self.help().map(|help| ("help", help.to_string())));
        parts
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::Usage {
            message: with_flags(&message.into()),
            help: None,
        }
    }

    pub(crate) fn usage_with_help(message: impl Into<String>, help: impl Into<String>) -> Self {
        Self::Usage {
            message: with_flags(&message.into()),
            help: Some(with_flags(&help.into())),
        }
    }

    /// The system does not let this process listen for signals.
    pub(crate) fn no_signals(error: &std::io::Error) -> Self {
        Self::usage(format!("signals cannot be listened for: {error}"))
    }

    /// Whether nothing was started because the request itself cannot be met.
    pub(crate) fn is_usage(&self) -> bool {
        match self {
            Self::UnknownModel { .. }
            | Self::NoModel
            | Self::Usage { .. }
            | Self::Config { .. }
            | Self::Launch(_)
            | Self::Environment(_) => true,
            // But not `Write`: a disk that is full in the middle of a run is nothing that the request could know of.
            Self::Train(error) => matches!(
                error,
                TrainError::Config(_)
                    | TrainError::File { .. }
                    | TrainError::RunInUse { .. }
                    | TrainError::Checkpoint { .. }
                    | TrainError::Weights { .. }
                    | TrainError::DifferentRuns { .. }
                    | TrainError::UnknownMetric { .. }
            ),
            // A store may fail, and others may be late; all else is how the ranks were started.
            Self::Rendezvous(RendezvousError::Store { source, .. }) => {
                matches!(source, StoreError::Unauthenticated { .. })
            }
            Self::Rendezvous(error) => !matches!(
                error,
                RendezvousError::NotAllJoined(_) | RendezvousError::GivenUp { .. }
            ),
            // That the ranks of a schedule wait for each other is what a simulation is to find out.
            Self::Schedule(error) => !matches!(error, ScheduleError::Deadlock(_)),
            Self::Simulation(error) => !matches!(error, SimulationError::Deadlock(_)),
            Self::Collective(_)
            | Self::Failed { .. }
            | Self::Stalled { .. }
            | Self::StalledItself(_) => false,
        }
    }

    /// How the process of a rank ends, `elastic` or not.
    pub(crate) fn exit_code(&self, elastic: bool) -> u8 {
        let code = match self {
            _ if self.is_usage() => return EXIT_USAGE,
            _ if self.is_panic() => EXIT_PANIC,
            _ if elastic && self.is_unavailable() => EXIT_UNAVAILABLE,
            _ if self.has_lost_store() => EXIT_UNAVAILABLE,
            _ if elastic && self.happens_again() => EXIT_FAILS_AGAIN,
            _ if self.is_timeout() => EXIT_STALLED,
            _ if self.is_secondary() => EXIT_PEER_LOST,
            _ => return EXIT_FAILURE,
        };
        u8::try_from(code).unwrap_or(EXIT_FAILURE)
    }

    /// Whether a rank that is a thread of this process panicked. A panic of a data set or batcher is none: it is an error of
    /// the sample that it names.
    fn is_panic(&self) -> bool {
        match self {
            Self::Train(error) => matches!(error, TrainError::Panicked(_)),
            Self::Failed { error, .. } => matches!(**error, TrainError::Panicked(_)),
            _ => false,
        }
    }

    /// Whether an elastic job need not try again: the same would happen.
    pub(crate) fn happens_again(&self) -> bool {
        matches!(self, Self::Train(error) if error.happens_again())
    }

    /// Whether the other ranks of an elastic job, or its store, were waited for as long as allowed.
    pub(crate) fn is_unavailable(&self) -> bool {
        matches!(self, Self::Train(TrainError::Elastic(_)))
    }

    /// Whether the store was lost while the ranks met.
    fn has_lost_store(&self) -> bool {
        match self {
            Self::Rendezvous(RendezvousError::Store { source, .. })
            | Self::Collective(CollectiveError::Store(source)) => source.is_lost(),
            _ => false,
        }
    }

    /// Whether this rank gave up because another one did not answer within the deadline.
    pub(crate) fn is_timeout(&self) -> bool {
        match self {
            Self::Stalled { .. } | Self::StalledItself(_) => true,
            Self::Train(error) => error.is_timeout(),
            Self::Collective(error) => error.is_timeout(),
            _ => false,
        }
    }

    /// The rank because of which this one fails, if the error names one.
    pub(crate) fn lost_rank(&self) -> Option<usize> {
        match self {
            Self::Stalled { error, stalled, .. } => stalled.or_else(|| error.lost_rank()),
            other => other.collective()?.lost_rank(),
        }
    }

    /// The number of that rank's machine, if no rank of it sends heartbeats.
    pub(crate) fn silent_machine(&self) -> Option<usize> {
        match self {
            Self::Stalled { error, .. } => error.silent_machine(),
            other => other.collective()?.silent_machine(),
        }
    }

    /// The error of the group that this one comes from.
    fn collective(&self) -> Option<&CollectiveError> {
        match self {
            Self::Train(error) => error.collective(),
            Self::Collective(error) => Some(error),
            _ => None,
        }
    }

    /// Whether this rank fails only because another one did.
    pub(crate) fn is_secondary(&self) -> bool {
        match self {
            Self::Stalled { error, stalled, .. } => stalled.is_some() || error.is_secondary(),
            Self::Train(error) => error.is_secondary(),
            Self::Collective(error) => error.is_secondary(),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_that_panics_ends_with_another_code_than_a_sample_that_does() {
        let panicked = || TrainError::Panicked("rank 0: broken".to_owned());
        let after_a_checkpoint = CliError::Failed {
            error: Box::new(panicked()),
            help: String::new(),
        };
        for error in [panicked().into(), after_a_checkpoint] {
            assert_eq!(error.exit_code(false), 101);
        }
        let sample = "sample 3 (batch 1 of epoch 1) made the data set panic: broken";
        let of_sample = CliError::Train(TrainError::Data(sample.to_owned()));
        assert_eq!(of_sample.exit_code(false), EXIT_FAILURE);
    }

    #[test]
    fn a_store_that_is_lost_while_ranks_meet_ends_them_with_another_code_than_one_that_is_not_reached()
     {
        let code = |operation: &'static str| {
            let source = StoreError::Unreachable {
                address: "node1:29500".to_owned(),
                operation,
                reason: String::new(),
            };
            let of_group = CliError::Collective(source.clone().into()).exit_code(false);
            let error = RendezvousError::Store { rank: 1, source };
            [CliError::Rendezvous(error).exit_code(false), of_group]
        };
        assert_eq!(code("get"), [69, 69]);
        assert_eq!(code("connect"), [1, 1]);
    }

    #[test]
    fn a_full_disk_is_not_the_request_and_a_missing_file_is() {
        let (path, reason) = (PathBuf::from("run"), String::new());
        let missing = TrainError::File {
            action: "reading",
            path: path.clone(),
            reason: reason.clone(),
        };
        assert!(CliError::Train(missing).is_usage());
        for full in [
            TrainError::Write {
                path: path.clone(),
                reason: reason.clone(),
            },
            TrainError::WriteCheckpoint { path, reason },
        ] {
            assert!(!CliError::Train(full).is_usage());
        }
    }
}
