//! `everburn train`

mod earlier_run;
mod ending;
mod joining;
mod optimizer;
mod preparation;
mod rank_job;
mod ranks;
mod required_checkpoints;
mod resume;
mod run_in_use;
mod warm_up;

use std::cell::OnceCell;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;

use crate::prelude::*;
use crate::{devices, kernels};
use everburn_launch::{LaunchEvent, RankEnvironment};
use everburn_record::EXIT_INTERRUPTED;
use everburn_train::{
    ConfiguredTask, Elasticity, KernelCache, LoadedData, Regroup as _, StopSignal, renderer,
};

pub(crate) use self::earlier_run::Replaced;
use self::ending::end_of_job;
use self::joining::{Joined, agree, join, rank_statuses, set_note, watched};
use self::optimizer::check_optimizer;
use self::preparation::{announce, check, load_data, rank_arguments, run_of_rank};
pub(crate) use self::preparation::{claim_first_free, prepare_run_directory};
use self::rank_job::RankJob;
use self::ranks::{train_on_threads, train_one_rank};
pub(crate) use self::resume::changed_settings;
use self::resume::{check_resume, is_finished};
use crate::arguments::TrainArguments;
use crate::config::RunConfig;
use crate::error::CliError;
use crate::logging::LogOutput;
use crate::{
    bottleneck, elastic, gradient_backend, launching, mesh, model_parallel, monitor, plan, rank,
    recording, weights,
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
        if is_finished(&config, arguments, samples)? {
            return Ok(ExitCode::SUCCESS);
        }
    } else if has_weights && let Some(line) = weights::check(&config)? {
        say!("{line}");
    }
    task.check_files()?;
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
    if !ours {
        // Its messages would tear a dashboard.
        job.display = renderer::Display::Lines;
    }
    let device = job.device(environment.local_rank)?;
    let begun = prepared.as_ref().ok().and_then(Option::as_ref);
    let Joined {
        group,
        elastic,
        heartbeat,
        store: _store,
    } = match join(&config, arguments, environment, run.as_ref()) {
        Err(CliError::Train(TrainError::JobFinished)) => return Ok(rank::not_needed(environment)),
        joined => joined.inspect_err(|error| {
            // Nobody else records it where there is no launcher.
            if let Some(prepared) = begun.filter(|_| job.finder.is_none()) {
                prepared.conclude(Some(error));
            }
        })?,
    };
    job.stop = listen_for_stop(Some(environment), job.finder.is_none())?;
    drop(early);
    let mut prepared = match ours {
        true => prepared?,
        false => agree(&group, prepared)?,
    };
    // The report on a stall looks into the group after the training has ended.
    let (watched, regrouped) = watched(environment, &group, elastic.as_ref());
    let name = devices::name_of_rank(&config.ranks.devices, environment.local_rank);
    let connector = gradient_backend::connector(&config, name)?;
    let heartbeat = heartbeat.map(Arc::new);
    set_note(
        &config.ranks,
        environment,
        heartbeat.as_deref(),
        elastic.as_deref(),
        &job.stop,
    );
    let recorded = run.clone();
    let trainer = Trainer {
        connector: Some(Arc::new(connector)),
        rank_statuses: rank_statuses(heartbeat.as_ref(), elastic.as_ref()),
        elasticity: elastic.map_or_else(Elasticity::default, |elastic| Elasticity::by(elastic)),
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
    if let Some(prepared) = &mut prepared {
        match job.finder {
            None => prepared.conclude(trained.as_ref().err()),
            Some(_) => recording::leave_no_checkpoints(&prepared.run),
        }
        if trained.is_ok() {
            prepared.keep();
        }
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
        let gpus = devices::check(&config.ranks.devices, config.ranks.ranks)?;
        if let (0, Some(gpus)) = (rank, gpus) {
            say!("{gpus}");
        }
        gradient_backend::check(config)?;
    }
    Ok((task, loaded))
}

/// From here on a signal stops the training after the present step, with a word. Our launcher has its own.
fn listen_for_stop(
    environment: Option<&RankEnvironment>,
    has_checkpoints: bool,
) -> Result<StopSignal, CliError> {
    let rank = environment.map(|environment| environment.rank);
    let tell = move |signal: &str, again: bool| {
        tracing::info!(
            "{}",
            ending::words_of_stop(rank, signal, again, has_checkpoints)
        );
    };
    let stop = everburn_launch::listen_for_stop(environment, tell)
        .map_err(|error| CliError::no_signals(&error))?;
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
