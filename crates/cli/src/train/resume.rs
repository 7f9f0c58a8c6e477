//! What a resume needs: a checkpoint that fits, and the weights that the run began with.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::prelude::*;
use burn::prelude::Device;
use everburn_record::plain::word;
use everburn_train::checkpoint::{CheckpointFolder, Progress};
use everburn_train::{
    ConfiguredTask, LoadedData, Patterns, parameter_differences, renderer, settings_by_path,
};
use toml::Table;

use super::choose_display;
use super::required_checkpoints::require_checkpoints;
use super::run_in_use::started_twice;
use crate::arguments::TrainArguments;
use crate::config::{RunConfig, first_weights};
use crate::error::CliError;
use crate::summary::print_report;
use crate::trained::newest_progress;

/// Checks that there is a checkpoint and that it belongs to this configuration.
pub(super) fn check_resume(
    config: &RunConfig,
    arguments: &TrainArguments,
    task: &dyn ConfiguredTask,
    loaded: &LoadedData,
) -> Result<(), CliError> {
    if arguments.ranks.node_rank.unwrap_or(0) > 0 {
        return Ok(()); // the checkpoints are on machine 0
    }
    let run = RunDirectory::open(arguments.run_dir.clone().unwrap_or_default())?;
    // The checkpoints of a run that is under way come and go.
    drop(
        run.lock()
            .map_err(|error| started_twice(error, arguments))?,
    );
    check_same_weights(arguments)?;
    let training = &config.training;
    require_checkpoints(&run)?;
    let newest =
        CheckpointFolder::new(run.checkpoints(), training.keep_checkpoints).load_newest()?;
    if choose_display(arguments) == renderer::Display::Dashboard {
        // Elsewhere the rank that resumes says so; its messages are not seen below a dashboard.
        for refused in &newest.refused {
            say!("passed over: {refused}");
        }
    }
    let samples = loaded.train_len;
    let samples = samples.saturating_sub(loaded.held_out(training));
    let model = task.model(&Device::default())?;
    let here = Progress {
        own_optimizer: task.optimizer(&model)?.is_some(),
        own_schedule: task.schedule(training.total_steps(samples))?.is_some(),
        ..Progress::start(&config.model, training, samples)
    };
    let fits = here.fits(&newest.checkpoint.progress);
    let refused = |reason| TrainError::Checkpoint {
        path: newest.path.clone(),
        reason,
    };
    fits.map_err(refused)?;
    // Factors of LoRA are beside the model.
    let whole = training.lora.is_none();
    let differences = parameter_differences(&model, &newest.checkpoint, whole)?;
    if differences.is_empty() {
        return Ok(());
    }
    let mut changes = changes_since(&run, config)?;
    changes.retain(|change| !change.starts_with("training."));
    let changes = match changes.is_empty() {
        true => {
            "No setting differs from the run: the code of the model has changed. Restore that code to resume".to_string()
        }
        false => format!(
            "These settings differ from the run: {}. Resume with those of the run",
            changes.join(", ")
        ),
    };
    Err(refused(format!(
        "it is of another model:{differences}\n{changes}. A model of another shape needs a new run: \
         without --resume, with another --run-dir, --init-from {} for the weights that fit and --init-skip for \
         the others",
        word(run.path())
    ))
    .into())
}

/// Whether the run that is to be resumed has finished, and no more steps are wanted than it has made. It then says what
/// came of it, and which settings have no effect; its files stay as they are.
pub(super) fn is_finished(
    config: &RunConfig,
    arguments: &TrainArguments,
    samples: usize,
) -> Result<bool, CliError> {
    // Other machines than the first have no files of the run, and wait for all.
    if config.ranks.nodes > 1 || arguments.finders.wanted().is_some() {
        return Ok(false);
    }
    let run = arguments.run_dir.as_ref();
    let Some(run) = run.and_then(|path| RunDirectory::open(path).ok()) else {
        return Ok(false);
    };
    let report = run.read_report().ok();
    let Some(report) = report.filter(|report| report.finished && run.model_path().exists()) else {
        return Ok(false);
    };
    // The checkpoint of its end may have found no room: it is made again.
    let has_end = newest_progress(&run).is_some_and(|newest| newest.step >= report.steps);
    let wanted = config.training.total_steps(samples);
    let Some(why) = config
        .training
        .nothing_left(report.steps, wanted)
        .filter(|_| has_end)
    else {
        return Ok(false);
    };
    let changes = changes_since(&run, config)?;
    let unused = match changes.is_empty() {
        true => String::new(),
        false => format!("; these settings have no effect: {}", changes.join(", ")),
    };
    tracing::warn!("{why}{unused}");
    print_report(&report, Some(&run));
    Ok(true)
}

