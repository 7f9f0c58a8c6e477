//! `everburn train`

mod earlier_run;
mod ending;
mod joining;
mod optimizer;
mod preparation;
mod ranks;
mod required_checkpoints;
mod run_in_use;
mod warm_up;

use std::cell::OnceCell;
use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;

use crate::prelude::*;
use crate::{devices, kernels};
use burn::module::Module;
use burn::prelude::Device;
use everburn_distributed::is_gpu;
use everburn_launch::{LaunchEvent, RankEnvironment};
use everburn_profile::Recorder;
use everburn_record::EXIT_INTERRUPTED;
use everburn_train::{
    AnyData, AnyModel, ConfiguredTask, KernelCache, LoadedData, Parallelism, Regroup, Samples,
    StopSignal, load_state_dict_except, renderer,
};

pub(crate) use self::earlier_run::Replaced;
use self::ending::end_of_job;
use self::joining::{Joined, agree, join, watched};
use self::optimizer::check_optimizer;
use self::preparation::{announce, check, check_resume};
pub(crate) use self::preparation::{changed_settings, claim_first_free, prepare_run_directory};
use self::preparation::{load_data, rank_arguments, run_of_rank};
use self::ranks::{train_on_threads, train_one_rank};
use crate::arguments::TrainArguments;
use crate::config::RunConfig;
use crate::error::CliError;
use crate::finders::Finder;
use crate::logging::LogOutput;
use crate::sampling::Writer;
use crate::summary::{print_report, told_at_least};
use crate::{
    bottleneck, elastic, gradient_exchange, launching, mesh, model_parallel, monitor, over_ranks,
    plan, rank, recording, summary, tasks, weights,
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
    // A process that computes keeps its kernels; one that only starts ranks takes no place for them.
    let keep_kernels = || kernels::keep(arguments.kernels.kernel_cache.as_deref());
    if let Some(environment) = environment {
        return train_as_rank(config, arguments, environment, keep_kernels());
    }
    let launches = config.starts_ranks() && !arguments.kernels.warmup;
    let replaced = Replaced::default();
    let listen = || launching::listen_early(launching::Work::Train, replaced.undo());
    let early = launches.then(listen).transpose()?;
    let plan = check(&config, arguments)?;
    let mut task = config.task()?;
    let loaded = load_data(&mut config, arguments, &mut *task, false)?;
    // The weights and their tokenizer are on machine 0.
    let has_weights = !arguments.resume && arguments.ranks.node_rank.unwrap_or(0) == 0;
    if has_weights {
        weights::check_tokenizer(&config, arguments)?;
    }
    let samples = announce(&config, &loaded);
    check_optimizer(&config, arguments, &*task, samples)?;
    config.training.check_schedule(samples)?;
    if arguments.resume {
        check_resume(&config, arguments, &*task, &loaded)?;
        if summary::is_finished(&config, arguments, samples) {
            return Ok(ExitCode::SUCCESS);
        }
    } else if has_weights && let Some(line) = weights::check(&config)? {
        say!("{line}");
    }
    if arguments.kernels.warmup {
        return warm_up::run(&config, &*task, &loaded, keep_kernels());
    }
    let Some(early) = early else {
        return train_here(&config, arguments, (&*task, &loaded), log, keep_kernels());
    };
    drop(loaded);
    let mut prepared = prepare_run_directory(&config, arguments, &replaced)?;
    let run = prepared.run.clone();
    let _served = monitor::serve(arguments, Some(&run))?;
    let (rank_arguments, logs) = (rank_arguments(&run, arguments), run.logs());
    let told = run.clone();
    // That of the run before a resume.
    let report_before = run.read_report().ok();
    let asked_by = Rc::new(OnceCell::new());
    let heard = Rc::clone(&asked_by);
    let outcome = launching::run(plan, rank_arguments, logs, early, move |event| {
        if let LaunchEvent::Stopping { by, .. } = event {
            heard.get_or_init(|| by.clone());
        }
        recording::note_launch_event(&told, event);
    });
    let asked_by = asked_by.get().map(String::as_str);
    let before = report_before.as_ref();
    end_of_job(&config, arguments, &mut prepared, before, outcome, asked_by)
}

