//! This process as one of several ranks.

mod alone;
pub(crate) mod given;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use everburn_collectives::group::{GroupOptions, ProcessGroup};
use everburn_collectives::heartbeat::{HeartbeatMonitor, HeartbeatOptions};
use everburn_collectives::rendezvous::{RendezvousError, WaitListener, variable};
use everburn_collectives::store::SharedStore;
use everburn_launch::{
    EarlyStop, RankEnvironment, RankEnvironmentError, ReportKind, StartedBy, variables,
};
use everburn_train::{RunDirectory, TrainError, compute_on_this_thread};

use self::given::{AboutRanks, IN_TORCHRUN, LEFT_OVER, launches_in_a_rank};
pub(crate) use self::given::{
    help_with_nodes, is_of_another_launcher, say_who_has_started, say_who_starts_ranks,
};
use crate::arguments::Command;
use crate::arguments::keys::with_flags;
use crate::config::RanksConfig;
use crate::error::CliError;
use crate::recording;

/// What a launcher has told this process, or `None` if a user started it. From then on the process
/// ends with its launcher, if that is ours, and its panics are reported to it.
pub(crate) fn from_environment(command: &Command) -> Result<Option<RankEnvironment>, CliError> {
    if runs_once(command) {
        refuse_several_tasks()?;
    }
    // A tool is no rank, whoever has started it.
    if matches!(command, Command::Tool(_)) {
        return Ok(None);
    }
    let given = AboutRanks::of(command);
    let by_variables = if RankEnvironment::is_present() {
        let starts_ranks = |given: &&AboutRanks| given.launch_ranks() || given.is_launcher();
        let launching = given.as_ref().filter(starts_ranks);
        let launches = launching.is_some();
        let environment = match RankEnvironment::from_env() {
            Err(error @ RankEnvironmentError::StoreOfTorchrun { .. }) if launches => {
                return Err(CliError::usage_with_help(error.to_string(), IN_TORCHRUN));
            }
            Err(error) if launches && !matches!(error, RankEnvironmentError::Incomplete { .. }) => {
                return Err(CliError::usage_with_help(error.to_string(), LEFT_OVER));
            }
            found => found.map_err(|error| with_flags_of_trust(error, given.as_ref()))?,
        };
        let is_ours = environment.origin.started_by == StartedBy::Everburn;
        if let Some(launching) = launching.filter(|_| !is_ours) {
            return Err(launches_in_a_rank(&environment, launching));
        }
        Some(environment)
    } else {
        None
    };
    let found = match (by_variables, given) {
        (None, Some(given)) => by_another_launcher(&given)?,
        (found, _) => found,
    };
    let Some(environment) = found else {
        return Ok(None);
    };
    environment.guard_against_orphaning()?;
    environment.report_panics();
    // Variables may be left over from a job that is gone, which a rank other than 0 would wait for.
    let announces = match environment.origin.started_by {
        StartedBy::Everburn => false,
        StartedBy::Variables => true,
        _ => environment.rank == 0,
    };
    if announces {
        say_error!("{}", environment.announcement());
    }
    if let Some(warning) = environment.loopback_warning() {
        say_error!("warning: {warning}");
    }
    Ok(Some(environment))
}

/// The error of what starts this rank. Of a secret that it lacks: what Everburn's launcher takes by a flag, ranks of others
/// take by a variable.
fn with_flags_of_trust(error: RankEnvironmentError, given: Option<&AboutRanks>) -> CliError {
    let lacks_secret = matches!(error, RankEnvironmentError::NoJobToken { .. });
    let Some(given) = given.filter(|_| lacks_secret) else {
        return error.into();
    };
    let variable = match (given.flags.job_token.is_some(), given.flags.open_store) {
        (true, _) => "--job-token is a flag of Everburn's launcher: export EVERBURN_JOB_TOKEN",
        (false, true) => {
            "--open-store is a flag of Everburn's launcher: export EVERBURN_OPEN_STORE=1"
        }
        (false, false) => return error.into(),
    };
    CliError::usage_with_help(error.to_string(), variable)
}

/// The rank that `srun`, `mpirun` or Kubernetes has made of this process, if one has. A process with the number of its
/// machine is a launcher, which `srun` and its like start once per machine.
fn by_another_launcher(given: &AboutRanks) -> Result<Option<RankEnvironment>, CliError> {
    if given.is_launcher() {
        return Ok(None);
    }
    let launches = given.launch_ranks();
    match RankEnvironment::detect(variable) {
        Err(RankEnvironmentError::NoRank { .. }) if launches => Ok(None),
        Ok(Some(environment)) if launches => Err(launches_in_a_rank(&environment, given)),
        Ok(None) => {
            if !launches && let Some(note) = alone::note(&variable) {
                say_error!("{note}");
            }
            Ok(None)
        }
        found => found.map_err(|error| with_flags_of_trust(error, Some(given))),
    }
}

