//! Whether the newest run was cut off: killed with its launcher, so that nobody was left to say so.

use std::path::Path;

use everburn_monitor::Target;
use everburn_record::{Finding, Live};

/// The newest run in `runs`, or the run that `runs` itself is, if it was cut off on this machine.
pub(super) fn finding(runs: &Path) -> Option<Finding> {
    let newest = match Target::newest_in(runs) {
        Ok(Target::Folder(newest)) => newest,
        _ => runs.to_path_buf(),
    };
    let (_, text) = Live::cut_off_in(&newest)?;
    let found = format!("{}: {text}", newest.display());
    let advice = "`train --resume --run-dir` and this folder continue the run";
    Some(Finding::warn("newest run", found, advice))
}

#[cfg(test)]
mod tests {
    use everburn_record::{LiveRank, Phase, proc};

    use super::*;

    #[test]
    fn a_run_that_was_cut_off_is_found_in_the_folder_of_runs_and_by_its_own_name() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let ended = child.id();
        child.wait().unwrap();
        let runs = tempfile::tempdir().unwrap();
        let run = runs.path().join("a");
        std::fs::create_dir(&run).unwrap();
        std::fs::write(run.join("config.toml"), "model = 'mnist'").unwrap();
        let write = |process: u32| {
            let rank = LiveRank {
                alive: true,
                pid: Some(process),
                host: proc::host_name(),
                ..LiveRank::default()
            };
            let live = Live {
                phase: Phase::Training,
                ranks: vec![rank],
                ..Live::default()
            };
            live.write(&run.join(Live::FILE)).unwrap();
        };
        write(std::process::id());
        assert_eq!(finding(runs.path()), None);
        write(ended);
        for folder in [runs.path(), &run] {
            let line = finding(folder).unwrap().to_string();
            assert!(line.starts_with("warn  newest run"), "{line}");
            assert!(line.contains("was cut off on "), "{line}");
            assert!(line.contains("--resume --run-dir"), "{line}");
        }
    }
}
