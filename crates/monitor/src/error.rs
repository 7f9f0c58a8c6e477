//! Why there is nothing to look at.

use std::path::{Path, PathBuf};

use everburn_auth::AuthError;

/// Why a run cannot be looked at, or not be served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MonitorError {
    /// The folder is not that of a run.
    #[error(
        "there is no run in {}: it has neither config.toml nor metrics.jsonl; give the folder that `train \
         --run-dir` wrote, or HOST:PORT of a served run",
        path.display()
    )]
    NoRun {
        /// The folder.
        path: PathBuf,
    },
    /// There is no run to look at where none was named.
    #[error("no run was given, and there is none in {}; give one, as in `monitor runs/a`", folder.display())]
    NoRuns {
        /// Where runs were looked for.
        folder: PathBuf,
    },
    /// A file or folder cannot be read.
    #[error("{action} {}: {reason}", path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// With what.
        path: PathBuf,
        /// Why it failed.
        reason: String,
    },
    /// A server is asked without a token.
    #[error(
        "{address} serves its run only to monitors with the job's token: set EVERBURN_JOB_TOKEN (or --job-token) to the \
         token of the training; on the run's own machine give its folder, as in `monitor runs/a`"
    )]
    TokenNeeded {
        /// The address.
        address: String,
    },
    /// A token cannot be used, or a proof not be made.
    #[error(transparent)]
    Token(#[from] AuthError),
    /// The server cannot listen.
    #[error("{who} cannot be served on {address}: {reason}")]
    Listen {
        /// Who would connect there: monitors or scrapes.
        who: &'static str,
        /// The address.
        address: String,
        /// What the system said.
        reason: String,
    },
    /// The run's machine cannot be reached.
    #[error(
        "{address} cannot be reached: {reason}; check whether the run is served there (`train \
         --monitor HOST:PORT`) and whether a firewall blocks it"
    )]
    Unreachable {
        /// The address.
        address: String,
        /// What the system said.
        reason: String,
    },
    /// The other side is not Everburn's server, or one of another version.
    #[error("{address} does not serve Everburn runs: {reason}")]
    Protocol {
        /// The address.
        address: String,
        /// What it said.
        reason: String,
    },
    /// The server and this monitor do not have the same token.
    #[error(
        "{address} has not proved that it has the job's token: set EVERBURN_JOB_TOKEN (or --job-token) to the token of \
         the job served there; if it is the right one, another program listens at this address"
    )]
    Refused {
        /// The address.
        address: String,
    },
    /// The terminal cannot be used.
    #[error("the terminal cannot be used: {reason}")]
    Terminal {
        /// What the system said.
        reason: String,
    },
}

impl MonitorError {
    /// The folder that was given as that of a run, and is none.
    #[must_use]
    pub fn missing_run(&self) -> Option<&Path> {
        match self {
            Self::NoRun { path } | Self::File { path, .. } => Some(path),
            _ => None,
        }
    }

    pub(crate) fn terminal(error: impl std::fmt::Display) -> Self {
        Self::Terminal {
            reason: error.to_string(),
        }
    }
}
