//! `train --list`

use std::process::ExitCode;

use toml::Table;

use crate::error::CliError;
use crate::tasks::tasks;

/// Prints the tasks with the parameter counts of their models.
pub(crate) fn run() -> Result<ExitCode, CliError> {
    say!("{:<15} {:>11}  what it is", "model", "parameters");
    for task in tasks() {
        let parameters = task.configure(&Table::new())?.num_params()?;
        say!("{:<15} {parameters:>11}  {}", task.name(), task.summary());
    }
    Ok(ExitCode::SUCCESS)
}
