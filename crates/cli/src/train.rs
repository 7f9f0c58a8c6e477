//! `everburn train`

use std::fmt::Display;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use everburn::burn::module::Module;
use everburn::burn::prelude::{Device, Tensor};
use everburn::prelude::*;
use everburn::train::checkpoint::{CheckpointFolder, Progress};
use everburn::train::{
    ActivationCheckpointing, Classification, NextToken, Objective, Parallelism, RunLock, Samples,
    StopSignal, renderer,
};
use everburn_launch::{RankEnvironment, StopRequest};
use everburn_models::gpt::GptConfig;
use everburn_models::registry::{self, ImageModel, Init, ModelVisitor, PixelRange, TextModel};

use crate::arguments::{Strategy, TrainArguments};
use crate::config::RunConfig;
use crate::data::Loaded;
use crate::error::{CliError, EXIT_INTERRUPTED};
use crate::logging::LogOutput;
use crate::model_parallel::TIMED_SAMPLES;
use crate::sampling::Writer;
use crate::summary::print_report;
use crate::{data, devices, launching, mesh, model_parallel, over_ranks, plan, rank, weights};

/// Trains, as a rank, as the only rank, or by launching ranks.
pub(crate) fn run(
    arguments: &TrainArguments,
    environment: Option<&RankEnvironment>,
    log: &LogOutput,
) -> Result<ExitCode, CliError> {
    let mut config = RunConfig::resolve(arguments, environment)?;
    if arguments.plan {
        return plan::run(&config, arguments);
    }
    if let Some(environment) = environment {
        return train_as_rank(config, arguments, environment);
    }
    // Whatever can be wrong is found here, before anything is started, written or moved.
    devices::check(&config.ranks.devices, config.ranks.ranks)?;
    model_parallel::check_model(&config)?;
    mesh::check(&config)?;
    let plan = launching::plan(&config.ranks, &arguments.ranks)?;
    let loaded = data::load(&config)?;
    say!("{}", loaded.description());
    resolve_data(&mut config, &loaded);
    if arguments.resume {
        check_resume(&config, arguments, &loaded)?;
    } else if arguments.ranks.node_rank.unwrap_or(0) == 0 {
        weights::check(&config)?; // the file is on machine 0
    }
    if config.world_size() == 1 || config.ranks.strategy == Strategy::DataParallel {
        return train_here(&config, arguments, &loaded, log);
    }
    drop(loaded);
    let (run, _lock) = prepare_run_directory(&config, arguments)?;
    let (rank_arguments, logs) = (rank_arguments(&run, arguments), run.logs());
    let code = launching::run(plan, rank_arguments, logs)?;
    // Ranks that the user stopped, with a key of the dashboard say, end well; the job did not.
    let stopped_early = || {
        run.read_report()
            .is_ok_and(|report| report.test_accuracy.is_none())
    };
    if code == ExitCode::SUCCESS && arguments.ranks.node_rank.unwrap_or(0) == 0 && stopped_early() {
        return Ok(EXIT_INTERRUPTED.into());
    }
    Ok(code)
}

