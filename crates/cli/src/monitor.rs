//! `everburn monitor`, and the servers of `train --monitor` and `train --prometheus`

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use everburn_auth::JobToken;
use everburn_launch::listen_for_stop;
use everburn_monitor::{
    MonitorCommand, MonitorError, MonitorServer, PrometheusServer, Purpose, Screen, Source, Target,
    is_terminal, print_json,
};
use everburn_record::sync::lock;
use everburn_record::{EXIT_INTERRUPTED, StopSignal};
use everburn_train::renderer::{Dashboard, Replay};
use everburn_train::{Interrupter, RunDirectory};

use crate::arguments::{MonitoringFlags, TrainArguments};
use crate::error::CliError;

/// How often a run is looked at.
const LOOK: Duration = Duration::from_millis(200);

/// Monitors, in a terminal or as lines of JSON, or serves a run to those who do.
pub(crate) fn run(command: &MonitorCommand) -> Result<ExitCode, CliError> {
    let token = command.token()?;
    if command.prometheus_token {
        return print_credential(token);
    }
    let target = command.target()?;
    if let Some(address) = &command.listen {
        return serve_alone(&target, address, token);
    }
    let source = target.open(token.as_ref())?;
    match is_terminal() && !command.json {
        true => {
            let stop = listen()?;
            if let Some(text) = look_on(source, &stop)? {
                say!("{text}");
            }
            if stop.is_set() {
                return Ok(ExitCode::from(EXIT_INTERRUPTED));
            }
        }
        false => print_json(source, &mut std::io::stdout()),
    }
    Ok(ExitCode::SUCCESS)
}

/// Until the user leaves, by a key or a signal: the terminal is given back either way. Returns what is to be said of a
/// run that was cut off.
fn look_on(mut source: Source, stop: &StopSignal) -> Result<Option<String>, MonitorError> {
    let screen = Screen::take_over(Purpose::LookOn)?;
    let state = screen.state();
    // Declared after the screen, it ends before that.
    let mut replay = Replay::on(Box::new(Dashboard::new(Interrupter::new())));
    loop {
        let updates = source.poll();
        replay.take(&updates);
        let mut known = lock(&state);
        known.take_all(&updates);
        drop(known);
        let left = match source.has_more() {
            true => screen.is_left(),
            false => screen.wait_within(LOOK),
        };
        if left || stop.is_set() {
            return Ok(lock(&state).cut_off().map(ToOwned::to_owned));
        }
    }
}

fn listen() -> Result<StopSignal, CliError> {
    listen_for_stop(None, |_, _| ()).map_err(|error| CliError::no_signals(&error))
}

/// Until Ctrl-C. Without a token it draws one, and prints once how a monitor connects with it: on a terminal only,
/// because what is printed elsewhere is often stored in logs.
fn serve_alone(
    target: &Target,
    address: &str,
    token: Option<JobToken>,
) -> Result<ExitCode, CliError> {
    let Target::Folder(folder) = target else {
        return Err(CliError::usage_with_help(
            format!("{target} is served already"),
            "--listen serves the run in a folder of this machine",
        ));
    };
    let shown = std::io::stdout().is_terminal();
    let (token, drawn) = match token {
        Some(token) => (token, false),
        None if !shown => return Err(needs_token("--listen", address)),
        None => (JobToken::random().map_err(MonitorError::from)?, true),
    };
    let stop = listen()?;
    let server = MonitorServer::start(address, folder, &token)?;
    say!("{} is served on {}", folder.display(), server.address());
    if drawn {
        say!(
            "monitors connect with this token:\n  {}",
            server.invitation(&token)
        );
    }
    while !stop.is_set() {
        std::thread::sleep(LOOK);
    }
    Ok(ExitCode::SUCCESS)
}

#[derive(Debug, Default)]
pub(crate) struct Servers {
    _monitors: Option<MonitorServer>,
    _figures: Option<PrometheusServer>,
}

/// The job's token, if a flag asks for a server.
///
/// # Errors
/// [`CliError`] if no token was given: a token that the launcher draws is known to its ranks alone, and is not
/// printed, because what a training prints is often stored in logs.
fn token_for_servers(arguments: &TrainArguments) -> Result<Option<JobToken>, CliError> {
    let MonitoringFlags {
        monitor,
        prometheus,
    } = &arguments.monitoring;
    let (flag, address) = match (monitor, prometheus) {
        (Some(address), _) => ("--monitor", address),
        (None, Some(address)) => ("--prometheus", address),
        (None, None) => return Ok(None),
    };
    match arguments.ranks.token()? {
        Some(token) => Ok(Some(token)),
        None => Err(needs_token(flag, address)),
    }
}

fn needs_token(flag: &str, address: &str) -> CliError {
    let make = "make one with `export EVERBURN_JOB_TOKEN=$(openssl rand -hex 32)`";
    match flag {
        "--prometheus" => CliError::usage_with_help(
            format!(
                "{flag} {address} needs a job token, from which Prometheus' credential is derived"
            ),
            format!("{make}, and give Prometheus what `monitor --prometheus-token` prints"),
        ),
        _ => CliError::usage_with_help(
            format!("{flag} {address} needs a job token, which monitors need too"),
            format!(
                "{make}, and set it where you monitor; on this machine `monitor RUN` needs neither {flag} nor a token"
            ),
        ),
    }
}

/// Whether the servers that flags ask for can be started at all.
pub(crate) fn check(arguments: &TrainArguments) -> Result<(), CliError> {
    token_for_servers(arguments).map(drop)
}

/// Starts the servers that flags ask for, of `run`, if this process is to serve one.
pub(crate) fn serve(
    arguments: &TrainArguments,
    run: Option<&RunDirectory>,
) -> Result<Servers, CliError> {
    let Some(run) = run else {
        return Ok(Servers::default());
    };
    let Some(token) = token_for_servers(arguments)? else {
        return Ok(Servers::default());
    };
    let MonitoringFlags {
        monitor,
        prometheus,
    } = &arguments.monitoring;
    let monitors = monitor.as_deref();
    let monitors = monitors.map(|address| MonitorServer::start(address, run.path(), &token));
    let monitors = monitors.transpose()?;
    let figures = prometheus.as_deref();
    let figures = figures.map(|address| PrometheusServer::start(address, run.path(), &token));
    let figures = figures.transpose()?;
    if let Some(server) = &monitors {
        let address = server.address();
        say!("monitors with the job's token can connect to {address}");
    }
    if let Some(server) = &figures {
        say!(
            "Prometheus finds the figures at http://{}/metrics",
            server.address()
        );
    }
    Ok(Servers {
        _monitors: monitors,
        _figures: figures,
    })
}

/// Prints what Prometheus sends.
fn print_credential(token: Option<JobToken>) -> Result<ExitCode, CliError> {
    let Some(token) = token else {
        return Err(CliError::usage_with_help(
            "--prometheus-token needs the job's token",
            "set EVERBURN_JOB_TOKEN to the token of the training",
        ));
    };
    say!("{}", PrometheusServer::credential(&token).reveal());
    Ok(ExitCode::SUCCESS)
}