/// In this process: alone, or on several devices with a thread each.
fn train_here(
    config: &RunConfig,
    arguments: &TrainArguments,
    (task, loaded): (&dyn ConfiguredTask, &LoadedData),
    log: &LogOutput,
    kernels: KernelCache,
) -> Result<ExitCode, CliError> {
    if let Some(threads) = config.ranks.threads_per_rank {
        rank::use_threads(threads * config.ranks.ranks)?;
    }
    let stop = listen_for_stop(None, arguments.finders.wanted().is_none())?;
    let mut prepared = prepare_run_directory(config, arguments, &Replaced::default())?;
    let run = prepared.run.clone();
    let _served = monitor::serve(arguments, Some(&run))?;
    let model_devices = model_parallel::devices_of_rank(&config.ranks, 0)?;
    let recorder = bottleneck::recorder(config, arguments, None)?;
    let job = RankJob {
        model_devices,
        recorder: recorder.clone(),
        parallelism: mesh::check(config)?,
        kernels,
        stop,
        ..RankJob::new(config, arguments, task, loaded)
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
    let finished = train_on_threads(&job, &devices, &run);
    ending::write_lost_config(&run, config);
    match job.finder {
        None => prepared.conclude(finished.as_ref().err()),
        Some(_) => recording::leave_no_checkpoints(&run),
    }
    let finished = finished.map_err(|error| match job.finder {
        None => ending::with_continuation(error, &run),
        Some(_) => error,
    })?;
    prepared.keep();
    bottleneck::write(recorder.as_ref(), Some(&run), arguments)?;
    // Ranks that are threads have no launcher to tell of an interruption.
    let interrupted = finished.iter().any(|finished| !finished);
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
    elastic::check_launcher(&config, environment)?;
    let replaced = Replaced::default();
    let early = rank::begin(environment, &config.ranks, replaced.undo())?;
    let ours = environment.launcher_pid.is_some();
    let (task, loaded) = load_as_rank(&mut config, arguments, environment.rank, ours)?;
    let (run, prepared) = run_of_rank(&config, arguments, environment, &loaded, &replaced)?;
    let served = run.as_ref().filter(|_| !ours && environment.rank == 0);
    let _served = monitor::serve(arguments, served)?;
    let recorder = bottleneck::recorder(&config, arguments, Some(environment))?;
    let mut job = RankJob {
        model_devices: model_parallel::devices_of_rank(&config.ranks, environment.local_rank)?,
        recorder: recorder.clone(),
        parallelism: mesh::check(&config)?,
        kernels,
        ..RankJob::new(&config, arguments, &*task, &loaded)
    };
    let device = job.device(environment.local_rank)?;
    let Joined {
        group,
        elastic,
        heartbeat,
        store: _store,
    } = match join(&config, environment, run.as_ref()) {
        Err(CliError::Train(TrainError::JobFinished)) => return Ok(rank::not_needed(environment)),
        joined => joined?,
    };
    job.stop = listen_for_stop(Some(environment), true)?;
    drop(early);
    let mut prepared = match ours {
        true => prepared?,
        false => agree(&group, prepared)?,
    };
    // The report on a stall looks into the group after the training has ended.
    let (watched, regrouped) = watched(environment, &group, elastic.as_ref());
    let name = devices::name_of_rank(&config.ranks.devices, environment.local_rank);
    let exchange = gradient_exchange::connector(&config, name)?;
    let heartbeat = heartbeat.map(Arc::new);
    recording::set_note(
        &config.ranks,
        environment,
        heartbeat.as_deref(),
        elastic.as_deref(),
        &job.stop,
    );
    let recorded = run.clone();
    let trainer = Trainer {
        exchange: Some(Arc::new(exchange)),
        rank_statuses: recording::rank_statuses(heartbeat.as_ref(), elastic.as_ref()),
        regroup: elastic.map(|elastic| elastic as Arc<dyn Regroup>),
        begun_before: environment.incarnation > 1,
        ..job.trainer(group, device, run)
    };
    let trained = train_one_rank(&job, trainer).map_err(|error| {
        let present = regrouped.as_ref().map(|elastic| elastic.group());
        environment.failed_at(present.as_ref().unwrap_or(&*watched).step());
        rank::report_stall(error, heartbeat.as_deref(), environment, recorded.as_ref())
    });
    drop((watched, regrouped));
    if trained.is_ok() {
        bottleneck::write(recorder.as_ref(), recorded.as_ref(), arguments)?;
    }
    let concludes = !ours && environment.rank == 0 && job.finder.is_none();
    if let Some(prepared) = prepared.as_ref().filter(|_| concludes) {
        prepared.conclude(trained.as_ref().err());
    }
    if let (Ok(_), Some(prepared)) = (&trained, &mut prepared) {
        prepared.keep();
    }
    rank::ended(trained, environment)
}

/// The task with its data, which decide settings that were left open. What our launcher has checked is right.
fn load_as_rank(
    config: &mut RunConfig,
    arguments: &TrainArguments,
    rank: usize,
    ours: bool,
) -> Result<(Box<dyn ConfiguredTask>, LoadedData), CliError> {
    let mut task = config.task()?;
    let loaded = load_data(config, arguments, &mut *task, ours)?;
    if !ours {
        check_of_rank(config, rank)?;
    }
    Ok((task, loaded))
}

/// What our launcher checks before it starts ranks.
fn check_of_rank(config: &RunConfig, rank: usize) -> Result<(), CliError> {
    let gpus = devices::check(&config.ranks.devices, config.ranks.ranks)?;
    if let (0, Some(gpus)) = (rank, gpus) {
        say!("{gpus}");
    }
    gradient_exchange::check(config)
}

/// What every rank of this process does.
struct RankJob<'a> {
    config: &'a RunConfig,
    task: &'a dyn ConfiguredTask,
    loaded: &'a LoadedData,
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
    /// What is found in place of a training.
    finder: Option<Finder>,
}

