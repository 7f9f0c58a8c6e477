//! Why there is nothing to look at.

use std::path::PathBuf;

/// Why a run cannot be looked at, or not be served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MonitorError {
    /// The folder is not that of a run.
    #[error(
        "there is no run in {}: it has neither config.toml nor metrics.jsonl; give the folder that `train \
         --run-dir` was given, or HOST:PORT of a run that is served",
        path.display()
    )]
    NoRun {
        /// The folder.
        path: PathBuf,
    },
    /// There is no run to look at where none was named.
    #[error("no run was named, and there is none in {}; name one, as in `monitor runs/a`", folder.display())]
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
    /// An address other than loopback wants a secret.
    #[error(
        "{address} can be reached from other machines: give --job-token (or EVERBURN_JOB_TOKEN), without which \
         anybody could look on, or an address of loopback"
    )]
    TokenNeeded {
        /// The address.
        address: String,
    },
    /// The server cannot listen.
    #[error("monitors cannot be served on {address}: {reason}")]
    Listen {
        /// The address.
        address: String,
        /// What the system said.
        reason: String,
    },
    /// The run's machine cannot be reached.
    #[error(
        "{address} was not reached: {reason}; check whether the run is served there (`train \
         --monitor HOST:PORT`) and whether a firewall is between"
    )]
    Unreachable {
        /// The address.
        address: String,
        /// What the system said.
        reason: String,
    },
    /// The other side is no server of ours, or of another version.
    #[error("{address} does not serve runs of Everburn: {reason}")]
    Protocol {
        /// The address.
        address: String,
        /// What it said.
        reason: String,
    },
    /// The secret is not that of the job.
    #[error(
        "{address} does not let this monitor in: give the job's --job-token (or EVERBURN_JOB_TOKEN)"
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
    pub(crate) fn terminal(error: impl std::fmt::Display) -> Self {
        Self::Terminal {
            reason: error.to_string(),
        }
    }
}
