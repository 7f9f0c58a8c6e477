//! What is done before a training starts: its folder, its data, what its ranks are started with.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::prelude::*;
use everburn_launch::{LaunchConfig, RankEnvironment};
use everburn_record::sync::lock;
use everburn_record::units::counted;
use everburn_record::{Live, RUNS, folder_of_machine};
use everburn_train::{ConfiguredTask, LoadedData, StateHashes};

use super::earlier_run::{EarlierRun, Prepared, Replaced};
use super::resume::{announce_changes, check_same_weights};
use super::run_in_use::{refuse_run_in_use, started_twice};
use crate::arguments::{RankFlags, TrainArguments};
use crate::config::{RunConfig, key_of};
use crate::error::CliError;
use crate::trained::{decided_otherwise, require_settings_of_run};
use crate::{
    devices, gradient_backend, launching, mesh, model_parallel, monitor, recording, weights,
};

/// What every rank is started with: the resolved configuration, and nothing that could resolve to
/// something else.
pub(super) fn rank_arguments(
    run: &RunDirectory,
    arguments: &TrainArguments,
) -> Vec<std::ffi::OsString> {
    let mut list = vec![
        "train".into(),
        "--config".into(),
        run.config_path().into(),
        "--run-dir".into(),
        run.path().into(),
    ];
    list.extend(arguments.resume.then(|| "--resume".into()));
    list.extend(arguments.profile.then(|| "--profile".into()));
    let finder = arguments.finders.wanted();
    list.extend(finder.map(|finder| finder.flag().into()));
    if let Some(folder) = &arguments.kernels.kernel_cache {
        list.extend(["--kernel-cache".into(), folder.into()]);
    }
    let plain = arguments.ranks.no_dashboard;
    list.extend(plain.then(|| "--no-dashboard".into()));
    list
}

/// The run directory, with the resolved configuration in it. Machines that share a disk must not
/// share a folder: machine 1 records in `<folder>-node-1`.
pub(crate) fn prepare_run_directory(
    config: &RunConfig,
    arguments: &TrainArguments,
    replaced: &Replaced,
) -> Result<Prepared, CliError> {
    let path = match &arguments.run_dir {
        Some(path) => path.clone(),
        None => claim_first_free(&config.model)?,
    };
    let path = folder_of_machine(&path, arguments.ranks.node_rank.unwrap_or(0));
    // A signal that comes meanwhile waits: the thread that obeys it brings the earlier run back.
    let mut replacing = lock(&replaced.0);
    let mut earlier = None;
    if !arguments.resume
        && let Some(aside) =
            RunDirectory::move_aside(&path).map_err(|error| started_twice(error, arguments))?
    {
        say!(
            "{} contained a run, which is now in {}",
            path.display(),
            aside.display()
        );
        earlier = Some(EarlierRun::Aside(aside));
    }
    let run = RunDirectory::create(path)?;
    let held = run
        .lock()
        .map_err(|error| started_twice(error, arguments))?;
    let mut changes = Vec::new();
    // Machine 1 may be new to the run.
    if arguments.resume && run.config_path().is_file() {
        if let Some((_, text)) = Live::cut_off_in(run.path()) {
            say!("{text}");
        }
        changes = announce_changes(&run, config)?;
        earlier = EarlierRun::resumed(&run);
    }
    let written = run.write_config(config);
    recording::write_environment(&run, arguments.resume.then_some(changes));
    *replacing = earlier.map(|earlier| (earlier, run.clone()));
    drop(replacing);
    let prepared = Prepared {
        run,
        _lock: held,
        replaced: replaced.clone(),
    };
    written?;
    Ok(prepared)
}

/// Refuses weights that a new training would move aside with the run that has them.
fn refuse_weights_of_the_same_run(arguments: &TrainArguments) -> Result<(), CliError> {
    let (Some(weights), Some(run)) = (&arguments.init_from, &arguments.run_dir) else {
        return Ok(());
    };
    let (Ok(within), Ok(folder)) = (weights.canonicalize(), run.canonicalize()) else {
        return Ok(());
    };
    if arguments.resume || !within.starts_with(&folder) {
        return Ok(());
    }
    Err(CliError::usage_with_help(
        format!(
            "--init-from {} is in the folder of the new run, {}, whose contents are moved aside",
            weights.display(),
            run.display()
        ),
        "name another --run-dir for the new run; to continue the run that is there, use --resume in place of --init-from",
    ))
}

