//! `everburn eval`

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use everburn_launch::{LaunchConfig, RankEnvironment};
use everburn_record::numbers_or_nan;
use everburn_record::units::counted;
use everburn_train::DataFingerprint;
use serde::{Deserialize, Serialize};

use crate::config::RunConfig;
use crate::error::CliError;
use crate::files;
use crate::launching::Work;
use crate::prelude::*;
use crate::summary::tested;
use crate::trained::{Opened, Samples, TrainedFlags, TrainedRank, progress_at, remove_stale};

#[derive(Debug, Clone, Args)]
pub(crate) struct EvalArguments {
    /// Print the result as JSON.
    #[arg(long)]
    pub(crate) json: bool,

    /// The file in which rank 0 passes its result to the launcher.
    #[arg(long, hide = true, value_name = "FILE")]
    pub(crate) result_file: Option<PathBuf>,

    // Last: its headings are those of all that follows.
    #[command(flatten)]
    pub(crate) trained: TrainedFlags,
}

/// The result of an evaluation, as `--json` prints it.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Evaluation {
    model: String,
    dataset: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    test_accuracy: Option<f64>,
    test_loss: f64,
    #[serde(
        default,
        deserialize_with = "numbers_or_nan",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    test_metrics: BTreeMap<String, f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    test_correct: Option<u64>,
    test_samples: u64,
    test_predictions: u64,
    world_size: usize,
    data: String,
    /// Samples may be tested that the training learned from.
    data_changed: bool,
    /// The checkpoint that was tested in the place of the trained model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    checkpoint: Option<TestedCheckpoint>,
}

/// What `--checkpoint` has chosen.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct TestedCheckpoint {
    /// Of its folder.
    name: String,
    /// How many epochs were finished.
    epoch: usize,
    /// How many steps had been made.
    step: usize,
    /// The metric of the validation by which `best` is the best.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    best_by: Option<String>,
}

impl TestedCheckpoint {
    /// The checkpoint that `flags` choose. From here on they name it: a run that continues may soon have another best one.
    fn settle(flags: &mut TrainedFlags, run: &RunDirectory) -> Result<Option<Self>, CliError> {
        let Some(which) = flags.checkpoint.as_deref() else {
            return Ok(None);
        };
        // One that cannot be read is refused when it is loaded.
        let Some(progress) = progress_at(run, which)? else {
            return Ok(None);
        };
        let chosen = Self {
            name: progress.place().to_string(),
            epoch: progress.epoch,
            step: progress.step,
            best_by: (which == "best").then(|| progress.best_by.to_string()),
        };
        flags.checkpoint = Some(chosen.name.clone());
        Ok(Some(chosen))
    }

    fn in_words(&self) -> String {
        let Self {
            name, epoch, step, ..
        } = self;
        let best = match &self.best_by {
            Some(metric) => format!(", the best by {metric} of the validation"),
            None => String::new(),
        };
        format!(
            "{name}: after {} and {}{best}",
            counted(*epoch, "epoch"),
            counted(*step, "step")
        )
    }
}

/// Evaluates a run's model, as a rank, as the only rank, or by launching ranks.
pub(crate) fn run(
    arguments: &EvalArguments,
    environment: Option<&RankEnvironment>,
) -> Result<ExitCode, CliError> {
    let Opened {
        run,
        config,
        fingerprint,
        launch: plan,
    } = arguments.trained.open(environment, arguments.json)?;
    if let Some(plan) = plan {
        return launch(arguments, &run, plan);
    }
    let Some(evaluation) = evaluate(arguments, (&config, fingerprint), &run, environment)? else {
        return Ok(ExitCode::SUCCESS); // not rank 0
    };
    match &arguments.result_file {
        Some(path) => write_result(path, &evaluation)?,
        None => evaluation.print(arguments.json),
    }
    Ok(ExitCode::SUCCESS)
}

/// Rank 0 writes the result to a file, and the launcher prints it.
fn launch(
    arguments: &EvalArguments,
    run: &RunDirectory,
    plan: LaunchConfig,
) -> Result<ExitCode, CliError> {
    let logs = run.logs().join("eval");
    let result = logs.join("result.json");
    remove_stale(&result);
    let own = vec!["--result-file".into(), result.clone().into()];
    let (code, shows) = arguments.trained.launch(plan, Work::Eval, own, logs)?;
    if shows {
        read_result(&result)?.print(arguments.json);
    }
    Ok(code)
}

fn write_result(path: &Path, evaluation: &Evaluation) -> Result<(), CliError> {
    let text = serde_json::to_string(evaluation).map_err(|e| CliError::usage(e.to_string()))?;
    let written = files::create(path).and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| CliError::usage(format!("writing {} failed: {error}", path.display())))
}

fn read_result(path: &Path) -> Result<Evaluation, CliError> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| CliError::usage(format!("rank 0 left no result: {error}")))?;
    serde_json::from_str(&text).map_err(|e| CliError::usage(e.to_string()))
}