/// Whether a command does its work in one process, or starts all that it needs, so that several of it would do the same
/// work several times and write the same files.
fn runs_once(command: &Command) -> bool {
    match command {
        Command::Tool(tool) => tool.trains(),
        Command::Generate(_)
        | Command::Chat(_)
        | Command::Export(_)
        | Command::Import(_)
        | Command::Report(_)
        | Command::Bottleneck(_) => true,
        _ => false,
    }
}

/// Refuses to be one of several processes that `srun`, `mpirun` or their like have started.
fn refuse_several_tasks() -> Result<(), CliError> {
    let rank = match RankEnvironment::detect(variable) {
        Ok(Some(rank)) if rank.origin.started_by != StartedBy::Everburn && rank.world_size > 1 => {
            rank.announcement()
        }
        // All is there but what only ranks need.
        Err(RankEnvironmentError::NoJobToken { .. }) => {
            "its variables are those of ranks".to_owned()
        }
        // Variables that make no rank do not matter to it.
        _ => return Ok(()),
    };
    Err(CliError::usage_with_help(
        format!("this command runs in one process, and this is one of several: {rank}"),
        "start it once, without the launcher, or by `srun --ntasks=1`; with EVERBURN_LAUNCHER=none, without RANK, if the \
         variables are left over",
    ))
}

/// Joins the group of all ranks and starts the heartbeat monitor. Returns the store too. `on_wait` is told of ranks that are
/// waited for.
pub(crate) fn join_with_heartbeat(
    environment: &RankEnvironment,
    config: &RanksConfig,
    on_wait: WaitListener,
) -> Result<(ProcessGroup, Option<HeartbeatMonitor>, SharedStore), CliError> {
    let options = group_options(config);
    let meeting = environment.rendezvous_telling(options.timeout, on_wait)?;
    let store = meeting.store.clone();
    let group = ProcessGroup::connect(meeting, options)?;
    let (rank, world_size) = (group.rank(), group.world_size());
    let options = heartbeat_options(config).filter(|_| world_size > 1);
    let heartbeat = options.and_then(|options| {
        HeartbeatMonitor::start(store.clone(), rank, world_size, options)
            .inspect(|heartbeat| heartbeat.follow(&group))
            .inspect_err(|error| tracing::warn!("no heartbeat monitor: {error}"))
            .ok()
    });
    Ok((group, heartbeat, store))
}

/// Prepares the process of a rank that trains: its share of the cores, and what a signal does until it has joined. `undo`
/// ends with the rank what it has prepared.
///
/// # Errors
/// [`CliError`] if the system refuses a thread or a signal handler.
pub(crate) fn begin(
    environment: &RankEnvironment,
    config: &RanksConfig,
    undo: impl Fn() + Send + 'static,
) -> Result<Option<EarlyStop>, CliError> {
    let early = listen_until_joined(environment, undo)?;
    limit_threads(environment, config)?;
    compute_on_this_thread(rayon::current_num_threads())?;
    Ok(early)
}

/// Listens for signals until this rank has joined the others: there is no step to stop after, so that one ends the process.
/// Our own launcher says by itself what a signal has ended.
fn listen_until_joined(
    environment: &RankEnvironment,
    undo: impl Fn() + Send + 'static,
) -> Result<Option<EarlyStop>, CliError> {
    let rank = environment.rank;
    let tell = move |signal: &str| {
        say_error!("rank {rank} stopped on {signal} before its first step: nothing was trained");
        undo();
    };
    let code: fn(i32) -> i32 = match environment.origin.started_by {
        StartedBy::Everburn => return Ok(None),
        // `srun` ends with the highest code of its tasks: that of one that was refused must be higher. A rank that stops
        // after a step ends with 0 too.
        StartedBy::Slurm => |_| 0,
        _ => |signal| 128 + signal,
    };
    EarlyStop::listen_in_a_rank(code, tell)
        .map(Some)
        .map_err(|error| CliError::no_signals(&error))
}

/// The options of the heartbeat monitor; `None` if it is turned off.
pub(crate) fn heartbeat_options(config: &RanksConfig) -> Option<HeartbeatOptions> {
    let timeout = Duration::from_secs(config.heartbeat_timeout);
    (!timeout.is_zero()).then(|| HeartbeatOptions {
        interval: HeartbeatOptions::default().interval.min(timeout / 4),
        timeout: Some(timeout),
        ranks_per_machine: (config.nodes > 1).then_some(config.ranks),
    })
}

/// Tells the user who has stalled, where that is why this rank fails, and says so in the error.
pub(crate) fn report_stall(
    error: CliError,
    heartbeat: Option<&HeartbeatMonitor>,
    environment: &RankEnvironment,
    run: Option<&RunDirectory>,
) -> CliError {
    let (Some(heartbeat), CliError::Train(cause)) = (heartbeat, &error) else {
        return error;
    };
    let log_of = logs(environment);
    let report = cause
        .collective()
        .and_then(|cause| heartbeat.report(cause, &*log_of));
    let Some(report) = report else {
        return error;
    };
    // All ranks make the same one.
    if report.is_printed_here {
        say_error!("{}", with_flags(&report.to_string()));
    }
    if let Some(run) = run {
        recording::note_stall(run, &report);
    }
    let stalled = report.stalled_member();
    if report.own_pause.is_some() || stalled == Some(environment.rank) {
        let text = with_flags(&report.to_string());
        let first = text.lines().next().unwrap_or_default();
        return CliError::StalledItself(first.to_owned());
    }
    CliError::Stalled {
        error: Box::new(error),
        stalled,
        waits_itself: report.waits_itself(),
    }
}

