//! `everburn audit`: checks that the record of a run is what was written, and trains steps of it again.

mod record;
mod replay;
mod weights;

use std::ffi::OsString;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use everburn_launch::Children;
use everburn_record::units::counted;
use everburn_record::{Environment, Versions, proc};
use everburn_train::checkpoint::CheckpointFolder;
use everburn_train::{RunDirectory, StateHashes};

use self::record::{CheckpointChain, Record};
use self::replay::{Replay, newest_before};
use super::ToolError;
use crate::config::RunConfig;
use crate::{legible, missing_run};

/// Check the record of a run and replay steps of it, as in `audit RUN --from 100 --to 200 --ranks 2`.
///
/// Checks that no line of hashes.jsonl was changed, left out or added since it was written, and that checkpoints and
/// model.safetensors have the trained parameters of their steps. Then trains the steps of the
/// window again, from the newest checkpoint before it or else from the start, and compares parameters, buffers, optimizer
/// state and loss after each step, bit by bit.
///
/// If the record or a file was changed or a step differs, it names the first step and tensor and exits with 1.
#[derive(Debug, Args)]
pub(crate) struct AuditArguments {
    /// The folder of a run that was trained with --hash-every.
    run: PathBuf,

    /// The first step of the window [default: the first recorded one].
    #[arg(long, value_name = "STEP")]
    from: Option<usize>,

    /// The last step of the window [default: the last recorded one].
    #[arg(long, value_name = "STEP")]
    to: Option<usize>,

    /// The number of ranks of the replay; a number other than the run's needs a run with --virtual-ranks [default: the
    /// run's].
    #[arg(long)]
    ranks: Option<usize>,

    /// Check the signature of each line with the secret in this file, as given to `train --hash-key`.
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,

    /// Check only the record and the files, and replay nothing.
    #[arg(long, conflicts_with_all = ["from", "to", "ranks"])]
    no_replay: bool,

    /// The longest time of the replay in seconds; a longer one counts as a hang.
    #[arg(long, default_value_t = 86400)]
    run_timeout: u64,

    /// More flags of `train`, after `--`, as in `-- --data-dir data`.
    #[arg(last = true, value_name = "FLAGS")]
    train: Vec<OsString>,
}

impl AuditArguments {
    /// On how many ranks the run with `config` is replayed.
    fn ranks(&self, config: &RunConfig) -> Result<usize, String> {
        let of_run = config.world_size();
        let ranks = self.ranks.unwrap_or(of_run);
        match config.training.virtual_ranks {
            None if ranks != of_run => Err(format!(
                "the run was trained on {} without --virtual-ranks, so it has other bits on {}: leave --ranks away",
                counted(of_run, "rank"),
                counted(ranks, "rank")
            )),
            Some(shards) if !(1..=shards).contains(&ranks) => Err(format!(
                "the run has --virtual-ranks {shards}, which cannot be shared out to {}",
                counted(ranks, "rank")
            )),
            _ => Ok(ranks),
        }
    }

    /// The steps that are to be compared.
    fn window(&self, record: &Record) -> Result<RangeInclusive<usize>, String> {
        let (first, last) = record.ends();
        let (from, to) = (self.from.unwrap_or(first), self.to.unwrap_or(last));
        let steps = match from <= to && to <= last {
            true => record.steps(from..=to),
            false => Vec::new(),
        };
        match (steps.first(), steps.last()) {
            (Some(first), Some(last)) => Ok(*first..=*last),
            _ => Err(format!(
                "there is nothing to compare in steps {from} to {to}: {} has steps {first} to {last}",
                StateHashes::FILE
            )),
        }
    }
}

pub(crate) fn run(options: &AuditArguments) -> Result<ExitCode, ToolError> {
    let run = RunDirectory::open(&options.run).map_err(|error| {
        ToolError::Usage(format!("{error}; {}", missing_run::help(&options.run)))
    })?;
    let config = RunConfig::of_run(&run).map_err(undone)?;
    let key = options.key.as_deref().map(StateHashes::read_key);
    let key = key.transpose();
    let key = key.map_err(undone)?;
    let checkpoints = CheckpointFolder::new(run.checkpoints(), config.training.keep_checkpoints);
    let chains = CheckpointChain::all_in(&checkpoints)?;
    let record = Record::read(run.path(), key.as_ref())?;
    record.check_checkpoints(&chains)?;
    say!("{}: {record}", legible(&config.model));
    for line in weights::compare(&run, &config, &chains, &record)? {
        say!("  {line}");
    }
    if options.no_replay {
        return Ok(ExitCode::SUCCESS);
    }
    let ranks = options.ranks(&config).map_err(ToolError::Usage)?;
    let window = options.window(&record).map_err(ToolError::Usage)?;
    warn_of_another_program(run.path());
    let replay = Replay {
        options,
        run: &run,
        record: &record,
        config,
        ranks,
        start: newest_before(&checkpoints, *window.start())?,
        last: *window.end(),
        folder: tempfile::tempdir().map_err(undone)?,
    };
    say!("  {replay}");
    let Some(difference) = replay.follow(&Children::listen()?)? else {
        say!("the replay has the recorded bits");
        return Ok(ExitCode::SUCCESS);
    };
    say!("the replay DIFFERS at {difference}");
    for cause in replay.possible_causes(&difference) {
        say!("  {cause}");
    }
    Ok(ExitCode::FAILURE)
}

/// An error that is no finding: what was changed or differs ends with another exit code.
fn undone(error: impl std::fmt::Display) -> ToolError {
    ToolError::Usage(error.to_string())
}

/// Warns where the run was made by versions or on a CPU that may round differently.
fn warn_of_another_program(run: &Path) {
    let Some(of_run) = Environment::of_run(run) else {
        return;
    };
    let here = Versions::default();
    let version = |name: &str| of_run.versions.get(name).cloned();
    let pairs = [
        (version("Everburn"), Some(here.everburn), "Everburn "),
        (version("Burn"), Some(here.burn), "Burn "),
        (of_run.processor.clone(), proc::cpu_name(), ""),
    ];
    for (theirs, ours, what) in pairs {
        if let (Some(theirs), Some(ours)) = (theirs, ours)
            && theirs != ours
        {
            let theirs = legible(theirs);
            tracing::warn!(
                "the run was made with {what}{theirs}; this is {what}{ours}, which may round differently"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::Tool;
    use super::*;
    use crate::arguments::{Arguments, Command};

    #[test]
    fn another_number_of_ranks_needs_logical_shards_for_them() {
        let ranks = |line: &str, virtual_ranks| {
            let words = ["everburn", "audit", "run"].into_iter();
            let words = words.chain(line.split_whitespace());
            let Command::Tool(Tool::Audit(options)) =
                Arguments::try_parse_from(words).unwrap().command
            else {
                panic!("another command");
            };
            let mut config = RunConfig::default();
            config.ranks.ranks = 2;
            config.training.virtual_ranks = virtual_ranks;
            options.ranks(&config)
        };
        assert_eq!(ranks("", None), Ok(2));
        assert_eq!(ranks("--ranks 3", Some(4)), Ok(3));
        let without = ranks("--ranks 3", None).unwrap_err();
        assert!(without.contains("on 2 ranks without"), "{without}");
        let beyond = ranks("--ranks 5", Some(4)).unwrap_err();
        assert!(beyond.contains("shared out to 5 ranks"), "{beyond}");
    }
}
