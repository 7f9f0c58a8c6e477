//! The files of a rank in the folder of logs: its log, and the reports of an earlier process.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use everburn_record::file;

use crate::config::LaunchConfig;
use crate::error::LaunchError;
use crate::failure::ReportKind;
use crate::outcome::EndedRank;

/// Opens (and empties) the log of `rank` and removes its reports from an earlier run.
pub(crate) fn open_log(config: &LaunchConfig, rank: usize) -> Result<File, LaunchError> {
    let path = config.log_path(rank);
    let failed = |path, source| LaunchError::LogDir { path, source };
    let file = file::append_to(&path)
        .and_then(|file| file.set_len(0).map(|()| file))
        .map_err(|source| failed(path, source))?;
    for report in [config.error_path(rank), config.finished_path(rank)] {
        remove_if_there(&report).map_err(|source| failed(report, source))?;
    }
    Ok(file)
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Opens the log of a rank that is started again, says so in it, and moves the last process's report aside,
/// because the first report of a process stands. What a full disk does not take is a warning: the rank is started.
///
/// # Errors
/// The system's error if the log cannot be opened, or if a report of the last process can neither be moved nor removed.
pub(crate) fn continue_log(
    config: &LaunchConfig,
    rank: usize,
    incarnation: u64,
) -> io::Result<File> {
    let report = config.error_path(rank);
    let last = incarnation.saturating_sub(1);
    match std::fs::rename(&report, config.earlier_error_path(rank, last)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!("the report of process {last} of rank {rank} is not kept: {error}");
            remove_if_there(&report)?;
        }
        _ => {}
    }
    // What an earlier process has said is no word of this one.
    remove_if_there(&config.finished_path(rank))?;
    let mut log = file::append_to(&config.log_path(rank))?;
    let begins = format!("--- rank {rank}: process {incarnation} begins here ---");
    if let Err(error) = writeln!(log, "{begins}") {
        tracing::warn!("the log of rank {rank} lacks the line `{begins}`: {error}");
    }
    Ok(log)
}

/// The last line in the log of a rank that has not written it. One that another rank's failure has ended does not print that
/// itself: all ranks of a job may see that failure, and the launcher shows it once. So it does with an error of the rank's own.
pub(crate) fn last_line(ended: &EndedRank) -> Option<String> {
    match ended.failure() {
        Some(report) if report.unprinted || report.kind == ReportKind::PeerLost => {
            Some(format!("error: {}", report.message))
        }
        _ if ended.ended_by_launcher => Some(format!(
            "--- rank {}: the launcher has ended this process ---",
            ended.rank
        )),
        _ => None,
    }
}

pub(crate) fn add_to_log(config: &LaunchConfig, rank: usize, line: &str) -> io::Result<()> {
    let mut log = file::append_to(&config.log_path(rank))?;
    writeln!(log, "{line}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_stands_where_a_log_belongs_is_refused_and_its_target_kept() {
        let folder = tempfile::tempdir().unwrap();
        let theirs = folder.path().join("theirs");
        std::fs::write(&theirs, "precious").unwrap();
        let config = LaunchConfig::new("true", 1, folder.path());
        std::os::unix::fs::symlink(&theirs, config.log_path(0)).unwrap();
        let refused = open_log(&config, 0).unwrap_err().to_string();
        assert!(refused.contains("rank-0.log"), "{refused}");
        assert!(continue_log(&config, 0, 2).is_err());
        assert_eq!(std::fs::read_to_string(&theirs).unwrap(), "precious");
    }

    #[test]
    fn a_rank_is_started_again_where_its_last_report_cannot_be_kept() {
        let folder = tempfile::tempdir().unwrap();
        let config = LaunchConfig::new("true", 1, folder.path());
        for (process, is_kept) in [(2, true), (3, false)] {
            std::fs::write(config.error_path(0), "why").unwrap();
            let kept = config.earlier_error_path(0, process - 1);
            if !is_kept {
                // A file cannot take its place.
                std::fs::create_dir(&kept).unwrap();
            }
            drop(continue_log(&config, 0, process).unwrap());
            assert!(!config.error_path(0).exists(), "process {process}");
            assert_eq!(kept.is_file(), is_kept);
        }
        let log = std::fs::read_to_string(config.log_path(0)).unwrap();
        let begins =
            [2, 3].map(|process| format!("--- rank 0: process {process} begins here ---\n"));
        assert_eq!(log, begins.concat());
    }
}
