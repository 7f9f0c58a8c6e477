//! `everburn train`

mod joining;
mod preparation;
mod ranks;
mod warm_up;

use std::fmt::Display;
use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use everburn::burn::module::Module;
use everburn::burn::prelude::{Device, Tensor};
use everburn::distributed::ConnectExchange;
use everburn::prelude::*;
use everburn::train::{
    ActivationCheckpointing, Classification, KernelCache, LabeledBatch, NextToken, Objective,
    Parallelism, Regroup, Samples, StopSignal, TextBatch, compute_on_this_thread, renderer,
};
use everburn_datasets::LoadedText;
use everburn_launch::{RankEnvironment, StopRequest};
use everburn_models::gpt::GptConfig;
use everburn_models::registry::{self, ImageModel, PixelRange, TextModel};
use everburn_profile::Recorder;

use self::joining::{Joined, join};
use self::preparation::{check_resume, rank_arguments, resolve_data};
pub(crate) use self::preparation::{claim_first_free, prepare_run_directory};
use self::ranks::{TrainOnThreads, TrainOneRank};
use crate::arguments::{Strategy, TrainArguments};
use crate::config::RunConfig;
use crate::data::Loaded;
use crate::error::{CliError, EXIT_INTERRUPTED};
use crate::logging::LogOutput;
use crate::model_parallel::TIMED_SAMPLES;
use crate::sampling::Writer;
use crate::summary::print_report;
use crate::{
    bottleneck, data, devices, elastic, gradient_exchange, kernels, launching, mesh,
    model_parallel, monitor, over_ranks, plan, rank, recording, weights,
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
    bottleneck::check(&config, arguments)?;
    let kernels = kernels::keep(arguments.input.kernel_cache.as_deref());
    if let Some(environment) = environment {
        return train_as_rank(config, arguments, environment, kernels);
    }
    // Whatever can be wrong is found here, before anything is started, written or moved.
    monitor::check(arguments)?;
    if let Some(gpus) = devices::check(&config.ranks.devices, config.ranks.ranks)? {
        say!("{gpus}");
    }
    gradient_exchange::check(&config)?;
    model_parallel::check_model(&config)?;
    elastic::check_mesh(&config, mesh::check(&config)?.as_ref())?;
    let plan = launching::plan(&config.ranks, &arguments.ranks)?;
    let loaded = data::load(&config)?;
    say!("{}", loaded.description());
    resolve_data(&mut config, &loaded);
    let held_out = config.training.held_out_of(loaded.train_len());
    let samples = loaded.train_len().saturating_sub(held_out);
    config.training.check_schedule(samples)?;
    if arguments.resume {
        check_resume(&config, arguments, &loaded)?;
    } else if arguments.ranks.node_rank.unwrap_or(0) == 0 {
        weights::check(&config)?; // the file is on machine 0
    }
    if arguments.input.warmup {
        return warm_up::run(&config, &loaded, kernels);
    }
    let alone = config.world_size() == 1 && config.ranks.elastic.is_none();
    if alone || config.ranks.strategy == Strategy::DataParallel {
        return train_here(&config, arguments, &loaded, log, kernels);
    }
    drop(loaded);
    let (run, _lock) = prepare_run_directory(&config, arguments)?;
    let _served = monitor::serve(arguments, &run)?;
    let (rank_arguments, logs) = (rank_arguments(&run, arguments), run.logs());
    let told = run.clone();
    let outcome = launching::run(plan, rank_arguments, logs, move |event| {
        recording::note_launch_event(&told, event);
    })?;
    recording::conclude_job(&run, &outcome);
    let code = launching::exit_code(&outcome);
    // The ranks' reports say that the training has finished; what came out of it must be there too. In an
    // elastic job the rank that records may be on another machine at the end.
    let elsewhere = config.ranks.elastic.is_some() && config.ranks.nodes > 1;
    let records = arguments.ranks.node_rank.unwrap_or(0) == 0 && !elsewhere;
    let finished = code == ExitCode::SUCCESS && records;
    if finished && run.read_report()?.test_accuracy.is_none() {
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
    kernels: KernelCache,
) -> Result<ExitCode, CliError> {
    if let Some(threads) = config.ranks.threads_per_rank {
        rank::use_threads(threads * config.ranks.ranks)?;
    }
    let (run, _lock) = prepare_run_directory(config, arguments)?;
    let _served = monitor::serve(arguments, &run)?;
    let model_devices = model_parallel::devices_of_rank(&config.ranks, 0)?;
    let recorder = bottleneck::recorder(config, arguments, None)?;
    let job = RankJob {
        model_devices,
        recorder: recorder.clone(),
        parallelism: mesh::check(config)?,
        kernels,
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
        run: run.clone(),
    };
    let reports = registry::visit(&config.model, &config.model_options(), threads)?
        .ok_or(CliError::NoModel)?;
    recording::conclude(&run, reports.as_ref().err());
    let reports = reports?;
    bottleneck::write(recorder.as_ref(), Some(&run), arguments)?;
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
    kernels: KernelCache,
) -> Result<ExitCode, CliError> {
    rank::limit_threads(environment, &config.ranks)?;
    compute_on_this_thread(rayon::current_num_threads())?;
    let loaded = data::load(&config)?;
    resolve_data(&mut config, &loaded);
    let ours = environment.launcher_pid.is_some();
    if !ours {
        // Our launcher has checked before it started the ranks.
        let gpus = devices::check(&config.ranks.devices, config.ranks.ranks)?;
        if let (0, Some(gpus)) = (environment.rank, gpus) {
            say!("{gpus}");
        }
        gradient_exchange::check(&config)?;
    }
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
    let _served = match run.as_ref().filter(|_| !ours && environment.rank == 0) {
        Some(run) => monitor::serve(arguments, run)?,
        None => None,
    };
    let model_devices = model_parallel::devices_of_rank(&config.ranks, environment.local_rank)?;
    let device = match model_devices.as_deref() {
        Some([(_, first), ..]) => first.clone(),
        _ => devices::of_rank(&config.ranks.devices, environment.local_rank)?,
    };
    let recorder = bottleneck::recorder(&config, arguments, Some(environment))?;
    let job = RankJob {
        model_devices,
        recorder: recorder.clone(),
        parallelism: mesh::check(&config)?,
        kernels,
        ..RankJob::new(&config, arguments, &loaded, Some(environment))?
    };
    let joined = join(&config, environment);
    let Joined {
        group,
        elastic,
        watch,
        store,
    } = match joined {
        Err(CliError::Train(TrainError::JobFinished)) => return Ok(rank::not_needed(environment)),
        joined => joined?,
    };
    // The report on a stall looks into the group after the training has ended.
    let watched = group.clone();
    let names = &config.ranks.devices;
    let name = &names[environment.local_rank % names.len()];
    let exchange = gradient_exchange::connector(&config, name, store, &[])?;
    let watch = watch.map(Arc::new);
    recording::say_of_itself(
        &config.ranks,
        environment,
        watch.as_deref(),
        elastic.as_deref(),
    );
    let recorded = run.clone();
    let rank = TrainOneRank {
        trainer: Trainer {
            exchange: exchange.map(|exchange| Arc::new(exchange) as Arc<dyn ConnectExchange>),
            signs: recording::signs(watch.as_ref(), elastic.as_ref()),
            regroup: elastic.map(|elastic| elastic as Arc<dyn Regroup>),
            begun_before: environment.incarnation > 1,
            ..job.trainer(group, device, run)
        },
        job: &job,
    };
    let trained = registry::visit(&config.model, &config.model_options(), rank)?;
    let trained = trained.ok_or(CliError::NoModel)?;
    let trained = trained.map_err(|error| {
        rank::report_stall(error, watch.as_deref(), environment, recorded.as_ref())
    });
    drop(watched);
    if trained.is_ok() {
        bottleneck::write(recorder.as_ref(), recorded.as_ref(), arguments)?;
    }
    if let Some(run) = recorded.filter(|_| !ours && environment.rank == 0) {
        recording::conclude(&run, trained.as_ref().err());
    }
    // It is the launcher's exit code that tells of an interruption, not the rank's.
    match trained {
        Ok(report) if report.test_accuracy.is_none() => Ok(rank::stopped(environment)),
        Ok(_) => Ok(ExitCode::SUCCESS),
        Err(CliError::Train(TrainError::JobFinished)) => Ok(rank::not_needed(environment)),
        Err(error) => Err(error),
    }
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
    kernels: KernelCache,
    /// Is told where the time goes.
    recorder: Option<Recorder>,
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
            kernels: KernelCache::Nowhere("nobody has said where".to_string()),
            recorder: None,
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
            class_names: self.loaded.class_names(),
            kernels: self.kernels.clone(),
            recorder: self.recorder.clone(),
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
        if self.config.training.input.on_device {
            let data = trainer.on_device(data, self.free_memory(&trainer))?;
            return self.fit_images_of(trainer, model, &data);
        }
        self.fit_images_of(trainer, model, &data)
    }

    fn fit_images_of<M: ImageModel, I: Send + Sync + Clone + 'static>(
        &self,
        trainer: Trainer,
        model: M,
        data: &TrainingData<I, LabeledBatch<4>>,
    ) -> Result<TrainingReport, CliError> {
        let images = |device: &Device| Tensor::zeros([TIMED_SAMPLES, 1, 28, 28], device);
        if let Some(parallelism) = &self.parallelism {
            return over_ranks::fit::<_, Classification<4>, _>(
                trainer,
                model,
                data,
                parallelism,
                None,
                || plan::automatic_stages(self.config),
            );
        }
        let devices = self.model_devices.as_deref();
        let model: Classifier<M, 4> =
            model_parallel::supervised(model, devices, self.checkpointing(), images)?;
        Ok(self.fit(&trainer, model, data, None)?)
    }

    fn fit_text<M: TextModel>(
        &self,
        trainer: Trainer,
        model: M,
        config: &GptConfig,
    ) -> Result<TrainingReport, CliError> {
        let (text, data) = self.loaded.text()?;
        if self.config.training.input.on_device {
            let data = trainer.on_device(data, self.free_memory(&trainer))?;
            return self.fit_text_of(trainer, model, config, text, &data);
        }
        self.fit_text_of(trainer, model, config, text, &data)
    }

    fn fit_text_of<M: TextModel, I: Send + Sync + Clone + 'static>(
        &self,
        trainer: Trainer,
        model: M,
        config: &GptConfig,
        text: &LoadedText,
        data: &TrainingData<I, TextBatch>,
    ) -> Result<TrainingReport, CliError> {
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
                data,
                parallelism,
                Some(samples),
                || plan::automatic_stages(self.config),
            );
        }
        let devices = self.model_devices.as_deref();
        let model: LanguageModel<M> =
            model_parallel::supervised(model, devices, self.checkpointing(), texts)?;
        Ok(self.fit(&trainer, model, data, Some(samples))?)
    }

    fn free_memory(&self, trainer: &Trainer) -> Option<u64> {
        let ranks = &self.config.ranks;
        devices::free_memory(&ranks.devices, trainer.group.local_rank(), ranks.ranks)
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
