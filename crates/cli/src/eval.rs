//! `everburn eval`

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use crate::devices;
use crate::prelude::*;
use burn::module::Module;
use everburn_launch::RankEnvironment;
use everburn_record::numbers_or_nan;
use everburn_train::checkpoint::{Checkpoint, CheckpointFolder};
use everburn_train::{
    MetricSums, load_averaged, load_safetensors, with_averaged_parameters, with_parameters,
};
use serde::{Deserialize, Serialize};

use crate::arguments::{DataFlags, EvalArguments, RankFlags};
use crate::config::RunConfig;
use crate::error::CliError;
use crate::summary::{counted, tested};
use crate::{files, gradient_exchange, launching, rank};

/// What an evaluation yields, and what `--json` prints.
#[derive(Debug, Serialize, Deserialize)]
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
}

/// Measures a run's model, as a rank, as the only rank, or by launching ranks.
pub(crate) fn run(
    arguments: &EvalArguments,
    environment: Option<&RankEnvironment>,
) -> Result<ExitCode, CliError> {
    let run = RunDirectory::open(&arguments.run_dir)?;
    let config = run.read_config::<RunConfig>()?;
    let config = config.for_evaluation(&arguments.data, &arguments.ranks)?;
    if let Some(environment) = environment {
        rank::limit_threads(environment, &config.ranks)?;
    } else {
        gradient_exchange::check(&config)?;
        if let Some(gpus) = devices::check(&config.ranks.devices, config.ranks.ranks)?
            && !arguments.json
        {
            say!("{gpus}");
        }
        let plan = launching::plan(&config.ranks, &arguments.ranks)?;
        if config.world_size() > 1 {
            return launch(arguments, &run, plan);
        }
        if let Some(threads) = config.ranks.threads_per_rank {
            rank::use_threads(threads)?;
        }
    }
    let Some(evaluation) = evaluate(arguments, &config, &run, environment)? else {
        return Ok(ExitCode::SUCCESS); // not rank 0
    };
    match &arguments.result_file {
        Some(path) => write_result(path, &evaluation)?,
        None => evaluation.print(arguments.json),
    }
    Ok(ExitCode::SUCCESS)
}

/// Ranks leave their result in a file, so that what is printed is the same for any number of them.
fn launch(
    arguments: &EvalArguments,
    run: &RunDirectory,
    mut plan: everburn_launch::LaunchConfig,
) -> Result<ExitCode, CliError> {
    let logs = run.logs().join("eval");
    let result = logs.join("result.json");
    // A result of an earlier evaluation must not be taken for this one's.
    let _ = std::fs::remove_file(&result);
    plan.dashboard = false;
    let outcome = launching::run(plan, rank_arguments(arguments, &result), logs, |_| {})?;
    let code = ExitCode::from(&outcome);
    if code == ExitCode::SUCCESS && arguments.ranks.node_rank.unwrap_or(0) == 0 {
        read_result(&result)?.print(arguments.json);
    }
    Ok(code)
}

