//! This process as one of several ranks.

use std::process::ExitCode;
use std::time::Duration;

use everburn::collectives::group::{GroupOptions, ProcessGroup};
use everburn::collectives::rendezvous::{RendezvousRequest, rendezvous};
use everburn_launch::{
    EXIT_PEER_LOST, FailureKind, RankEnvironment, RankEnvironmentError, StartedBy, variables,
};

use crate::arguments::{Command, RankFlags};
use crate::config::RanksConfig;
use crate::error::{CliError, EXIT_FAILURE, EXIT_USAGE};

/// What a launcher has told this process, or `None` if a user started it. From then on the process
/// ends with its launcher, if that is ours, and its panics are reported to it.
pub(crate) fn from_environment(command: &Command) -> Result<Option<RankEnvironment>, CliError> {
    let found = if RankEnvironment::is_present() {
        Some(RankEnvironment::from_env()?)
    } else {
        flags_of_ranks(command).map_or(Ok(None), by_another_launcher)?
    };
    let Some(environment) = found else {
        return Ok(None);
    };
    environment.guard_against_orphaning()?;
    environment.report_panics();
    if environment.rank == 0 && environment.origin.started_by != StartedBy::Everburn {
        eprintln!("{}", environment.announcement());
    }
    Ok(Some(environment))
}

/// The flags about ranks of what runs on several; all else takes no notice of `srun` and its like.
fn flags_of_ranks(command: &Command) -> Option<&RankFlags> {
    match command {
        Command::Train(train) if !train.list && !train.plan => Some(&train.ranks),
        Command::Eval(eval) => Some(&eval.ranks),
        _ => None,
    }
}

/// The rank that `srun`, `mpirun` or Kubernetes has made of this process, if one has. Who says which
/// of several machines this is wants our launcher, of which those have started one a machine.
fn by_another_launcher(flags: &RankFlags) -> Result<Option<RankEnvironment>, CliError> {
    if flags.nodes.is_some() || flags.node_rank.is_some() || flags.rendezvous.is_some() {
        return Ok(None);
    }
    let launches = flags.ranks.is_some() || flags.gpus.is_some();
    match RankEnvironment::detect(|name| std::env::var(name).ok()) {
        Err(RankEnvironmentError::NoRank { .. }) if launches => Ok(None),
        Ok(Some(environment)) if launches => Err(CliError::usage_with_help(
            format!(
                "--ranks or --gpus would start ranks, but this is a rank already: {}",
                environment.announcement()
            ),
            "leave them out; or start one process a machine, with --nodes, --node-rank and \
             --rendezvous; or set EVERBURN_LAUNCHER=none",
        )),
        found => Ok(found?),
    }
}

/// Meets the other ranks; without a launcher there are none.
pub(crate) fn join(
    environment: Option<&RankEnvironment>,
    config: &RanksConfig,
) -> Result<ProcessGroup, CliError> {
    let options = group_options(config);
    let Some(environment) = environment else {
        return Ok(ProcessGroup::alone(options));
    };
    let request = RendezvousRequest {
        rank: Some(environment.rank),
        world_size: Some(environment.world_size),
        timeout: options.timeout,
        job_token: environment.job_token.clone(),
    };
    // Under torchrun the variables say more: which part of its store belongs to this attempt.
    let init_method = match environment.origin.started_by.is_foreign() {
        true => environment.init_method(),
        false => "env://".to_owned(),
    };
    let mut meeting = rendezvous(&init_method, request)?;
    meeting.local_rank = environment.local_rank;
    Ok(ProcessGroup::connect(meeting, options)?)
}

/// Gives the rank its share of this machine's cores, where no launcher of ours has done so.
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
    let Some(threads) = config.threads_per_rank.or_else(|| shared().flatten()) else {
        return Ok(());
    };
    let built = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build_global();
    built.map_err(|error| CliError::usage(format!("{threads} threads: {error}")))
}

fn share_of_cores(ranks: usize) -> Option<usize> {
    let usable = std::thread::available_parallelism().ok()?.get();
    let cores = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let cores = cores.lines().filter(|line| line.starts_with("processor"));
    (ranks > 1 && usable >= cores.count()).then(|| (usable / ranks).max(1))
}

/// How the ranks of a job reach each other and wait.
pub(crate) fn group_options(config: &RanksConfig) -> GroupOptions {
    GroupOptions {
        timeout: Some(Duration::from_secs(config.timeout)),
        transport: config.transport,
        ..GroupOptions::default()
    }
}

/// Says what went wrong, to the user and to the launcher, and how the process should end.
pub(crate) fn fail(error: &CliError, environment: Option<&RankEnvironment>) -> ExitCode {
    let secondary = error.is_secondary();
    let code = if error.is_usage() {
        ExitCode::from(EXIT_USAGE)
    } else if secondary {
        ExitCode::from(u8::try_from(EXIT_PEER_LOST).unwrap_or(EXIT_FAILURE))
    } else {
        ExitCode::from(EXIT_FAILURE)
    };
    if let Some(environment) = environment {
        let kind = if secondary {
            FailureKind::PeerLost
        } else {
            FailureKind::Own
        };
        environment.report(kind, None, &error.to_string());
    }
    error.print();
    code
}