/// The result, on rank 0.
fn evaluate(
    arguments: &EvalArguments,
    (config, fingerprint): (&RunConfig, Option<DataFingerprint>),
    run: &RunDirectory,
    environment: Option<&RankEnvironment>,
) -> Result<Option<Evaluation>, CliError> {
    let samples = Samples::of(fingerprint);
    let own = match &samples {
        Samples::Other(own) => own.clone(),
        _ => DataFingerprint::default(),
    };
    let of_run = samples == Samples::Run;
    let rank = TrainedRank::join(config, samples, environment)?;
    let is_of_run =
        of_run || (!own.is_empty() && own.all == rank.loaded.for_training().fingerprint.all);
    let may_overlap = is_of_run || rank.parts_others;
    let data_changed =
        rank.warn_of_learnt_data(run, &own)? || may_overlap && rank.warn_of_changed_data(run);
    rank.warn_of_changed_settings(run, &arguments.trained)?;
    let (trainer, loaded) = (&rank.trainer, &rank.loaded);
    let data = loaded.for_training();
    let mut flags = arguments.trained.clone();
    let checkpoint = TestedCheckpoint::settle(&mut flags, run)?;
    let sums = rank
        .with_model(run, &flags, |model| trainer.evaluate(model, &data))?
        .ok_or_else(|| CliError::usage("stopped before the end"))?;
    let dataset = rank.name_of_data(run)?;
    let evaluation = (trainer.group.rank() == 0).then(|| Evaluation {
        model: config.model.clone(),
        dataset,
        test_accuracy: sums.accuracy(),
        test_loss: sums.mean_loss(),
        test_metrics: sums.other_means(),
        test_correct: sums.correct(),
        test_samples: sums.samples,
        test_predictions: sums.predictions,
        world_size: trainer.group.world_size(),
        data: loaded.description.clone(),
        data_changed,
        checkpoint,
    });
    trainer.group.clone().destroy()?;
    Ok(evaluation)
}

impl Evaluation {
    fn print(&self, json: bool) {
        if json && let Ok(text) = serde_json::to_string(self) {
            say!("{text}");
            return;
        }
        say!("data: {}", self.data);
        if let Some(checkpoint) = &self.checkpoint {
            say!("checkpoint {}", checkpoint.in_words());
        }
        let counted_correct = |correct| format!(" ({correct} of {})", self.test_predictions);
        say!(
            "{}  {} on {}  {}",
            tested(
                self.test_accuracy,
                &self.test_correct.map(counted_correct).unwrap_or_default(),
                self.test_loss,
                &self.test_metrics
            ),
            self.model,
            self.dataset,
            counted(self.world_size, "rank")
        );
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use clap::Parser;
    use everburn_train::BestEpoch;
    use everburn_train::checkpoint::{Checkpoint, CheckpointFolder, Progress};

    use super::*;
    use crate::arguments::{Arguments, Command};

    fn parsed(words: impl IntoIterator<Item = OsString>) -> EvalArguments {
        match Arguments::parse_from(std::iter::once("everburn".into()).chain(words)).command {
            Command::Eval(arguments) => *arguments,
            other => panic!("no evaluation: {other:?}"),
        }
    }

    #[test]
    fn ranks_are_told_what_their_launcher_was_told() {
        let words = "eval run --data synthetic --data-dir data --train-samples 60 --test-samples 20 --devices \
                     flex,flex --timeout 9 --heartbeat-timeout 7 --backend host --transport tcp --checkpoint 2 --ema \
                     --set flowers.folder=other";
        let ours = parsed(words.split_whitespace().map(Into::into)).trained;
        let theirs = parsed(ours.for_ranks(Work::Eval, Vec::new())).trained;
        let config = |flags: &TrainedFlags| {
            let config = RunConfig::default();
            let config = config.for_evaluation(&flags.keys, &[], &flags.ranks);
            config.unwrap().0
        };
        assert_eq!(config(&theirs), config(&ours));
        assert_ne!(config(&theirs), RunConfig::default());
        assert_eq!(theirs.checkpoint, ours.checkpoint);
        assert_eq!(theirs.ema, ours.ema);
        assert_eq!(theirs.set, ["flowers.folder=other"]);
    }

    #[test]
    fn the_best_checkpoint_of_a_run_that_continues_is_chosen_once() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunDirectory::create(folder.path().join("a")).unwrap();
        let save = |epoch| {
            let best = BestEpoch {
                epoch,
                validation_loss: 0.5,
                value: None,
            };
            let progress = Progress {
                epoch,
                best: Some(best),
                ..Progress::default()
            };
            let checkpoint = Checkpoint {
                progress,
                files: [("scheduler.bpk".to_owned(), vec![1, 2, 3])].into(),
            };
            let checkpoints = CheckpointFolder::new(run.checkpoints(), 2);
            checkpoints.save(&checkpoint).unwrap();
        };
        save(1);
        let words = ["eval", "a", "--checkpoint", "best"];
        let mut flags = parsed(words.map(Into::into)).trained;
        let chosen = TestedCheckpoint::settle(&mut flags, &run).unwrap().unwrap();
        save(2);
        assert_eq!(flags.checkpoint.as_deref(), Some(&*chosen.name));
        let words = chosen.in_words();
        let best = "epoch-0001: after 1 epoch and 0 steps, the best by loss of the validation";
        assert_eq!(words, best);
        let again = TestedCheckpoint::settle(&mut flags, &run).unwrap().unwrap();
        assert_eq!((again.name, again.best_by), (chosen.name, None));
    }
}