fn rank_arguments(arguments: &EvalArguments, result: &Path) -> Vec<OsString> {
    let mut list: Vec<OsString> = vec!["eval".into(), arguments.run_dir.clone().into()];
    let mut flag = |name: &str, value: Option<OsString>| {
        if let Some(value) = value {
            list.extend([name.into(), value]);
        }
    };
    let DataFlags {
        data,
        data_dir,
        train_samples,
        test_samples,
    } = arguments.data.clone();
    let RankFlags {
        gpus,
        devices,
        timeout,
        heartbeat_timeout,
        backend,
        transport,
        // What the launcher does, or says to ranks in their environment.
        ranks: _,
        threads_per_rank: _,
        nodes: _,
        node_rank: _,
        rendezvous: _,
        job_token: _,
        open_store: _,
        // Of no use to a rank that evaluates.
        strategy: _,
        elastic: _,
        max_restarts: _,
        no_dashboard: _,
    } = arguments.ranks.clone();
    flag("--result-file", Some(result.into()));
    flag("--checkpoint", arguments.checkpoint.clone().map(Into::into));
    flag("--data", data.map(Into::into));
    flag("--data-dir", data_dir.map(Into::into));
    flag(
        "--train-samples",
        train_samples.map(|n| n.to_string().into()),
    );
    flag("--test-samples", test_samples.map(|n| n.to_string().into()));
    flag("--gpus", gpus.map(|n| n.to_string().into()));
    flag("--devices", devices.map(|names| names.join(",").into()));
    flag("--timeout", timeout.map(|n| n.to_string().into()));
    flag(
        "--heartbeat-timeout",
        heartbeat_timeout.map(|n| n.to_string().into()),
    );
    flag("--backend", backend.map(|way| way.to_string().into()));
    flag("--transport", transport.map(|kind| kind.to_string().into()));
    list.extend(arguments.ema.then(|| "--ema".into()));
    list
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
    config: &RunConfig,
    run: &RunDirectory,
    environment: Option<&RankEnvironment>,
) -> Result<Option<Evaluation>, CliError> {
    let local_rank = environment.map_or(0, |environment| environment.local_rank);
    let mut task = config.task()?;
    let loaded = task.load()?;
    let (group, watch) = match environment {
        None => (rank::join(None, &config.ranks)?, None),
        Some(environment) => {
            let (group, watch, _store) = rank::join_watched(environment, &config.ranks)?;
            (group, watch)
        }
    };
    let trainer = Trainer {
        evaluation_batch: task.evaluation_batch(),
        device: devices::of_rank(&config.ranks.devices, local_rank)?,
        ..Trainer::new(config.training.clone(), group)
    };
    let which = Which {
        checkpoint: arguments.checkpoint.as_deref(),
        ema: arguments.ema,
    };
    let measure = || -> Result<Option<MetricSums>, CliError> {
        let model = load_parameters(task.model(&trainer.device)?, run, which)?;
        Ok(trainer.evaluate(&model, &loaded.for_training())?)
    };
    let sums = measure()
        .map_err(|error| match environment {
            Some(environment) => rank::report_stall(error, watch.as_ref(), environment, None),
            None => error,
        })?
        .ok_or_else(|| CliError::usage("stopped before the end"))?;
    let evaluation = (trainer.group.rank() == 0).then(|| Evaluation {
        model: config.model.clone(),
        dataset: loaded.name.clone(),
        test_accuracy: sums.accuracy(),
        test_loss: sums.mean_loss(),
        test_metrics: sums.other_means(),
        test_correct: sums.correct(),
        test_samples: sums.samples,
        test_predictions: sums.predictions,
        world_size: trainer.group.world_size(),
        data: loaded.description.clone(),
    });
    trainer.group.destroy()?;
    Ok(evaluation)
}

impl Evaluation {
    fn print(&self, json: bool) {
        if json && let Ok(text) = serde_json::to_string(self) {
            say!("{text}");
            return;
        }
        say!("{}", self.data);
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

/// The checkpoint of an epoch, or of the best epoch.
fn load_checkpoint(run: &RunDirectory, which: &str) -> Result<Checkpoint, CliError> {
    let folder = CheckpointFolder::new(run.checkpoints(), 1);
    let epoch = match which {
        "best" => folder
            .load_newest()?
            .checkpoint
            .progress
            .best
            .map(|best| best.epoch),
        number => number.parse().ok(),
    };
    let epoch = epoch.ok_or_else(|| {
        CliError::usage_with_help(
            format!("there is no checkpoint `{which}`"),
            "--checkpoint takes best (where there was a validation) or the number of an epoch",
        )
    })?;
    Ok(folder.load(epoch)?)
}

/// Which parameters of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Which<'a> {
    /// Those of a checkpoint: `best`, or the number of an epoch; else those of the run's end.
    pub(crate) checkpoint: Option<&'a str>,
    /// The averaged ones.
    pub(crate) ema: bool,
}

/// The model with the parameters of a run's end, or of a checkpoint.
pub(crate) fn load_parameters<M: Module>(
    model: M,
    run: &RunDirectory,
    which: Which<'_>,
) -> Result<M, CliError> {
    Ok(match (which.checkpoint, which.ema) {
        (None, false) => load_safetensors(model, run)?,
        (None, true) => load_averaged(model, run)?,
        (Some(name), false) => with_parameters(model, &load_checkpoint(run, name)?)?,
        (Some(name), true) => with_averaged_parameters(model, &load_checkpoint(run, name)?)?,
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

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
                     flex,flex --timeout 9 --heartbeat-timeout 7 --backend host --transport tcp --checkpoint 2 --ema";
        let ours = parsed(words.split_whitespace().map(Into::into));
        let theirs = parsed(rank_arguments(&ours, Path::new("result.json")));
        let config = |arguments: &EvalArguments| {
            let config = RunConfig::default();
            let config = config.for_evaluation(&arguments.data, &arguments.ranks);
            config.unwrap()
        };
        assert_eq!(config(&theirs), config(&ours));
        assert_ne!(config(&theirs), RunConfig::default());
        assert_eq!(theirs.checkpoint, ours.checkpoint);
        assert_eq!(theirs.ema, ours.ema);
    }
}
