//! This process as the launcher of ranks.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use everburn_collectives::rendezvous::variable;
use everburn_launch::{EarlyStop, LaunchConfig, LaunchEvent, Launcher, Outcome};
use everburn_record::{Live, invocation};

use crate::arguments::keys::with_flags;
use crate::arguments::{Command, RankFlags};
use crate::config::RanksConfig;
use crate::error::CliError;
use crate::terminal::for_stderr;
use crate::{elastic, rank};

/// What is to be launched, checked as far as it can be without starting anything. `names_nodes`: --nodes was given.
///
/// # Errors
/// [`CliError`] if it can never work: flags that do not go together, a port in use.
pub(crate) fn plan(
    config: &RanksConfig,
    flags: &RankFlags,
    names_nodes: bool,
) -> Result<LaunchConfig, CliError> {
    let program = std::env::current_exe()
        .map_err(|error| CliError::usage(format!("this program cannot find itself: {error}")))?;
    if flags.rendezvous.is_some() && config.nodes == 1 && !names_nodes {
        return Err(CliError::usage_with_help(
            "--rendezvous without --nodes",
            "give --nodes N and --node-rank I as well",
        ));
    }
    if config.nodes > 1 && flags.node_rank.is_none() {
        let last = config.nodes - 1;
        return Err(CliError::usage_with_help(
            format!("--nodes {} without --node-rank", config.nodes),
            rank::help_with_nodes(variable).unwrap_or_else(|| {
                format!(
                    "say which machine this is: --node-rank 0 for the first, to --node-rank {last} for the last"
                )
            }),
        ));
    }
    let launch = LaunchConfig {
        nodes: config.nodes,
        node_rank: flags.node_rank.unwrap_or(0),
        rendezvous: flags.rendezvous.clone(),
        store: flags.store.clone(),
        job_token: flags.token()?,
        open_store: flags.open_store,
        threads_per_rank: config.threads_per_rank,
        // The rank that draws may be lost, and the terminal with it.
        dashboard: !flags.no_dashboard && config.elastic.is_none(),
        elastic: elastic::launch(config),
        heartbeat_timeout: rank::heartbeat_options(config).and_then(|beats| beats.timeout),
        // Ranks name commands as this launcher's user types them.
        env: vec![(invocation::VARIABLE.into(), invocation::name().into())],
        step_limit: Some(Duration::from_secs(config.timeout)),
        ..LaunchConfig::new(program, config.ranks, "")
    };
    Launcher::check(&launch)?;
    Ok(launch)
}

/// A command that starts ranks.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Work {
    Train,
    Eval,
    Predict,
}

impl Work {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Eval => "eval",
            Self::Predict => "predict",
        }
    }

    /// What is said of the signal that ends it before there are ranks.
    fn stopped_on(self, signal: &str) -> String {
        let done = match self {
            Self::Train => "trained",
            Self::Eval => "evaluated",
            Self::Predict => "predicted",
        };
        format!("stopped on {signal} before any rank was started: nothing was {done}")
    }
}

/// Listens for signals until the ranks' launcher does: preparing a job may take long, and a signal then says what was stopped.
/// `undo` ends with it what was prepared.
pub(crate) fn listen_early(
    work: Work,
    undo: impl Fn() + Send + 'static,
) -> Result<EarlyStop, CliError> {
    let tell = move |signal: &str| {
        say_error!("{}", work.stopped_on(signal));
        undo();
    };
    EarlyStop::listen(tell).map_err(|error| CliError::no_signals(&error))
}

/// Starts this program once per rank with `arguments`, and returns when all have ended: [`say_end`] then says how. `early` has
/// listened for signals before.
pub(crate) fn run(
    plan: LaunchConfig,
    arguments: Vec<OsString>,
    log_dir: PathBuf,
    early: EarlyStop,
    tell: impl Fn(&LaunchEvent) + 'static,
) -> Result<Outcome, CliError> {
    let run = log_dir.parent().map(Path::to_path_buf);
    let launch = LaunchConfig {
        args: arguments,
        log_dir,
        ..plan
    };
    let mut outcome = Launcher::new(launch).after(early).tell_with(tell).run()?;
    if let Outcome::Failed(failure) = &mut outcome
        && let (Some(machine), Some(run)) = (&mut failure.lost_machine, &run)
    {
        let rank = machine.ranks.first().copied();
        let recorded = rank.and_then(|rank| Live::read(run)?.host_of(rank));
        machine.host = recorded.or(machine.host.take());
    }
    Ok(outcome)
}

/// Says at the store of a job of several machines that this one's launcher ends because of `error`: where its ranks have not
/// joined, the others would wait for them. The ranks of a job that has begun take no notice.
pub(crate) fn give_up(command: &Command, error: &CliError) {
    let Some(flags) = rank::given::flags_of_machine(command) else {
        return;
    };
    let (Some(node_rank), Ok(job_token)) = (flags.node_rank, flags.token()) else {
        return;
    };
    let launch = LaunchConfig {
        // At least: how many there are may be what is wrong.
        nodes: node_rank.saturating_add(1),
        node_rank,
        rendezvous: flags.rendezvous.clone(),
        job_token,
        open_store: flags.open_store,
        ..LaunchConfig::new("", 0, "")
    };
    Launcher::give_up(&launch, &error.to_string());
}

/// Says how a job has ended, if not well.
pub(crate) fn say_end(outcome: &Outcome, is_elastic: bool) {
    if !matches!(outcome, Outcome::Succeeded) {
        // That of a failure ends with a line break of its own.
        let text = with_flags(outcome.to_string().trim_end());
        // The lines after the first are those of logs, as they are there.
        let length = text.find('\n').unwrap_or(text.len());
        let (first, rest) = text.split_at(length);
        say_error!("{}{rest}", for_stderr(first));
    }
    if let Outcome::Failed(failure) = outcome
        && failure.own_pause.is_some()
    {
        let line = format!("help: {}", after_own_pause(is_elastic));
        say_error!("{}", for_stderr(&line));
    }
}

/// What to do where the other machines did not wait for this one.
fn after_own_pause(is_elastic: bool) -> &'static str {
    match is_elastic {
        true => {
            "see by the launchers of the other machines whether the job continues: if so, the same command lets this machine \
             join again; if not, start the command of each machine, with --resume if the run has a checkpoint, else without"
        }
        false => {
            "the job has ended on all machines: start the command of each, with --resume if machine 0 has a checkpoint, else \
             without; --elastic continues without a machine that does not run"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_before_there_are_ranks_says_what_was_not_done() {
        let told = [Work::Train, Work::Eval, Work::Predict].map(|work| work.stopped_on("SIGINT"));
        let whole = "stopped on SIGINT before any rank was started: nothing was trained";
        assert_eq!(told[0], whole);
        assert!(told[1].ends_with("nothing was evaluated"), "{}", told[1]);
        assert!(told[2].ends_with("nothing was predicted"), "{}", told[2]);
    }

    #[test]
    fn a_machine_that_was_stopped_joins_an_elastic_job_again_and_resumes_another() {
        assert!(after_own_pause(true).contains("join again"));
        assert!(after_own_pause(false).contains("with --resume if machine 0 has a checkpoint"));
    }
}
