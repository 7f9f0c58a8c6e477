//! `everburn train`

use std::fmt::Display;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use everburn::burn::module::Module;
use everburn::prelude::*;
use everburn::train::StopSignal;
use everburn::train::renderer;
use everburn_datasets::LoadedData;
use everburn_launch::{RankEnvironment, StopRequest};
use everburn_models::registry::{self, Forward, Init, ModelInfo, ModelVisitor};

use crate::arguments::TrainArguments;
use crate::config::RunConfig;
use crate::error::{CliError, EXIT_INTERRUPTED};
use crate::{data, devices, launching, rank};

/// Trains, as a rank, as the only rank, or by launching ranks.
pub(crate) fn run(
    arguments: &TrainArguments,
    environment: Option<&RankEnvironment>,
) -> Result<ExitCode, CliError> {
    let mut config = RunConfig::resolve(arguments)?;
    if let Some(environment) = environment {
        return train_as_rank(config, arguments, Some(environment));
    }
    // Whatever can be wrong is found here, before anything is started or moved.
    devices::check(&config.ranks.devices, config.ranks.ranks)?;
    let loaded = data::load(&config.data)?;
    println!("{}", loaded.description);
    data::pin(&mut config.data, &loaded.description);
    if config.world_size() == 1 {
        return train_alone(config, arguments, &loaded);
    }
    drop(loaded);
    let run = prepare_run_directory(&config, arguments)?;
    let ranks_arguments = rank_arguments(&run, arguments);
    launching::run(&config.ranks, &arguments.ranks, ranks_arguments, run.logs())
}

/// What every rank is started with: the resolved configuration, and nothing that could resolve to
/// something else.
fn rank_arguments(run: &RunDirectory, arguments: &TrainArguments) -> Vec<std::ffi::OsString> {
    let mut list = vec![
        "train".into(),
        "--config".into(),
        run.config_path().into(),
        "--run-dir".into(),
        run.path().into(),
    ];
    list.extend(arguments.resume.then(|| "--resume".into()));
    list.extend(
        arguments
            .ranks
            .no_dashboard
            .then(|| "--no-dashboard".into()),
    );
    list
}

/// The run directory, with the resolved configuration in it.
fn prepare_run_directory(
    config: &RunConfig,
    arguments: &TrainArguments,
) -> Result<RunDirectory, CliError> {
    let path = arguments
        .run_dir
        .clone()
        .unwrap_or_else(|| first_free(&config.model));
    if !arguments.resume
        && let Some(aside) = RunDirectory::move_aside(&path)?
    {
        println!(
            "{} had a run in it: moved to {}",
            path.display(),
            aside.display()
        );
    }
    let run = RunDirectory::create(path)?;
    run.write_config(config)?;
    Ok(run)
}

/// `runs/<model>-<number>`
fn first_free(model: &str) -> PathBuf {
    (1..)
        .map(|number| Path::new("runs").join(format!("{model}-{number}")))
        .find(|path| !path.exists())
        .unwrap_or_else(|| Path::new("runs").join(model))
}

fn train_alone(
    config: RunConfig,
    arguments: &TrainArguments,
    loaded: &LoadedData,
) -> Result<ExitCode, CliError> {
    if let Some(threads) = config.ranks.threads_per_rank {
        rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build_global()
            .map_err(|error| CliError::usage(format!("--threads-per-rank {threads}: {error}")))?;
    }
    let run = prepare_run_directory(&config, arguments)?;
    train(config, arguments, loaded, Some(run), None)
}

fn train_as_rank(
    mut config: RunConfig,
    arguments: &TrainArguments,
    environment: Option<&RankEnvironment>,
) -> Result<ExitCode, CliError> {
    let loaded = data::load(&config.data)?;
    data::pin(&mut config.data, &loaded.description);
    let is_first = environment.is_none_or(|environment| environment.rank == 0);
    let ours = environment.is_some_and(|environment| environment.launcher_pid.is_some());
    let run = match (&arguments.run_dir, is_first) {
        (_, false) => None,
        (Some(path), true) if ours => Some(RunDirectory::open(path)?),
        (_, true) => {
            println!("{}", loaded.description);
            Some(prepare_run_directory(&config, arguments)?)
        }
    };
    train(config, arguments, &loaded, run, environment)
}

fn train(
    config: RunConfig,
    arguments: &TrainArguments,
    loaded: &LoadedData,
    run: Option<RunDirectory>,
    environment: Option<&RankEnvironment>,
) -> Result<ExitCode, CliError> {
    let stop = StopRequest::listen(environment.is_some())
        .map_err(|error| CliError::usage(format!("signals cannot be listened for: {error}")))?;
    let local_rank = environment.map_or(0, |environment| environment.local_rank);
    let device = devices::of_rank(&config.ranks.devices, local_rank)?;
    let group = rank::join(environment, Duration::from_secs(config.ranks.timeout))?;
    let on_terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    let trainer = Trainer {
        device,
        run,
        resume: arguments.resume,
        display: if on_terminal && !arguments.ranks.no_dashboard {
            renderer::Display::Dashboard
        } else {
            renderer::Display::Lines
        },
        stop: StopSignal::from_flag(stop.flag()),
        model_name: config.model.clone(),
        ..Trainer::new(config.training, group)
    };
    let report = registry::visit(
        &config.model,
        Train {
            trainer: &trainer,
            loaded,
        },
    )
    .ok_or(CliError::NoModel)??;
    if trainer.group.rank() == 0 {
        print_report(&report, trainer.run.as_ref());
    }
    let interrupted = report.test_accuracy.is_none();
    let alone = environment.is_none();
    trainer.group.destroy()?;
    // Under a launcher it is the launcher's exit code that tells of an interruption.
    Ok(if interrupted && alone {
        EXIT_INTERRUPTED.into()
    } else {
        ExitCode::SUCCESS
    })
}

fn print_report(report: &TrainingReport, run: Option<&RunDirectory>) {
    if let Some(stopped) = &report.stopped {
        println!("stopped {stopped}");
    }
    let result = match (report.test_accuracy, report.test_loss) {
        (Some(accuracy), Some(loss)) => {
            format!("test accuracy {:.2} %  loss {loss:.4}  ", 100.0 * accuracy)
        }
        _ => String::new(),
    };
    println!(
        "{result}{} on {}  {} epochs  {} steps  {} ranks  {:.0} samples/s  {:.1} s",
        report.model,
        report.dataset,
        report.epochs,
        report.steps,
        report.world_size,
        report.samples_per_second,
        report.seconds
    );
    if let Some(run) = run {
        println!("recorded in {}", run.path().display());
    }
}

struct Train<'a> {
    trainer: &'a Trainer,
    loaded: &'a LoadedData,
}

impl ModelVisitor for Train<'_> {
    type Output = Result<TrainingReport, CliError>;

    fn visit<M: Module + Display + Sync + 'static>(
        self,
        info: ModelInfo,
        init: Init<M>,
        forward: Forward<M>,
    ) -> Self::Output {
        self.trainer.seed();
        let model = Classifier::new(init(&self.trainer.device), forward);
        let data = data::for_training(self.loaded, info.pixels);
        Ok(self.trainer.fit(model, &data)?.1)
    }
}