/// Where the logs of this machine's ranks are: beside this rank's report.
pub(crate) fn logs(
    environment: &RankEnvironment,
) -> Box<dyn Fn(usize) -> Option<PathBuf> + Send + Sync> {
    let folder = environment.error_file.as_deref().and_then(Path::parent);
    let folder = folder.map(Path::to_path_buf);
    Box::new(move |rank| {
        let log = folder.as_ref()?.join(format!("rank-{rank}.log"));
        log.is_file().then_some(log)
    })
}

/// Gives the rank its share of this machine's cores, where no launcher of Everburn has done so.
///
/// `--threads-per-rank` and RAYON_NUM_THREADS count first. A process that may not use all cores was bound
/// to its own by its launcher (or by a container), and takes all of those.
pub(crate) fn limit_threads(
    environment: &RankEnvironment,
    config: &RanksConfig,
) -> Result<(), CliError> {
    if environment.origin.started_by == StartedBy::Everburn {
        return Ok(());
    }
    let inherited = std::env::var_os(variables::THREADS).is_some();
    let shared = || (!inherited).then(|| share_of_cores(environment.local_world_size));
    match config.threads_per_rank.or_else(|| shared().flatten()) {
        Some(threads) => use_threads(threads),
        None => Ok(()),
    }
}

/// Lets this process compute with this many threads, before it computes anything.
pub(crate) fn use_threads(threads: usize) -> Result<(), CliError> {
    let built = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build_global();
    built.map_err(|error| CliError::usage(format!("{threads} threads: {error}")))
}

fn share_of_cores(ranks: usize) -> Option<usize> {
    let usable = std::thread::available_parallelism().ok()?.get();
    let cpus = everburn_record::proc::cpus()?;
    (ranks > 1 && usable >= cpus).then(|| (usable / ranks).max(1))
}

/// How the ranks of a job reach each other and wait.
pub(crate) fn group_options(config: &RanksConfig) -> GroupOptions {
    GroupOptions {
        timeout: Some(Duration::from_secs(config.timeout)),
        transport: config.transport,
        ..GroupOptions::default()
    }
}

/// Says to the launcher that this rank has done all of its work, unless it has said that it was stopped or not
/// needed. Nothing must be left to be written.
pub(crate) fn finish(code: ExitCode, environment: Option<&RankEnvironment>) -> ExitCode {
    if let Some(environment) = environment
        && code == ExitCode::SUCCESS
    {
        environment.report_finished();
    }
    code
}

/// The exit code of a rank that has trained, or was stopped before its work was done. It is the launcher's exit code that
/// tells of that, not the rank's.
pub(crate) fn ended(
    trained: Result<bool, CliError>,
    environment: &RankEnvironment,
) -> Result<ExitCode, CliError> {
    match trained {
        Ok(false) => environment.report(ReportKind::Stopped, None, ""),
        Err(CliError::Train(TrainError::JobFinished)) => return Ok(not_needed(environment)),
        Ok(true) => {}
        Err(error) => return Err(error),
    }
    Ok(ExitCode::SUCCESS)
}

/// Says to the launcher that the others have finished the job without this rank.
pub(crate) fn not_needed(environment: &RankEnvironment) -> ExitCode {
    environment.report(ReportKind::NotNeeded, None, "");
    ExitCode::SUCCESS
}

/// Says what went wrong, to the user and to the launcher, and how the process should end.
pub(crate) fn fail(error: &CliError, environment: Option<&RankEnvironment>) -> ExitCode {
    if matches!(error, CliError::Rendezvous(RendezvousError::Stopped)) {
        say_error!("{error}");
        if let Some(environment) = environment {
            environment.report(ReportKind::Stopped, None, "");
        }
        return ExitCode::SUCCESS;
    }
    let secondary = error.is_secondary();
    let elastic = environment.is_some_and(|environment| environment.elastic.is_some());
    let shown = match environment {
        Some(environment) if secondary => {
            let (lost, machine) = (error.lost_rank(), error.silent_machine());
            environment.report_peer_lost(lost, machine, None, &error.to_string())
        }
        // This rank shows the help.
        Some(environment) if elastic => environment.report_error(None, &error.to_string()),
        Some(environment) => environment.report_error(None, &error.in_full()),
        None => false,
    };
    // The launcher shows it, once for all ranks that see the same.
    if !shown {
        error.print();
    }
    ExitCode::from(error.exit_code(elastic))
}