/// Checks that there is a checkpoint and that it belongs to this configuration.
fn check_resume(
    config: &RunConfig,
    arguments: &TrainArguments,
    loaded: &Loaded,
) -> Result<(), CliError> {
    if arguments.ranks.node_rank.unwrap_or(0) > 0 {
        return Ok(()); // the checkpoints are on machine 0
    }
    let run = RunDirectory::open(arguments.run_dir.clone().unwrap_or_default())?;
    let training = &config.training;
    let newest =
        CheckpointFolder::new(run.checkpoints(), training.keep_checkpoints).load_newest()?;
    if choose_display(arguments) == renderer::Display::Dashboard {
        // Elsewhere the rank that resumes says so; its messages are not seen below a dashboard.
        for refused in &newest.refused {
            say!("passed over: {refused}");
        }
    }
    let samples = loaded.train_len();
    let samples = samples.saturating_sub(training.held_out_of(samples));
    let here = Progress::start(&config.model, training, samples);
    let fits = here.fits(&newest.checkpoint.progress);
    fits.map_err(|reason| TrainError::Checkpoint {
        path: newest.path,
        reason,
    })?;
    Ok(())
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

/// The run directory, with the resolved configuration in it. Machines that share a disk must not
/// share a folder: machine 1 records in `<folder>-node-1`.
pub(crate) fn prepare_run_directory(
    config: &RunConfig,
    arguments: &TrainArguments,
) -> Result<(RunDirectory, RunLock), CliError> {
    let mut path = match &arguments.run_dir {
        Some(path) => path.clone(),
        None => claim_first_free(&config.model)?,
    };
    if let Some(node) = arguments.ranks.node_rank.filter(|node| *node > 0) {
        let mut name = path.file_name().unwrap_or(path.as_os_str()).to_os_string();
        name.push(format!("-node-{node}"));
        path.set_file_name(name);
    }
    if !arguments.resume
        && let Some(aside) = RunDirectory::move_aside(&path)?
    {
        say!(
            "{} had a run in it: moved to {}",
            path.display(),
            aside.display()
        );
    }
    let run = RunDirectory::create(path)?;
    let lock = run.lock()?;
    run.write_config(config)?;
    Ok((run, lock))
}

/// Makes the first `runs/<model>-<number>` that nobody else has made.
fn claim_first_free(model: &str) -> Result<PathBuf, CliError> {
    let failed = |path: &Path, error: &std::io::Error| {
        CliError::usage(format!("{} cannot be made: {error}", path.display()))
    };
    let runs = Path::new("runs");
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

/// Fixes what the data decide, so that the configuration that is written says it.
fn resolve_data(config: &mut RunConfig, loaded: &Loaded) {
    data::pin(config, loaded);
    let held_out = config.training.held_out_of(loaded.train_len());
    config.training.validation_samples = Some(held_out);
}

/// In this process: alone, or on several devices with a thread each.
fn train_here(
    config: &RunConfig,
    arguments: &TrainArguments,
    loaded: &Loaded,
    log: &LogOutput,
) -> Result<ExitCode, CliError> {
    if let Some(threads) = config.ranks.threads_per_rank {
        let threads = threads * config.ranks.ranks;
        rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build_global()
            .map_err(|error| CliError::usage(format!("{threads} threads: {error}")))?;
    }
    let (run, _lock) = prepare_run_directory(config, arguments)?;
    let model_devices = model_parallel::devices_of_rank(&config.ranks, 0)?;
    let job = RankJob {
        model_devices,
        parallelism: mesh::check(config)?,
        ..RankJob::new(config, arguments, loaded, None)?
    };
    if job.display == renderer::Display::Dashboard {
        let path = run.logs().join("rank-0.log");
        log.redirect(&path).map_err(|error| {
            CliError::usage(format!("{} cannot be written: {error}", path.display()))
        })?;
    }
    let devices = (0..config.ranks.ranks)
        .map(|rank| devices::of_rank(&config.ranks.devices, rank))
        .collect::<Result<Vec<_>, _>>()?;
    let threads = TrainOnThreads {
        job: &job,
        devices,
        run,
    };
    let reports = registry::visit(&config.model, &config.model_options(), threads)?
        .ok_or(CliError::NoModel)??;
    // Ranks that are threads have no launcher to tell of an interruption.
    let interrupted = reports.iter().any(|report| report.test_accuracy.is_none());
    Ok(if interrupted {
        EXIT_INTERRUPTED.into()
    } else {
        ExitCode::SUCCESS
    })
}

fn train_as_rank(
    mut config: RunConfig,
    arguments: &TrainArguments,
    environment: &RankEnvironment,
) -> Result<ExitCode, CliError> {
    rank::limit_threads(environment, &config.ranks)?;
    let loaded = data::load(&config)?;
    resolve_data(&mut config, &loaded);
    let ours = environment.launcher_pid.is_some();
    let (run, _lock) = match (&arguments.run_dir, environment.rank == 0) {
        (_, false) => (None, None),
        (Some(path), true) if ours => (Some(RunDirectory::open(path)?), None),
        (_, true) => {
            say!("{}", loaded.description());
            let (run, lock) = prepare_run_directory(&config, arguments)?;
            (Some(run), Some(lock))
        }
    };
    let model_devices = model_parallel::devices_of_rank(&config.ranks, environment.local_rank)?;
    let device = match model_devices.as_deref() {
        Some([(_, first), ..]) => first.clone(),
        _ => devices::of_rank(&config.ranks.devices, environment.local_rank)?,
    };
    let job = RankJob {
        model_devices,
        parallelism: mesh::check(&config)?,
        ..RankJob::new(&config, arguments, &loaded, Some(environment))?
    };
    let group = rank::join(Some(environment), &config.ranks)?;
    let rank = TrainOneRank {
        trainer: job.trainer(group, device, run),
        job: &job,
    };
    registry::visit(&config.model, &config.model_options(), rank)?.ok_or(CliError::NoModel)??;
    // It is the launcher's exit code that tells of an interruption, not the rank's.
    Ok(ExitCode::SUCCESS)
}

/// What every rank of this process does.
struct RankJob<'a> {
    config: &'a RunConfig,
    loaded: &'a Loaded,
    resume: bool,
    display: renderer::Display,
    stop: StopSignal,
    /// The devices that the model is cut over, if it is.
    model_devices: Option<Vec<(String, Device)>>,
    /// How ranks hold the model together, if they do.
    parallelism: Option<Parallelism>,
}

impl<'a> RankJob<'a> {
    fn new(
        config: &'a RunConfig,
        arguments: &TrainArguments,
        loaded: &'a Loaded,
        environment: Option<&RankEnvironment>,
    ) -> Result<Self, CliError> {
        let stop = StopRequest::listen(environment.is_some())
            .map_err(|error| CliError::usage(format!("signals cannot be listened for: {error}")))?;
        Ok(Self {
            config,
            loaded,
            resume: arguments.resume,
            display: choose_display(arguments),
            stop: StopSignal::from_flag(stop.flag()),
            model_devices: None,
            parallelism: None,
        })
    }

    /// The model with the weights of `--init-from`, if there are any to begin with. Rank 0's are enough:
    /// the others are given its parameters.
    fn begun<M: Module>(&self, model: M, rank: usize) -> Result<M, TrainError> {
        match &self.config.init_from {
            Some(path) if rank == 0 && !self.resume => weights::initialised(model, path),
            _ => Ok(model),
        }
    }

    fn trainer(&self, group: ProcessGroup, device: Device, run: Option<RunDirectory>) -> Trainer {
        Trainer {
            device,
            run,
            resume: self.resume,
            display: self.display,
            stop: self.stop.clone(),
            model_name: self.config.model.clone(),
            evaluation_batch: evaluation_batch(self.config),
            ..Trainer::new(self.config.training.clone(), group)
        }
    }

    fn fit_images<M: ImageModel>(
        &self,
        trainer: Trainer,
        model: M,
        pixels: PixelRange,
    ) -> Result<TrainingReport, CliError> {
        let data = self.loaded.images(pixels)?;
        let images = |device: &Device| Tensor::zeros([TIMED_SAMPLES, 1, 28, 28], device);
        if let Some(parallelism) = &self.parallelism {
            return over_ranks::fit::<_, Classification<4>, _>(
                trainer,
                model,
                &data,
                parallelism,
                None,
                || plan::automatic_stages(self.config),
            );
        }
        let devices = self.model_devices.as_deref();
        let model: Classifier<M, 4> =
            model_parallel::supervised(model, devices, self.checkpointing(), images)?;
        Ok(self.fit(trainer, model, &data, None)?)
    }

    fn fit_text<M: TextModel>(
        &self,
        trainer: Trainer,
        model: M,
        config: &GptConfig,
    ) -> Result<TrainingReport, CliError> {
        let (text, data) = self.loaded.text()?;
        let texts = |device: &Device| Tensor::zeros([TIMED_SAMPLES, config.context], device);
        let writer = Writer {
            tokenizer: text.tokenizer.clone(),
            context: config.context,
            // A model over ranks is put together in the memory of the host.
            device: match self.parallelism {
                Some(_) => Device::flex(),
                None => trainer.device.clone(),
            },
        };
        let every = self.config.text.sample_every;
        let samples = writer.samples(every, self.config.training.seed)?;
        if let Some(parallelism) = &self.parallelism {
            return over_ranks::fit::<_, NextToken, _>(
                trainer,
                model,
                &data,
                parallelism,
                Some(samples),
                || plan::automatic_stages(self.config),
            );
        }
        let devices = self.model_devices.as_deref();
        let model: LanguageModel<M> =
            model_parallel::supervised(model, devices, self.checkpointing(), texts)?;
        Ok(self.fit(trainer, model, &data, Some(samples))?)
    }

    fn checkpointing(&self) -> ActivationCheckpointing {
        self.config.training.activation_checkpointing
    }

    fn fit<M, O, I>(
        &self,
        trainer: Trainer,
        model: Supervised<M, O>,
        data: &TrainingData<I, (O::Input, O::Targets)>,
        samples: Option<Samples<Supervised<M, O>>>,
    ) -> Result<TrainingReport, TrainError>
    where
        M: Module + Display + Sync + 'static,
        O: Objective,
        I: Send + Sync + Clone + 'static,
    {
        let (_model, report) = trainer.fit_and_sample(model, data, samples)?;
        if trainer.group.rank() == 0 {
            print_report(&report, trainer.run.as_ref());
        }
        trainer.group.destroy()?;
        Ok(report)
    }
}

/// This process is one rank.
struct TrainOneRank<'a> {
    job: &'a RankJob<'a>,
    trainer: Trainer,
}

