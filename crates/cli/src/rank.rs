//! This process as one of several ranks.

use std::process::ExitCode;
use std::time::Duration;

use everburn::collectives::group::{GroupOptions, ProcessGroup};
use everburn::collectives::rendezvous::{RendezvousRequest, rendezvous};
use everburn_launch::{EXIT_PEER_LOST, FailureKind, RankEnvironment};

use crate::config::RanksConfig;
use crate::error::{CliError, EXIT_FAILURE, EXIT_USAGE};

/// What a launcher has told this process, or `None` if a user started it. From then on the process
/// ends with its launcher, and its panics are reported to it.
pub(crate) fn from_environment() -> Result<Option<RankEnvironment>, CliError> {
    if !RankEnvironment::is_present() {
        return Ok(None);
    }
    let environment = RankEnvironment::from_env()?;
    environment.guard_against_orphaning()?;
    environment.report_panics();
    Ok(Some(environment))
}

/// Meets the other ranks; without a launcher there are none.
pub(crate) fn join(
    environment: Option<&RankEnvironment>,
    config: &RanksConfig,
) -> Result<ProcessGroup, CliError> {
    let options = group_options(config);
    let Some(environment) = environment else {
        return Ok(ProcessGroup::alone(options));
    };
    let request = RendezvousRequest {
        timeout: options.timeout,
        job_token: environment.job_token.clone(),
        ..RendezvousRequest::default()
    };
    let meeting = rendezvous("env://", request)?;
    Ok(ProcessGroup::connect(meeting, options)?)
}

/// How the ranks of a job reach each other and wait.
pub(crate) fn group_options(config: &RanksConfig) -> GroupOptions {
    GroupOptions {
        timeout: Some(Duration::from_secs(config.timeout)),
        transport: config.transport,
        ..GroupOptions::default()
    }
}

/// Says what went wrong, to the user and to the launcher, and how the process should end.
pub(crate) fn fail(error: &CliError, environment: Option<&RankEnvironment>) -> ExitCode {
    let secondary = error.is_secondary();
    let code = if error.is_usage() {
        ExitCode::from(EXIT_USAGE)
    } else if secondary {
        ExitCode::from(u8::try_from(EXIT_PEER_LOST).unwrap_or(EXIT_FAILURE))
    } else {
        ExitCode::from(EXIT_FAILURE)
    };
    if let Some(environment) = environment {
        let kind = if secondary {
            FailureKind::PeerLost
        } else {
            FailureKind::Own
        };
        environment.report(kind, None, &error.to_string());
    }
    error.print();
    code
}
