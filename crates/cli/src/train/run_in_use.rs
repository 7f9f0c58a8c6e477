//! The folder of a run that another process has.

use everburn_record::{Live, folder_of_machine};

use crate::arguments::TrainArguments;
use crate::error::CliError;
use crate::prelude::*;

/// The error of a folder that cannot be taken, with who has it and what may have been started twice.
pub(super) fn started_twice(error: TrainError, arguments: &TrainArguments) -> CliError {
    let owner = match &error {
        TrainError::RunInUse { path } => Live::owner(path),
        _ => return error.into(),
    };
    let owner = owner.map_or(String::new(), |process| {
        format!("process {process} has it: ")
    });
    let help = match arguments.ranks.node_rank {
        Some(node) => {
            format!("{owner}check that no other launcher was started with --node-rank {node}")
        }
        None => format!("{owner}check that neither this command nor rank 0 was started twice"),
    };
    CliError::usage_with_help(error.to_string(), help)
}

/// Refuses the folder of a run that another process has, which else would be found out once the data are read.
pub(super) fn refuse_run_in_use(arguments: &TrainArguments) -> Result<(), CliError> {
    let Some(path) = &arguments.run_dir else {
        return Ok(());
    };
    let path = folder_of_machine(path, arguments.ranks.node_rank.unwrap_or(0));
    if !path.join(Live::LOCK).is_file() {
        return Ok(());
    }
    // What is wrong with a folder without a run is said later.
    let Ok(run) = RunDirectory::open(path) else {
        return Ok(());
    };
    let held = run.lock();
    held.map(drop)
        .map_err(|error| started_twice(error, arguments))
}
