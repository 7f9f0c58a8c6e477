//! `everburn predict`

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use everburn_launch::{LaunchConfig, RankEnvironment};
use everburn_record::units::counted;
use everburn_train::PredictionInput;

use crate::config::RunConfig;
use crate::error::CliError;
use crate::files;
use crate::launching::Work;
use crate::prelude::*;
use crate::trained::{Opened, Samples, TrainedFlags, TrainedRank, remove_stale};

/// Endings of files that promise what is not written.
const OTHER_FORMATS: [&str; 4] = ["csv", "tsv", "parquet", "xlsx"];

#[derive(Debug, Clone, Args)]
pub(crate) struct PredictArguments {
    /// The samples: test, train or validation, or a file or folder that the task reads [default: test].
    #[arg(long, value_name = "WHAT")]
    pub(crate) input: Option<PredictionInput>,

    /// The file for the predictions, one line of JSON per sample. It appears when it is complete [default: standard
    /// output].
    #[arg(long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,

    // Last: its headings are those of all that follows.
    #[command(flatten)]
    pub(crate) trained: TrainedFlags,
}

/// Predicts with a run's model, as a rank, as the only rank, or by launching ranks.
pub(crate) fn run(
    arguments: &PredictArguments,
    environment: Option<&RankEnvironment>,
) -> Result<ExitCode, CliError> {
    let Opened {
        run,
        config,
        fingerprint,
        launch: plan,
    } = arguments.trained.open(environment, true)?;
    if environment.is_none() {
        check(arguments, &config)?;
    }
    if let Some(plan) = plan {
        return launch(arguments, &run, plan);
    }
    // Of other data, all samples are test samples; who asks for another part means that of a training.
    let fingerprint = fingerprint.filter(|_| arguments.input() == PredictionInput::Test);
    let samples = match arguments.input() {
        PredictionInput::File(_) if !arguments.trained.names_data() => Samples::File,
        _ => Samples::of(fingerprint),
    };
    let rank = TrainedRank::join(&config, samples, environment)?;
    rank.warn_of_changed_settings(&run, &arguments.trained)?;
    let predictions = |write: &mut dyn FnMut(&[u8]) -> io::Result<()>| {
        let data = rank.loaded.for_training();
        let input = arguments.input();
        rank.with_model(&run, &arguments.trained, |model| {
            rank.trainer
                .predict(&*rank.task, model, &data, &input, write)
        })
    };
    match arguments
        .output
        .as_deref()
        .filter(|_| rank.trainer.group.rank() == 0)
    {
        Some(output) => write_to(output, predictions)?,
        // A closed pipe (`| head`) must not keep the other ranks waiting.
        None => drop(predictions(&mut |lines| {
            let _ = io::stdout().write_all(lines);
            Ok(())
        })?),
    }
    rank.trainer.group.clone().destroy()?;
    if environment.is_none() {
        arguments.report();
    }
    Ok(ExitCode::SUCCESS)
}

/// Checks the arguments before a rank is started.
fn check(arguments: &PredictArguments, config: &RunConfig) -> Result<(), CliError> {
    let task = config.task()?;
    if !task.predicts() {
        let help = match task.language() {
            Ok(None) => "implement `Predict` for the task, and `Task::predictor`",
            _ => "`generate` writes text with a language model, and `eval` measures it",
        };
        let what = format!("{} makes no predictions", config.model);
        return Err(CliError::usage_with_help(what, help));
    }
    if let PredictionInput::File(file) = arguments.input()
        && !file.exists()
    {
        return Err(CliError::usage_with_help(
            format!("--input {}: there is no such file", file.display()),
            "--input takes test, train, validation or a file that the task reads",
        ));
    }
    if let PredictionInput::File(folder) = arguments.input()
        && let Some(line) = task.left_out(&folder)
    {
        tracing::warn!("{line}");
    }
    let extension = arguments.output.as_deref().and_then(Path::extension);
    let extension = extension.unwrap_or_default().to_ascii_lowercase();
    if OTHER_FORMATS.iter().any(|other| extension == *other) {
        return Err(CliError::usage_with_help(
            format!(
                "--output: predictions are lines of JSON, not {}",
                extension.display()
            ),
            "name a file like predictions.jsonl; pandas.read_json(FILE, lines=True) reads it",
        ));
    }
    let folder = arguments.output.as_deref().and_then(Path::parent);
    let folder = folder.filter(|folder| !folder.as_os_str().is_empty());
    match folder {
        Some(folder) if !folder.is_dir() => Err(CliError::usage_with_help(
            format!("--output: {} is no folder", folder.display()),
            "make it, or name another file",
        )),
        _ => Ok(()),
    }
}

/// Ranks write their predictions to a file, and the launcher prints it.
fn launch(
    arguments: &PredictArguments,
    run: &RunDirectory,
    plan: LaunchConfig,
) -> Result<ExitCode, CliError> {
    let logs = run.logs().join("predict");
    let kept = logs.join("predictions.jsonl");
    remove_stale(&kept);
    let output = arguments.output.as_ref().unwrap_or(&kept);
    let own = vec![
        "--input".into(),
        arguments.input().to_string().into(),
        "--output".into(),
        output.into(),
    ];
    let (code, shows) = arguments.trained.launch(plan, Work::Predict, own, logs)?;
    if shows {
        match &arguments.output {
            Some(_) => arguments.report(),
            None => print(&kept)?,
        }
    }
    Ok(code)
}

/// Writes `predictions` to `output`, whole or not at all.
fn write_to(
    output: &Path,
    predictions: impl FnOnce(&mut dyn FnMut(&[u8]) -> io::Result<()>) -> Result<usize, CliError>,
) -> Result<(), CliError> {
    let unwritten = |error: &io::Error| TrainError::Write {
        path: output.to_path_buf(),
        reason: files::with_hint(error, "--output"),
    };
    let (mut failed, mut refused) = (None, None);
    let written = files::replace(output, |file| {
        let mut write = |lines: &[u8]| {
            let written = file.write_all(lines);
            written.inspect_err(|error| refused = Some(unwritten(error)))
        };
        let samples = predictions(&mut write).map_err(|error| {
            let cause = io::Error::other(error.to_string());
            failed = Some(error);
            cause
        });
        samples.map(drop)
    });
    match (refused, failed, written) {
        (Some(refused), ..) => Err(refused.into()),
        (None, Some(error), _) => Err(error),
        (None, None, written) => written.map_err(|error| unwritten(&error).into()),
    }
}

fn print(path: &Path) -> Result<(), CliError> {
    let lost = |error| CliError::usage(format!("rank 0 left no predictions: {error}"));
    let mut file = files::open(path).map_err(lost)?;
    // A closed pipe is no error.
    let _ = io::copy(&mut file, &mut io::stdout());
    Ok(())
}

impl PredictArguments {
    fn input(&self) -> PredictionInput {
        self.input.clone().unwrap_or_default()
    }

    /// Prints where the predictions are.
    fn report(&self) {
        let Some(output) = &self.output else { return };
        let lines = files::open(output).map_or(0, |file| {
            let lines = io::BufRead::lines(io::BufReader::new(file));
            lines.count()
        });
        let lines = counted(lines, "prediction");
        say!("{} written: {lines} of {}", output.display(), self.input());
    }
}