impl ModelVisitor for TrainOneRank<'_> {
    type Output = Result<TrainingReport, CliError>;

    fn visit_images<M: ImageModel>(self, pixels: PixelRange, init: Init<M>) -> Self::Output {
        self.trainer.seed();
        let model = init(&self.trainer.device);
        let model = self.job.begun(model, self.trainer.group.rank())?;
        self.job.fit_images(self.trainer, model, pixels)
    }

    fn visit_text<M: TextModel>(self, config: GptConfig, init: Init<M>) -> Self::Output {
        self.trainer.seed();
        let model = init(&self.trainer.device);
        let model = self.job.begun(model, self.trainer.group.rank())?;
        self.job.fit_text(self.trainer, model, &config)
    }
}

/// Each thread of this process is a rank.
struct TrainOnThreads<'a> {
    job: &'a RankJob<'a>,
    devices: Vec<Device>,
    run: RunDirectory,
}

impl TrainOnThreads<'_> {
    fn fit<M: Module + Sync + 'static>(
        &self,
        init: &Init<M>,
        fit: impl Fn(Trainer, M) -> Result<TrainingReport, CliError> + Sync,
    ) -> Result<Vec<TrainingReport>, CliError> {
        // Threads may share a generator of random numbers, so the weights are drawn before there
        // are any: they are lazy, and taking a record draws them.
        self.job.config.training.seed_for_weights(&self.devices[0]);
        let model = self.job.begun(init(&self.devices[0]), 0)?;
        let weights = model.clone().into_record();
        let model = model.load_record(weights);
        let reports = data_parallel(
            &self.devices,
            rank::group_options(&self.job.config.ranks),
            |group, device| {
                let run = (group.rank() == 0).then(|| self.run.clone());
                let trainer = self.job.trainer(group, device.clone(), run);
                match fit(trainer, model.clone().fork(&device)) {
                    Err(CliError::Train(error)) => Err(error),
                    Err(error) => Err(TrainError::Config(error.to_string())),
                    Ok(report) => Ok(report),
                }
            },
        );
        Ok(reports?)
    }
}