/// Makes the first `runs/<model>-<number>` that nobody else has made.
pub(crate) fn claim_first_free(model: &str) -> Result<PathBuf, CliError> {
    let failed = |path: &Path, error: &std::io::Error| {
        let error = everburn_record::file::with_hint(error, "--run-dir");
        CliError::usage(format!("{} cannot be made: {error}", path.display()))
    };
    let runs = Path::new(RUNS);
    std::fs::create_dir_all(runs).map_err(|error| failed(runs, &error))?;
    let mut number = 1;
    loop {
        let path = runs.join(format!("{model}-{number}"));
        match std::fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => number += 1,
            Err(error) => return Err(failed(&path, &error)),
        }
    }
}

/// Reads the task's data, which decide settings that were left open. `is_checked` if the launcher has found that they decide
/// none otherwise.
pub(super) fn load_data(
    config: &mut RunConfig,
    arguments: &TrainArguments,
    task: &mut dyn ConfiguredTask,
    is_checked: bool,
) -> Result<LoadedData, CliError> {
    if !is_checked && !arguments.resume {
        weights::check_sizes(config)?;
    }
    let before = task.agreed_settings()?;
    let resumed = arguments.run_dir.as_deref().filter(|_| arguments.resume);
    let loaded = task.load().map_err(|error| match resumed {
        Some(run) => config.help_to_resume(error, run),
        None => config.help_to_name_data(error),
    })?;
    if !is_checked {
        let now = task.agreed_settings()?;
        check_decided(arguments, &before, &now)?;
        if config.init_from.is_some() && !arguments.resume {
            weights::check_vocabulary(&before, &now)?;
        }
    }
    resolve_data(config, &*task, &loaded)?;
    Ok(loaded)
}

/// Fixes what the data decide, so that the configuration that is written says it.
fn resolve_data(
    config: &mut RunConfig,
    task: &dyn ConfiguredTask,
    loaded: &LoadedData,
) -> Result<(), CliError> {
    config.sections = task.sections()?;
    let (train, own) = (loaded.train_len, loaded.validation_len);
    config.training.check_validation(train, own)?;
    config.training.check_test(loaded.test_len)?;
    if own.is_none() {
        let held_out = config.training.held_out_of(train);
        config.training.validation_samples = Some(held_out);
    }
    Ok(())
}

/// Refuses data that decide a setting otherwise than the run that is resumed, or `--set`, says. `before` and `now` are the
/// settings before and after the data were read.
fn check_decided(
    arguments: &TrainArguments,
    before: &BTreeMap<String, String>,
    now: &BTreeMap<String, String>,
) -> Result<(), CliError> {
    if arguments.resume {
        return require_settings_of_run(before, now);
    }
    for assignment in arguments.set.iter().rev() {
        let path = key_of(assignment);
        if let Some(value) = decided_otherwise(path, before, now) {
            return Err(CliError::usage_with_help(
                format!("--set {assignment}: the data decide {path}: {value}"),
                "leave it out, or name other data",
            ));
        }
    }
    Ok(())
}

/// Says which data there are, and how many of them are held out. Returns how many there are to learn from.
pub(super) fn announce(config: &RunConfig, loaded: &LoadedData) -> usize {
    say!("data: {}", loaded.description);
    let held_out = loaded.held_out(&config.training);
    let samples = loaded.train_len.saturating_sub(held_out);
    if held_out > 0 {
        say!("validation: {held_out} of the training samples");
    }
    warn_of_few_steps(config, samples);
    samples
}

