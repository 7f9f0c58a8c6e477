//! `everburn monitor`, and the server of `train --monitor`

use std::process::ExitCode;
use std::sync::PoisonError;
use std::time::Duration;

use everburn::train::renderer::{Dashboard, Replay};
use everburn::train::{Interrupter, RunDirectory};
use everburn_launch::StopRequest;
use everburn_monitor::{
    MonitorCommand, MonitorError, MonitorServer, Purpose, Screen, Source, Target, is_terminal,
    print_json,
};

use crate::arguments::TrainArguments;
use crate::error::{CliError, EXIT_INTERRUPTED};

/// How often a run is looked at.
const LOOK: Duration = Duration::from_millis(200);

/// Looks on, in a terminal or as lines of JSON, or serves a run to those who do.
pub(crate) fn run(command: &MonitorCommand) -> Result<ExitCode, CliError> {
    let target = command.target()?;
    if let Some(address) = &command.listen {
        return serve_alone(&target, address, command.job_token.clone());
    }
    let source = target.open(command.job_token.as_deref())?;
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

/// Until Ctrl-C.
fn serve_alone(
    target: &Target,
    address: &str,
    token: Option<String>,
) -> Result<ExitCode, CliError> {
    let Target::Folder(folder) = target else {
        return Err(CliError::usage_with_help(
            format!("{target} is served already"),
            "--listen serves the run in a folder of this machine",
        ));
    };
    let stop = listen()?;
    let server = MonitorServer::start(address, folder, token)?;
    say!("{} is served on {}", folder.display(), server.address());
    let stop = stop.flag();
    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
        std::thread::sleep(LOOK);
    }
    Ok(ExitCode::SUCCESS)
}

/// The server that `train --monitor` asks for, if it does.
pub(crate) fn serve(
    arguments: &TrainArguments,
    run: &RunDirectory,
) -> Result<Option<MonitorServer>, CliError> {
    let Some(address) = &arguments.monitor else {
        return Ok(None);
    };
    let token = arguments.ranks.job_token.clone();
    let server = MonitorServer::start(address, run.path(), token)?;
    say!("monitors can look on at {}", server.address());
    Ok(Some(server))
}