impl ModelVisitor for TrainOnThreads<'_> {
    type Output = Result<Vec<TrainingReport>, CliError>;

    fn visit_images<M: ImageModel>(self, pixels: PixelRange, init: Init<M>) -> Self::Output {
        self.fit(&init, |trainer, model| {
            self.job.fit_images(trainer, model, pixels)
        })
    }

    fn visit_text<M: TextModel>(self, config: GptConfig, init: Init<M>) -> Self::Output {
        self.fit(&init, |trainer, model| {
            self.job.fit_text(trainer, model, &config)
        })
    }
}

/// How many samples are read at once where no gradients are needed: as many as the trainer has it,
/// but no more than 16,384 tokens, whose scores of all others would fill the memory.
pub(crate) fn evaluation_batch(config: &RunConfig) -> usize {
    let of_text = config.gpt.config(&config.model);
    of_text.map_or(1_000, |gpt| (16_384 / gpt.context).clamp(1, 1_000))
}

/// Under a launcher a rank has a terminal only if it is to draw the dashboard on it.
fn choose_display(arguments: &TrainArguments) -> renderer::Display {
    let on_terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    if on_terminal && !arguments.ranks.no_dashboard {
        renderer::Display::Dashboard
    } else {
        renderer::Display::Lines
    }
}