/// Refuses --init-from and --init-skip that say something else than the run began with: a resume continues with its
/// checkpoint. The weights need not be there any more.
pub(super) fn check_same_weights(arguments: &TrainArguments) -> Result<(), CliError> {
    let named = arguments.init_from.is_some() || !arguments.init_skip.is_empty();
    let run = RunDirectory::open(arguments.run_dir.clone().unwrap_or_default())?;
    if !named || !run.config_path().is_file() {
        return Ok(());
    }
    let before = run.read_config::<RunConfig>()?;
    let (run, weights) = (run.path().display(), word(run.path()));
    let other_weights = match &arguments.init_from {
        Some(named) if !is_begun_with(before.init_from.as_deref(), named)? => Some(named),
        _ => None,
    };
    let skip = &arguments.init_skip;
    let other_skip = !skip.is_empty() && Patterns::from(skip.clone()) != before.init_skip;
    let (flag, began) = match other_weights {
        Some(named) => {
            let began = before
                .init_from
                .map_or("no pretrained weights".to_owned(), |path| {
                    path.display().to_string()
                });
            (format!("--init-from {}", named.display()), began)
        }
        None if other_skip => {
            let skipped: Vec<&str> = before.init_skip.iter().collect();
            let began = match skipped.as_slice() {
                [] => "no --init-skip".to_owned(),
                some => format!("--init-skip {}", some.join(" ")),
            };
            (format!("--init-skip {}", skip.join(" ")), began)
        }
        None => return Ok(()),
    };
    Err(CliError::usage_with_help(
        format!(
            "{flag} has no effect on a resume: the run in {run} began with {began} and continues with its checkpoint"
        ),
        format!(
            "to continue, leave it out; for a new run that begins with other weights, leave out --resume, name another \
             --run-dir, and add --init-from, as in --init-from {weights}"
        ),
    ))
}

/// Whether a run `began` with the weights that are `named` now. Of a file that is gone nothing shows any more whether its
/// folder was read.
fn is_begun_with(began: Option<&Path>, named: &Path) -> Result<bool, CliError> {
    let now = first_weights(named)?;
    let Some(began) = began else {
        return Ok(false);
    };
    let of_folder = || now.parent() == Some(began) || began.parent() == Some(&*now);
    Ok(now == began || !now.exists() && of_folder())
}

/// The settings that are others than in the run, whose `config.toml` may be lost.
fn changes_since(run: &RunDirectory, config: &RunConfig) -> Result<Vec<String>, CliError> {
    match run.config_path().is_file() {
        true => changed_settings(run, config),
        false => Ok(Vec::new()),
    }
}

/// The settings that are others than in the run. Of those of ranks only the number of machines is named.
pub(crate) fn changed_settings(
    run: &RunDirectory,
    config: &RunConfig,
) -> Result<Vec<String>, CliError> {
    let in_words = |config: &RunConfig| -> Result<BTreeMap<String, String>, CliError> {
        let mut table =
            Table::try_from(config).map_err(|error| CliError::usage(error.to_string()))?;
        table.remove("ranks");
        let mut settings = settings_by_path(&table);
        settings.insert("ranks.nodes".to_owned(), config.ranks.nodes.to_string());
        Ok(settings)
    };
    let (before, now) = (
        in_words(&run.read_config::<RunConfig>()?)?,
        in_words(config)?,
    );
    let paths = before.keys().chain(now.keys()).collect::<BTreeSet<_>>();
    let changes = paths.into_iter().filter_map(|path| {
        let [before, now] = [before.get(path), now.get(path)];
        let shown = |value: Option<&String>| value.map_or("unset", String::as_str).to_string();
        (before != now).then(|| format!("{path} = {} (was {})", shown(now), shown(before)))
    });
    Ok(changes.collect())
}

/// Says which settings this resume changes, and warns of those with which the model has learnt. Returns all of them.
pub(super) fn announce_changes(
    run: &RunDirectory,
    config: &RunConfig,
) -> Result<Vec<String>, CliError> {
    let mut changes = changed_settings(run, config)?;
    let earlier = run.read_config::<RunConfig>()?;
    let (before, now) = (earlier.world_size(), config.world_size());
    changes.extend((before != now).then(|| format!("ranks = {now} (was {before})")));
    let mut own = own_settings(config)?;
    // What an older version of the task had, and this one has not, is none of its settings.
    own.extend(own_settings(&earlier).unwrap_or_default());
    let is_own = |change: &&String| {
        let path = change.split(" = ").next();
        path.is_some_and(|path| own.contains(path))
    };
    let (of_task, others): (Vec<&String>, Vec<&String>) = changes.iter().partition(is_own);
    let listed = |changes: &[&String]| {
        let changes: Vec<&str> = changes.iter().map(|change| change.as_str()).collect();
        changes.join(", ")
    };
    if !others.is_empty() {
        say!("changed by this resume: {}", listed(&others));
    }
    if !of_task.is_empty() {
        tracing::warn!(
            "changed by this resume: {}; the model has learnt with the settings of the run",
            listed(&of_task)
        );
    }
    Ok(changes)
}

/// The paths of the settings of the task and its data, but for those of where the data are.
fn own_settings(config: &RunConfig) -> Result<BTreeSet<String>, CliError> {
    Ok(config.task()?.agreed_settings()?.into_keys().collect())
}