impl<'a> RankJob<'a> {
    fn new(
        config: &'a RunConfig,
        arguments: &TrainArguments,
        task: &'a dyn ConfiguredTask,
        loaded: &'a LoadedData,
    ) -> Self {
        let finder = arguments.finders.wanted();
        Self {
            config,
            task,
            loaded,
            resume: arguments.resume,
            display: match finder {
                Some(_) => renderer::Display::Lines,
                None => choose_display(arguments),
            },
            stop: StopSignal::default(),
            model_devices: None,
            parallelism: None,
            kernels: KernelCache::Nowhere("no folder was given".to_string()),
            recorder: None,
            finder,
        }
    }

    /// The device of a rank: of several that hold its model, the first.
    fn device(&self, local_rank: usize) -> Result<Device, CliError> {
        match self.model_devices.as_deref() {
            Some([(_, first), ..]) => Ok(first.clone()),
            _ => Ok(devices::of_rank(&self.config.ranks.devices, local_rank)?),
        }
    }

    /// The model of the task with the weights of `--init-from`, if there are any to begin with. Rank 0's are enough:
    /// the others are given its parameters.
    fn begun(&self, device: &Device, rank: usize) -> Result<AnyModel, CliError> {
        let model = match is_gpu(device) {
            true => self.drawn_on_processor()?.fork(device),
            false => self.task.model(device)?,
        };
        // Any rank of an elastic job may become the first before the first step.
        let elastic = self.config.ranks.elastic.is_some();
        let first = |rank: usize, path: &Path| rank == 0 || (elastic && path.exists());
        match &self.config.init_from {
            Some(path) if first(rank, path) && !self.resume => {
                let layout = self.task.layout();
                let skip = &self.config.init_skip;
                Ok(load_state_dict_except(model, path, skip, &layout)?)
            }
            _ => Ok(model),
        }
    }

