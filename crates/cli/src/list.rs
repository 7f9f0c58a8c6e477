//! `train --list`

use std::process::ExitCode;

use everburn_models::registry::{self, ModelOptions};

use crate::error::CliError;

/// Prints the models with their parameter counts.
pub(crate) fn run() -> Result<ExitCode, CliError> {
    say!("{:<15} {:>11}  what it is", "model", "parameters");
    for info in registry::MODELS {
        let parameters =
            registry::num_params(info.name, &ModelOptions::default()).unwrap_or_default();
        say!("{:<15} {parameters:>11}  {}", info.name, info.summary);
    }
    Ok(ExitCode::SUCCESS)
}
