//! How a training ends that has started its ranks as processes.

use std::process::ExitCode;

use everburn_launch::Outcome;
use everburn_record::{EXIT_INTERRUPTED, has_checkpoint};
use everburn_train::TrainingReport;

use super::earlier_run::Prepared;
use crate::arguments::TrainArguments;
use crate::config::RunConfig;
use crate::error::CliError;
use crate::prelude::*;
use crate::terminal::for_stderr;
use crate::{launching, recording, summary};

/// Records how the job has ended, gives the folder back to its earlier run where nothing was recorded, and says all of it:
/// files are named by where they are then. `report_before` is that of the run before a resume, `asked_by` the signal that has
/// asked for the end.
///
/// # Errors
/// That of the launcher.
pub(super) fn end_of_job(
    config: &RunConfig,
    arguments: &TrainArguments,
    prepared: &mut Prepared,
    report_before: Option<&TrainingReport>,
    outcome: Result<Outcome, CliError>,
    asked_by: Option<&str>,
) -> Result<ExitCode, CliError> {
    let run = prepared.run.clone();
    let is_finder = arguments.finders.wanted().is_some();
    write_lost_config(&run, config);
    match is_finder {
        true => recording::leave_no_checkpoints(&run),
        false => {
            if let Some(by) = asked_by {
                recording::name_stop(&run, report_before, by);
            }
            recording::conclude_job(&run, outcome.as_ref());
        }
    }
    let mut outcome = outcome?;
    let code = ExitCode::from(&outcome);
    if matches!(outcome, Outcome::Succeeded) {
        prepared.keep();
    }
    // The ranks' reports say that the training has finished; what came out of it must be there too. In an
    // elastic job the rank that records may be on another machine at the end.
    let elsewhere = config.ranks.elastic.is_some() && config.ranks.nodes > 1;
    let records = arguments.ranks.node_rank.unwrap_or(0) == 0 && !elsewhere;
    // A rank that ended by the request to stop has said so; one that waited for others has not.
    let stopped_early = matches!(outcome, Outcome::Interrupted { .. })
        && run.read_report().ok().as_ref() == report_before;
    let needs_help = matches!(outcome, Outcome::Failed(_)) || records && stopped_early;
    let given_back = needs_help.then(|| prepared.restore()).flatten();
    if let (Outcome::Failed(failure), Some(given_back)) = (&mut outcome, &given_back)
        && let Some(log) = given_back.moved(&failure.log)
    {
        failure.log = log;
    }
    launching::say_end(&outcome, config.ranks.elastic.is_some());
    let help = match given_back {
        Some(given_back) => Some(given_back.to_string()),
        None if needs_help && !is_finder => summary::help_after(&outcome, arguments, &run),
        None => None,
    };
    if let Some(help) = help {
        say_error!("{}", for_stderr(&format!("help: {help}")));
    }
    let finished = code == ExitCode::SUCCESS && records && !is_finder;
    if finished && !run.read_report()?.finished {
        return Ok(EXIT_INTERRUPTED.into());
    }
    Ok(code)
}

/// Writes `config.toml` again where somebody has removed the folder of a run during the training, and says what is lost: the run
/// can be resumed from the checkpoints that were written since.
pub(super) fn write_lost_config(run: &RunDirectory, config: &RunConfig) {
    if run.config_path().is_file() || !has_checkpoint(run.path()) {
        return;
    }
    let lost = format!(
        "{} was removed while the training ran: earlier metrics, events and logs are lost",
        run.path().display()
    );
    match run.write_config(config) {
        Ok(()) => tracing::warn!("{lost}; config.toml is written again, for --resume"),
        Err(error) => tracing::warn!("{lost}, and the run cannot be resumed: {error}"),
    }
}

