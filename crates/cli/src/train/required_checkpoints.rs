//! What a run must have to be resumed.

use everburn_record::plain::word;
use everburn_record::{MetricLine, folder_of_first_machine};
use everburn_train::checkpoint::CheckpointFolder;

use crate::error::CliError;
use crate::prelude::*;
use crate::summary;

/// Refuses the folder of another machine than the first, which has no checkpoints; a run whose checkpoints were removed; and one
/// that has parameters and has never trained: `import` has made it.
pub(super) fn require_checkpoints(run: &RunDirectory) -> Result<(), CliError> {
    let checkpoints = CheckpointFolder::new(run.checkpoints(), 1).places()?;
    if checkpoints.is_empty()
        && let Some((machine, first)) = folder_of_first_machine(run.path())
    {
        let (path, command) = (run.path().display(), word(&first));
        let first = first.display();
        return Err(CliError::usage_with_help(
            format!(
                "{path} is the folder of machine {machine}, with the logs of its ranks; the checkpoints of the run are in {first} \
                 on machine 0"
            ),
            format!("use `--run-dir {command}` on every machine"),
        ));
    }
    let metrics = run.path().join(MetricLine::FILE).metadata();
    let has_trained = run.report_path().is_file() || metrics.is_ok_and(|file| file.len() > 0);
    let (path, has_model) = (run.path().display(), run.model_path().is_file());
    if has_trained && !run.checkpoints().is_dir() {
        let with_model = match has_model {
            true => format!(
                ", or `{}` begins a training with its model",
                summary::new_training_from(run)
            ),
            false => ", or leave out --resume to begin anew".to_owned(),
        };
        return Err(CliError::usage_with_help(
            format!(
                "{} is gone, from which the run would be resumed",
                run.checkpoints().display()
            ),
            format!("put that folder back from a copy{with_model}"),
        ));
    }
    if has_trained || !checkpoints.is_empty() || !has_model {
        return Ok(());
    }
    Err(CliError::usage_with_help(
        format!("{path} has the weights of an import, and no training to resume"),
        format!(
            "`{}` trains from these weights, in a run of its own",
            summary::new_training_from(run)
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_whose_checkpoints_were_removed_is_no_import() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunDirectory::create(folder.path().join("a")).unwrap();
        std::fs::write(run.config_path(), "model = 'mlp'").unwrap();
        std::fs::write(run.model_path(), "weights").unwrap();
        let told = || {
            let error = require_checkpoints(&run).unwrap_err();
            let help = miette::Diagnostic::help(&error).unwrap().to_string();
            format!("{error}; {help}")
        };
        let imported = told();
        assert!(
            imported.contains("has the weights of an import"),
            "{imported}"
        );
        std::fs::write(run.path().join("metrics.jsonl"), "{}\n").unwrap();
        // The folder is there: that it has no checkpoint is said by who looks for the newest.
        require_checkpoints(&run).unwrap();
        std::fs::remove_dir(run.checkpoints()).unwrap();
        let gone = told();
        assert!(gone.contains("/checkpoints is gone, from which"), "{gone}");
        assert!(gone.contains("--init-from"), "{gone}");
        std::fs::remove_file(run.model_path()).unwrap();
        let gone = told();
        assert!(gone.ends_with("leave out --resume to begin anew"), "{gone}");
    }
}