    /// The model with its first weights, which a seed makes the same on all kinds of devices: each has a generator of
    /// its own.
    fn drawn_on_processor(&self) -> Result<AnyModel, CliError> {
        let processor = Device::flex();
        self.config.training.seed_for_weights(&processor);
        let model = self.task.model(&processor)?;
        // Weights are drawn when they are needed.
        let drawn = model.clone().into_record();
        Ok(model.load_record(drawn))
    }

    fn trainer(&self, group: ProcessGroup, device: Device, run: Option<RunDirectory>) -> Trainer {
        Trainer {
            device,
            run,
            resume: self.resume,
            display: self.display,
            stop: self.stop.clone(),
            model_name: self.config.model.clone(),
            evaluation_batch: self.task.evaluation_batch(),
            class_names: self.loaded.class_names.clone(),
            kernels: self.kernels.clone(),
            task: Some(self.task.shared()),
            recorder: self.recorder.clone(),
            hooks: tasks::hooks(),
            begins_with: self.begins_with(),
            ..Trainer::new(self.config.training.clone(), group)
        }
    }

    /// Trains, or finds what it is to find. `false` if the user has stopped it.
    fn fit_task(&self, trainer: Trainer, model: AnyModel) -> Result<bool, CliError> {
        let data = match self.config.training.input.on_device {
            true => self
                .loaded
                .on_device(&trainer, self.free_memory(&trainer))?,
            false => self.loaded.for_training(),
        };
        // A model over ranks is put together in the memory of the host.
        let device = match self.parallelism {
            Some(_) => Device::flex(),
            None => trainer.device.clone(),
        };
        let samples = Writer::of(self.task, device)?
            .map(|writer| writer.samples(self.config.training.seed))
            .transpose()?;
        let checkpointing = self.config.training.activation_checkpointing;
        match (&self.parallelism, &self.model_devices) {
            (Some(parallelism), _) => over_ranks::fit(
                trainer,
                self.task,
                model,
                &data,
                parallelism,
                samples,
                || plan::automatic_stages(self.config),
            )
            .map(|report| report.finished),
            (None, Some(devices)) => {
                let model = model_parallel::place(self.task, model, devices, checkpointing)?;
                Ok(self.fit(&trainer, model, &data, samples)?)
            }
            (None, None) => {
                let model = self.task.checkpointed(model, checkpointing)?;
                Ok(self.fit(&trainer, model, &data, samples)?)
            }
        }
    }

    fn free_memory(&self, trainer: &Trainer) -> Option<u64> {
        let ranks = &self.config.ranks;
        devices::free_memory(&ranks.devices, trainer.group.local_rank(), ranks.ranks)
    }

    fn fit(
        &self,
        trainer: &Trainer,
        model: AnyModel,
        data: &AnyData,
        samples: Option<Samples<AnyModel>>,
    ) -> Result<bool, TrainError> {
        let finished = match self.finder {
            Some(finder) => finder.run(trainer, model, data, self.config)?,
            None => {
                let trained = trainer.fit_and_sample(model, data, samples);
                let (_model, report) = told_at_least(trained)?;
                if trainer.present_group().rank() == 0 {
                    print_report(&report, trainer.run.as_ref());
                }
                report.finished
            }
        };
        let group = trainer.present_group();
        match group.destroy() {
            // All is done and written.
            Err(error) if trainer.regroup.is_some() => tracing::debug!("{error}"),
            left => left?,
        }
        Ok(finished)
    }
}

/// From here on a signal stops the training after the present step, by itself with a word. A launcher has its own.
fn listen_for_stop(
    environment: Option<&RankEnvironment>,
    has_checkpoints: bool,
) -> Result<StopSignal, CliError> {
    let tell = move |signal: &str, again: bool| {
        tracing::info!("{}", ending::words_of_stop(signal, again, has_checkpoints));
    };
    let stop = everburn_launch::listen_for_stop(environment.is_some(), tell)
        .map_err(|error| CliError::usage(format!("signals cannot be listened for: {error}")))?;
    Ok(match environment.and_then(RankEnvironment::kill_job) {
        Some(kill) => stop.with_kill(kill),
        None => stop,
    })
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