/// A failure of a training in this process, with how its run is continued, if it has come to a checkpoint or the disk is
/// the cause.
pub(super) fn with_continuation(error: CliError, run: &RunDirectory) -> CliError {
    let CliError::Train(error) = error else {
        return error;
    };
    let is_of_disk = matches!(
        error,
        TrainError::Write { .. } | TrainError::WriteCheckpoint { .. }
    );
    let has_checkpoint = has_checkpoint(run.path());
    let help = match is_of_disk {
        true => summary::how_to_continue_with_room(run),
        false => summary::how_to_continue(run),
    };
    match (is_of_disk || has_checkpoint) && !CliError::from(error.clone()).is_usage() {
        true => CliError::Failed {
            error: Box::new(error),
            help,
        },
        false => error.into(),
    }
}

/// What a training without our launcher says of a signal to stop, and of one that comes `again`. It is one of several ranks if
/// `rank` is its number.
pub(super) fn words_of_stop(
    rank: Option<usize>,
    signal: &str,
    again: bool,
    has_checkpoints: bool,
) -> String {
    let (with, without) = match has_checkpoints {
        true => (
            ", with a checkpoint",
            ", and steps since the newest checkpoint are lost",
        ),
        false => ("", ""),
    };
    let more = "; once more ends the training at once".to_owned();
    let more = rank.map_or(more, |rank| format!(": rank {rank} has the signal"));
    match again {
        false => format!("stopping on {signal}, after the current step{with}{more}"),
        true => format!("{signal} again: the training is ended at once{without}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_says_what_comes_of_it() {
        let first = words_of_stop(None, "SIGINT", false, true);
        let expected = "stopping on SIGINT, after the current step, with a checkpoint; once more ends the training at once";
        assert_eq!(first, expected);
        let of_rank = words_of_stop(Some(1), "SIGUSR1", false, true);
        assert!(
            of_rank.ends_with(", with a checkpoint: rank 1 has the signal"),
            "{of_rank}"
        );
        let again = words_of_stop(None, "SIGINT", true, true);
        let expected = "SIGINT again: the training is ended at once, and steps since the newest checkpoint are lost";
        assert_eq!(again, expected);
        for again in [false, true] {
            let of_finder = words_of_stop(None, "SIGTERM", again, false);
            assert!(!of_finder.contains("checkpoint"), "{of_finder}");
        }
    }

    #[test]
    fn a_run_whose_folder_was_removed_while_it_ran_can_be_resumed() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunDirectory::create(folder.path().join("a")).unwrap();
        let config = RunConfig {
            model: "mlp".to_owned(),
            ..RunConfig::default()
        };
        write_lost_config(&run, &config);
        assert!(!run.config_path().exists(), "there is nothing to resume");
        std::fs::create_dir_all(run.checkpoints().join("epoch-0001")).unwrap();
        write_lost_config(&run, &config);
        assert_eq!(run.read_config::<RunConfig>().unwrap(), config);
        // What is there stays.
        write_lost_config(&run, &RunConfig::default());
        assert_eq!(run.read_config::<RunConfig>().unwrap(), config);
    }

    #[test]
    fn a_run_whose_disk_is_full_says_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunDirectory::create(folder.path().join("my run")).unwrap();
        let path = run.report_path();
        let reason = "No space left on device (os error 28)".to_owned();
        let full = || {
            CliError::Train(TrainError::Write {
                path: path.clone(),
                reason: reason.clone(),
            })
        };
        let help = || {
            let error = with_continuation(full(), &run);
            miette::Diagnostic::help(&error).unwrap().to_string()
        };
        let anew = help();
        assert!(
            anew.contains("permission) or name a --run-dir on another disk"),
            "{anew}"
        );
        std::fs::create_dir_all(run.checkpoints().join("epoch-0001")).unwrap();
        let resumed = help();
        let command = format!(
            "train --resume --run-dir '{}'` continues",
            run.path().display()
        );
        assert!(
            resumed.starts_with("when its files can be written (room, permission), `"),
            "{resumed}"
        );
        assert!(resumed.contains(&command), "{resumed}");
        assert!(resumed.contains("copy '"), "{resumed}");
    }
}
