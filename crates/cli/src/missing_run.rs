//! Which run is meant by the name of a folder that is none.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use everburn_record::{RUNS, folder_of_first_machine, runs_in};
use everburn_train::nearest_name;

use crate::arguments::keys::with_flags;
use crate::error::CliError;
use crate::prelude::*;

/// How many runs are named.
const MOST_NAMES: usize = 8;

/// The run in `folder`.
///
/// # Errors
/// Why there is none, with what to do.
pub(crate) fn open(folder: &Path) -> Result<RunDirectory, CliError> {
    RunDirectory::open(folder).map_err(|error| {
        // A file of weights, and checkpoints without their run, are what was meant: the error says what to do.
        let is_meant = folder.is_file() || folder.join("checkpoints").is_dir();
        CliError::Usage {
            message: with_flags(&error.to_string()),
            help: (!is_meant).then(|| help(folder)),
        }
    })
}

/// What to do where `folder` was given as that of a run, and is none: the run of a similar name, or those beside it.
pub(crate) fn help(folder: &Path) -> String {
    let error = std::fs::read_dir(folder).err();
    help_where(folder, error.map(|error| error.kind()))
}

/// The same where `folder` cannot be read for this reason.
fn help_where(folder: &Path, error: Option<ErrorKind>) -> String {
    if error == Some(ErrorKind::PermissionDenied) {
        return format!(
            "this user may not read {} or a folder above it: `ls -ld` shows the owner and the mode of each",
            folder.display()
        );
    }
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let beside = match folder.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let is_of_machine = |other: &PathBuf| {
        let first = folder_of_first_machine(other);
        first.is_some_and(|(_, first)| first.file_name() == folder.file_name())
    };
    if let Some(own) = runs_in(beside).into_iter().find(is_of_machine) {
        return format!("this machine's folder of that run is `{}`", own.display());
    }
    // A folder of runs was given, or a run that is not there, or its name without the folder of runs.
    let is_name = folder.components().count() == 1 && folder.is_relative();
    let usual = is_name.then_some((Path::new(RUNS), &*name));
    let places = [(folder, ""), (beside, &*name)].into_iter().chain(usual);
    let places = places.map(|(runs, name)| {
        let names = runs_in(runs).into_iter();
        let names = names.filter_map(|run| run.file_name()?.to_str().map(str::to_owned));
        (runs, name, names.collect::<Vec<String>>())
    });
    let places: Vec<_> = places.collect();
    for (runs, name, names) in &places {
        if let Some(near) = nearest_name(name, names.iter().map(String::as_str)) {
            return format!("did you mean `{}`?", runs.join(near).display());
        }
    }
    for (runs, _, names) in &places {
        let path = |name: &str| runs.join(name).display().to_string();
        if !names.is_empty() {
            let shown: Vec<_> = names.iter().take(MOST_NAMES).map(|it| path(it)).collect();
            let more = match names.len() - shown.len() {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            return format!("there are runs in {}{more}", shown.join(", "));
        }
    }
    "check the path: a run is in the folder that `train --run-dir` was given, else in a folder of `runs`; `ls -d runs/*` \
     lists those"
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_is_no_run_is_answered_with_those_that_are() {
        let folder = tempfile::tempdir().unwrap();
        let runs = folder.path().join("runs");
        let missing = runs.join("mnist-1a");
        assert!(
            help(&missing).starts_with("check the path"),
            "{}",
            help(&missing)
        );
        for name in ["mnist-1", "vit"] {
            std::fs::create_dir_all(runs.join(name)).unwrap();
            std::fs::write(runs.join(name).join("config.toml"), "").unwrap();
        }
        std::fs::create_dir(runs.join("notes")).unwrap();
        let meant = format!("did you mean `{}`?", runs.join("mnist-1").display());
        assert_eq!(help(&missing), meant);
        for none in [runs.join("xyz"), runs.join("notes"), runs.clone()] {
            let help = help(&none);
            assert!(help.starts_with("there are runs in "), "{help}");
            for name in ["mnist-1", "vit"] {
                let path = runs.join(name).display().to_string();
                assert!(help.contains(&path), "{help}");
            }
            assert!(!help.contains("/notes"), "{help}");
        }
        let of_machine = runs.join("m2-node-1");
        std::fs::create_dir(&of_machine).unwrap();
        std::fs::write(of_machine.join("config.toml"), "[ranks]\nnodes = 2\n").unwrap();
        let own = format!("folder of that run is `{}`", of_machine.display());
        assert!(
            help(&runs.join("m2")).ends_with(&own),
            "{}",
            help(&runs.join("m2"))
        );
    }

    #[test]
    fn of_a_folder_that_may_not_be_read_no_other_name_is_guessed() {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("mnist-1");
        std::fs::create_dir(&run).unwrap();
        let refused = help_where(&run, Some(ErrorKind::PermissionDenied));
        assert!(refused.contains("this user may not read "), "{refused}");
        assert!(help_where(&run, None).starts_with("check the path"));
    }

    #[test]
    fn a_report_and_a_monitor_of_a_folder_without_a_run_have_help() {
        let folder = tempfile::tempdir().unwrap();
        // Nothing else is beside it.
        let runs = folder.path().join("runs");
        std::fs::create_dir(&runs).unwrap();
        for path in [runs.clone(), runs.join("none")] {
            let report = everburn_report::Run::read(&path).unwrap_err();
            let monitor = everburn_monitor::RunTail::open(&path).unwrap_err();
            for error in [CliError::from(report), CliError::from(monitor)] {
                assert!(error.is_usage(), "{error}");
                let help = miette::Diagnostic::help(&error).map(|help| help.to_string());
                assert!(
                    help.is_some_and(|help| help.contains("check the path")),
                    "{error}"
                );
            }
        }
    }
}
