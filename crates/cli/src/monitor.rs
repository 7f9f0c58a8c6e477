//! `everburn monitor`, and the server of `train --monitor`

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::PoisonError;
use std::time::Duration;

use everburn_auth::JobToken;
use everburn_launch::StopRequest;
use everburn_monitor::{
    MonitorCommand, MonitorError, MonitorServer, Purpose, Screen, Source, Target, is_terminal,
    print_json,
};
use everburn_train::renderer::{Dashboard, Replay};
use everburn_train::{Interrupter, RunDirectory};

use crate::arguments::TrainArguments;
use crate::error::{CliError, EXIT_INTERRUPTED};

/// How often a run is looked at.
const LOOK: Duration = Duration::from_millis(200);

/// Monitors, in a terminal or as lines of JSON, or serves a run to those who do.
pub(crate) fn run(command: &MonitorCommand) -> Result<ExitCode, CliError> {
    let target = command.target()?;
    let token = command.token()?;
    if let Some(address) = &command.listen {
        return serve_alone(&target, address, token);
    }
    let source = target.open(token.as_ref())?;
    match is_terminal() && !command.json {
        true => {
            let stop = listen()?;
            look_on(source, &stop)?;
            if stop.is_set() {
                return Ok(ExitCode::from(EXIT_INTERRUPTED));
            }
        }
        false => print_json(source, &mut std::io::stdout()),
    }
    Ok(ExitCode::SUCCESS)
}

/// Until the user leaves, by a key or a signal: the terminal is given back either way.
fn look_on(mut source: Source, stop: &StopRequest) -> Result<(), MonitorError> {
    let screen = Screen::take_over(Purpose::LookOn { dashboard: true })?;
    let state = screen.state();
    // Declared after the screen, it ends before that.
    let mut replay = Replay::on(Box::new(Dashboard::new(Interrupter::new())));
    loop {
        let updates = source.poll();
        replay.take(&updates);
        let mut known = state.lock().unwrap_or_else(PoisonError::into_inner);
        known.take_all(&updates);
        drop(known);
        let left = match source.has_more() {
            true => screen.is_left(),
            false => screen.wait_within(LOOK),
        };
        if left || stop.is_set() {
            return Ok(());
        }
    }
}

fn listen() -> Result<StopRequest, CliError> {
    StopRequest::listen(false)
        .map_err(|error| CliError::usage(format!("signals cannot be listened for: {error}")))
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
    let stop = stop.flag();
    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
        std::thread::sleep(LOOK);
    }
    Ok(ExitCode::SUCCESS)
}

/// The address that `train --monitor` serves the run on, and the token that monitors need.
///
/// # Errors
/// [`CliError`] if no token was given: a token that the launcher draws is known to its ranks alone, and is not
/// printed, because what a training prints is often stored in logs.
fn wanted(arguments: &TrainArguments) -> Result<Option<(&str, JobToken)>, CliError> {
    let Some(address) = &arguments.monitor else {
        return Ok(None);
    };
    let Some(token) = arguments.ranks.token()? else {
        return Err(needs_token("--monitor", address));
    };
    Ok(Some((address, token)))
}

fn needs_token(flag: &str, address: &str) -> CliError {
    CliError::usage_with_help(
        format!("{flag} {address} needs a job token, which monitors need too"),
        format!(
            "make one with `export EVERBURN_JOB_TOKEN=$(openssl rand -hex 32)`, and set it where you monitor; \
             on this machine `monitor RUN` needs neither {flag} nor a token"
        ),
    )
}

/// Whether the server that `train --monitor` asks for can be started at all.
pub(crate) fn check(arguments: &TrainArguments) -> Result<(), CliError> {
    wanted(arguments).map(drop)
}

/// The server that `train --monitor` asks for, if it does.
pub(crate) fn serve(
    arguments: &TrainArguments,
    run: &RunDirectory,
) -> Result<Option<MonitorServer>, CliError> {
    let Some((address, token)) = wanted(arguments)? else {
        return Ok(None);
    };
    let server = MonitorServer::start(address, run.path(), &token)?;
    say!(
        "monitors with the job's token can connect to {}",
        server.address()
    );
    Ok(Some(server))
}
