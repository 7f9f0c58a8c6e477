//! `everburn train`

mod preparation;

use std::fmt::Display;
use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use everburn::burn::module::Module;
use everburn::burn::prelude::{Device, Tensor};
use everburn::collectives::watch::Watch;
use everburn::prelude::*;
use everburn::train::{
    ActivationCheckpointing, Classification, ElasticGroup, NextToken, Objective, Parallelism,
    Regroup, Samples, StopSignal, compute_on_this_thread, renderer,
};
use everburn_launch::{RankEnvironment, StopRequest};
use everburn_models::gpt::GptConfig;
use everburn_models::registry::{self, ImageModel, Init, ModelVisitor, PixelRange, TextModel};

pub(crate) use self::preparation::prepare_run_directory;
use self::preparation::{check_resume, rank_arguments, resolve_data};
use crate::arguments::{Strategy, TrainArguments};
use crate::config::RunConfig;
use crate::data::Loaded;
use crate::error::{CliError, EXIT_INTERRUPTED};
use crate::logging::LogOutput;
use crate::model_parallel::TIMED_SAMPLES;
use crate::sampling::Writer;
use crate::summary::print_report;
use crate::{
    data, devices, elastic, launching, mesh, model_parallel, over_ranks, plan, rank, weights,
};

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
    elastic::check_mesh(&config, mesh::check(&config)?.as_ref())?;
    let plan = launching::plan(&config.ranks, &arguments.ranks)?;
    let loaded = data::load(&config)?;
    say!("{}", loaded.description());
    resolve_data(&mut config, &loaded);
    if arguments.resume {
        check_resume(&config, arguments, &loaded)?;
    } else if arguments.ranks.node_rank.unwrap_or(0) == 0 {
        weights::check(&config)?; // the file is on machine 0
    }
    let alone = config.world_size() == 1 && config.ranks.elastic.is_none();
    if alone || config.ranks.strategy == Strategy::DataParallel {
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
    compute_on_this_thread(rayon::current_num_threads())?;
    let loaded = data::load(&config)?;
    resolve_data(&mut config, &loaded);
    let ours = environment.launcher_pid.is_some();
    // Any rank of an elastic job may become the first.
    let records = environment.rank == 0 || config.ranks.elastic.is_some();
    let (run, _lock) = match (&arguments.run_dir, records) {
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
    let joined = join(&config, environment);
    let Joined {
        group,
        elastic,
        watch,
    } = match joined {
        Err(CliError::Train(TrainError::JobFinished)) => return Ok(ExitCode::SUCCESS),
        joined => joined?,
    };
    // The report on a stall looks into the group after the training has ended.
    let watched = group.clone();
    let rank = TrainOneRank {
        trainer: Trainer {
            regroup: elastic.map(|elastic| elastic as Arc<dyn Regroup>),
            begun_before: environment.incarnation > 1,
            ..job.trainer(group, device, run)
        },
        job: &job,
    };
    let trained = registry::visit(&config.model, &config.model_options(), rank)?;
    let trained = trained.ok_or(CliError::NoModel)?;
    let trained = trained.map_err(|error| rank::report_stall(error, watch.as_ref(), environment));
    drop(watched);
    // It is the launcher's exit code that tells of an interruption, not the rank's.
    match trained {
        Ok(_) | Err(CliError::Train(TrainError::JobFinished)) => Ok(ExitCode::SUCCESS),
        Err(error) => Err(error),
    }
}

/// The ranks that this one has met.
struct Joined {
    group: ProcessGroup,
    elastic: Option<Arc<ElasticGroup>>,
    watch: Option<Watch>,
}

fn join(config: &RunConfig, environment: &RankEnvironment) -> Result<Joined, CliError> {
    let Some(range) = config.ranks.elastic else {
        let (group, watch) = rank::join_watched(environment, &config.ranks)?;
        let elastic = None;
        return Ok(Joined {
            group,
            elastic,
            watch,
        });
    };
    let elastic = elastic::join(environment, config, range)?;
    Ok(Joined {
        group: elastic.group(),
        elastic: Some(elastic),
        watch: None,
    })
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
        // Any rank of an elastic job may become the first before the first step.
        let elastic = self.config.ranks.elastic.is_some();
        let first = |rank: usize, path: &Path| rank == 0 || (elastic && path.exists());
        match &self.config.init_from {
            Some(path) if first(rank, path) && !self.resume => weights::initialised(model, path),
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
        Ok(self.fit(&trainer, model, &data, None)?)
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
        Ok(self.fit(&trainer, model, &data, Some(samples))?)
    }

    fn checkpointing(&self) -> ActivationCheckpointing {
        self.config.training.activation_checkpointing
    }

    fn fit<M, O, I>(
        &self,
        trainer: &Trainer,
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
        let group = trainer.present_group();
        if group.rank() == 0 {
            print_report(&report, trainer.run.as_ref());
        }
        match group.destroy() {
            // All is done and written.
            Err(error) if trainer.regroup.is_some() => tracing::debug!("{error}"),
            left => left?,
        }
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