/// Where a rank records, if it does: in what our launcher has prepared, or in what it prepares itself. What keeps it from
/// that is an error of all ranks, once they have met.
#[allow(clippy::type_complexity, reason = "a pair, taken apart at once")]
pub(super) fn run_of_rank(
    config: &RunConfig,
    arguments: &TrainArguments,
    environment: &RankEnvironment,
    loaded: &LoadedData,
    replaced: &Replaced,
) -> Result<(Option<RunDirectory>, Result<Option<Prepared>, CliError>), CliError> {
    // Any rank of an elastic job may become the first.
    if environment.rank != 0 && config.ranks.elastic.is_none() {
        return Ok((None, Ok(None)));
    }
    if let (Some(path), Some(_)) = (&arguments.run_dir, environment.launcher_pid) {
        return Ok((Some(RunDirectory::open(path)?), Ok(None)));
    }
    let prepared = announce_as_rank(config, arguments, loaded)
        .and_then(|()| prepare_run_directory(config, arguments, replaced));
    let run = prepared.as_ref().ok().map(|prepared| prepared.run.clone());
    Ok((run, prepared.map(Some)))
}

/// What our launcher says before it starts ranks.
fn announce_as_rank(
    config: &RunConfig,
    arguments: &TrainArguments,
    loaded: &LoadedData,
) -> Result<(), CliError> {
    if arguments.resume {
        check_same_weights(arguments)?;
        announce(config, loaded);
        return Ok(());
    }
    weights::check_tokenizer(config, arguments)?;
    announce(config, loaded);
    if let Some(line) = weights::check(config)? {
        say!("{line}");
    }
    Ok(())
}

/// Says that a training ends before `training.steps`, with the last epoch.
fn warn_of_few_steps(config: &RunConfig, samples: usize) {
    let (total, epochs) = (config.training.total_steps(samples), config.training.epochs);
    if let Some(steps) = config.training.steps.filter(|steps| *steps > total) {
        tracing::warn!(
            "the training ends after {}, those of {}, before --steps {steps}: more need more --epochs",
            counted(total, "step"),
            counted(epochs, "epoch")
        );
    }
    let batch_size = config.training.batch_size;
    if samples > 0 && samples < batch_size {
        tracing::warn!(
            "a step has {}, all that there are, and not the --batch-size {batch_size}; each epoch is one step: a smaller \
             --batch-size makes more",
            counted(samples, "sample")
        );
    }
}

/// Finds what is wrong with flags, devices and paths before anything is started, written or moved; and what the launcher
/// would do.
pub(super) fn check(
    config: &RunConfig,
    arguments: &TrainArguments,
) -> Result<LaunchConfig, CliError> {
    refuse_run_in_use(arguments)?;
    monitor::check(arguments)?;
    if let Some(gpus) = devices::check(&config.ranks.devices, config.ranks.ranks)? {
        say!("{gpus}");
    }
    let cores = std::thread::available_parallelism().ok();
    if let Some(cores) = cores.filter(|cores| config.ranks.ranks > cores.get()) {
        tracing::info!(
            "{} on this machine share {}, so each is slower than with a core of its own",
            counted(config.ranks.ranks, "rank"),
            counted(cores.get(), "core")
        );
    }
    gradient_backend::check(config)?;
    model_parallel::check_model(config)?;
    mesh::check(config)?;
    let ranks = RankFlags {
        // A finder prints lines.
        no_dashboard: arguments.ranks.no_dashboard || arguments.finders.wanted().is_some(),
        ..arguments.ranks.clone()
    };
    if let Some(weights) = &arguments.init_from
        && arguments.ranks.node_rank.unwrap_or(0) == 0
        // A resume has its checkpoint.
        && !arguments.resume
        && !weights.exists()
    {
        return Err(CliError::usage_with_help(
            format!(
                "--init-from {}: there is no such file or folder",
                weights.display()
            ),
            "name a state dict, the folder of a run, or one of Hugging Face's transformers",
        ));
    }
    refuse_weights_of_the_same_run(arguments)?;
    let may_record = arguments.ranks.node_rank.unwrap_or(0) == 0 || config.ranks.elastic.is_some();
    if let Some(path) = config.training.hash_key.as_ref().filter(|_| may_record) {
        StateHashes::read_key(path)?;
    }
    launching::plan(&config.ranks, &ranks, arguments.keys.has("ranks.nodes"))
}
