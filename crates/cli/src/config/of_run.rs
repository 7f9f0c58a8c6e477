//! The configuration of a run that has been trained, maybe by another program.

use std::path::Path;

use everburn_record::Environment;
use everburn_train::{AnyTask, RunDirectory};

use super::RunConfig;
use crate::error::CliError;
use crate::{legible, tasks};

impl RunConfig {
    /// The configuration of `run`, which is of a task of this program.
    pub(crate) fn of_run(run: &RunDirectory) -> Result<Self, CliError> {
        let config = run.read_config::<Self>()?;
        task_of_run(&config.model, run.path())?;
        Ok(config)
    }
}

/// The task `model` of the run in `folder`.
pub(super) fn task_of_run(model: &str, folder: &Path) -> Result<&'static AnyTask, CliError> {
    tasks::find(model).ok_or_else(|| {
        let shown = legible(model);
        let program = program_of(folder);
        let program = program.map(|program| format!(": {}", legible(&program)));
        CliError::usage_with_help(
            format!(
                "the run {} is of the task `{shown}`, which this program does not have",
                folder.display()
            ),
            format!(
                "run it by the program that trained it{}",
                program.unwrap_or_default()
            ),
        )
    })
}

/// The program that trained a run, as its `environment.json` names it.
fn program_of(folder: &Path) -> Option<String> {
    let command = Environment::of_run(folder)?.command?;
    command.split_whitespace().next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use miette::Diagnostic;

    use super::*;

    #[test]
    fn a_run_of_another_program_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let help = || {
            let error = task_of_run("points", folder.path()).err().unwrap();
            assert!(
                error.to_string().contains("of the task `points`"),
                "{error}"
            );
            error.help().unwrap().to_string()
        };
        assert_eq!(help(), "run it by the program that trained it");
        let environment = r#"{"command":"./target/points train --epochs 1"}"#;
        std::fs::write(folder.path().join("environment.json"), environment).unwrap();
        assert_eq!(
            help(),
            "run it by the program that trained it: ./target/points"
        );
        assert!(task_of_run("mnist", folder.path()).is_ok());
    }
}
