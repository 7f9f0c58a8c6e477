//! The runs in a folder.

use std::path::{Path, PathBuf};

use crate::Live;
use crate::plain::word;

/// The folders of the runs in `folder`, the one that was written to last first. A folder that cannot be read has none.
///
/// ```
/// let runs = tempfile::tempdir()?;
/// assert!(everburn_record::runs_in(runs.path()).is_empty());
/// let run = runs.path().join("mnist-1");
/// std::fs::create_dir(&run)?;
/// std::fs::write(run.join("config.toml"), "model = 'mnist'")?;
/// assert_eq!(everburn_record::runs_in(runs.path()), [run]);
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn runs_in(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let runs = entries.filter_map(|entry| {
        let path = entry.path();
        let written = |name: &str| path.join(name).metadata().ok()?.modified().ok();
        let config = written("config.toml")?;
        Some((
            written(Live::FILE).map_or(config, |live| live.max(config)),
            path,
        ))
    });
    let mut runs: Vec<_> = runs.collect();
    runs.sort();
    runs.into_iter().rev().map(|(_, path)| path).collect()
}

/// Whether the run in `folder` has a checkpoint from which it can be continued, by the names in its folder `checkpoints`:
/// one that was being written is none.
fn has_checkpoint(folder: &Path) -> bool {
    let entries = std::fs::read_dir(folder.join("checkpoints"));
    let names = entries
        .into_iter()
        .flatten()
        .flatten()
        .map(|it| it.file_name());
    let is_whole = |name: std::ffi::OsString| {
        let name = name.to_string_lossy();
        // One that was being replaced is still there, aside.
        let place = name.strip_prefix(".replaced-").unwrap_or(&name);
        place.starts_with("epoch-")
    };
    names.into_iter().any(is_whole)
}

/// What is to be said of newer checkpoints than those of the run in `folder`: where its `config.toml` says that the job was
/// elastic on several machines, another one writes them while machine 0 is away, in its own folder of the run.
///
/// ```
/// let runs = tempfile::tempdir()?;
/// let run = runs.path().join("a");
/// std::fs::create_dir(&run)?;
/// std::fs::write(run.join("config.toml"), "[ranks]\nnodes = 2\nelastic = \"1:4\"\n")?;
/// let text = everburn_record::checkpoints_elsewhere(&run).unwrap();
/// assert!(text.contains("a-node-K/checkpoints"), "{text}");
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn checkpoints_elsewhere(folder: &Path) -> Option<String> {
    let machines = machines_of(folder);
    setting_of_ranks(folder, "elastic").filter(|_| machines > 1)?;
    let name = folder.file_name()?.to_str()?;
    let own = newest_checkpoint(folder).map(|(place, _)| place);
    let beside = (1..machines).filter_map(|machine| {
        let (place, path) =
            newest_checkpoint(&folder.with_file_name(format!("{name}-node-{machine}")))?;
        (Some(&place) > own.as_ref()).then_some((place, path))
    });
    let into = word(folder.join("checkpoints"));
    let then = "then start the command of each machine as before, with --resume";
    Some(match beside.max() {
        Some((_, newest)) => format!(
            "another machine of this elastic job has a newer one, which is on this disk: copy {} into {into}; {then}",
            word(newest)
        ),
        None => format!(
            "another machine of this elastic job may have written newer ones, in {name}-node-K/checkpoints there: look at each \
             machine first and copy the newest one into {into}; {then}"
        ),
    })
}

/// On how many machines the run in `folder` is, as its `config.toml` says.
///
/// ```
/// let run = tempfile::tempdir()?;
/// assert_eq!(everburn_record::machines_of(run.path()), 1);
/// std::fs::write(run.path().join("config.toml"), "[ranks]\nnodes = 2\n")?;
/// assert_eq!(everburn_record::machines_of(run.path()), 2);
/// # Ok::<(), std::io::Error>(())
/// ```
#[must_use]
pub fn machines_of(folder: &Path) -> usize {
    let machines = setting_of_ranks(folder, "nodes");
    machines.and_then(|it| it.parse().ok()).unwrap_or(1)
}

/// How the run in `folder` starts again, which has no checkpoint.
///
/// ```
/// let run = tempfile::tempdir()?;
/// assert_eq!(everburn_record::starts_again(run.path()), "the same command starts again");
/// # Ok::<(), std::io::Error>(())
/// ```
#[must_use]
pub fn starts_again(folder: &Path) -> &'static str {
    match machines_of(folder) {
        0 | 1 => "the same command starts again",
        _ => "the command of each machine, as before, starts again",
    }
}

/// How the run in `folder` is continued, in the words of who only reads it.
pub(crate) fn continued(folder: &Path) -> String {
    match (has_checkpoint(folder), checkpoints_elsewhere(folder)) {
        (true, None) => "--resume continues from the newest checkpoint".to_owned(),
        (true, Some(elsewhere)) => {
            format!("--resume continues from the newest checkpoint here, but {elsewhere}")
        }
        (false, None) => {
            format!(
                "it has no checkpoint to continue from: {}",
                starts_again(folder)
            )
        }
        (false, Some(elsewhere)) => format!("it has no checkpoint here, but {elsewhere}"),
    }
}

/// The newest checkpoint in a run's folder, after the epochs and batches in its name.
fn newest_checkpoint(folder: &Path) -> Option<(Vec<u64>, PathBuf)> {
    let entries = std::fs::read_dir(folder.join("checkpoints")).ok()?;
    let places = entries.flatten().filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let numbers = name.strip_prefix("epoch-")?.split("-batch-");
        let numbers: Result<Vec<u64>, _> = numbers.map(str::parse).collect();
        Some((numbers.ok()?, entry.path()))
    });
    places.max()
}

/// A setting in the table `[ranks]` of a run's `config.toml`, as it is written there.
fn setting_of_ranks(folder: &Path, key: &str) -> Option<String> {
    let text = std::fs::read_to_string(folder.join("config.toml")).ok()?;
    let lines = text.lines().map(str::trim);
    let mut lines = lines.skip_while(|line| *line != "[ranks]").skip(1);
    let settings = lines.by_ref().take_while(|line| !line.starts_with('['));
    let mut settings = settings.filter_map(|line| line.split_once('='));
    let (_, value) = settings.find(|(name, _)| name.trim() == key)?;
    Some(value.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn the_run_that_was_written_to_last_is_first() {
        let runs = tempfile::tempdir().unwrap();
        let write = |run: &str, name: &str, seconds: u64| {
            let run = runs.path().join(run);
            std::fs::create_dir_all(&run).unwrap();
            let file = File::create(run.join(name)).unwrap();
            file.set_modified(UNIX_EPOCH + Duration::from_secs(seconds))
                .unwrap();
        };
        write("begun-first", "config.toml", 1);
        write("between", "config.toml", 2);
        write("begun-last", "config.toml", 3);
        write("begun-first", Live::FILE, 4);
        write("none", Live::FILE, 5);
        let names = runs_in(runs.path()).into_iter();
        let names = names.map(|path| path.strip_prefix(runs.path()).unwrap().to_owned());
        let names = names.collect::<Vec<_>>();
        assert_eq!(
            names,
            ["begun-first", "begun-last", "between"].map(PathBuf::from)
        );
    }

    #[test]
    fn an_elastic_job_on_several_machines_may_have_newer_checkpoints_on_another() {
        let runs = tempfile::tempdir().unwrap();
        let run = runs.path().join("a");
        let add = |folder: &str| std::fs::create_dir_all(runs.path().join(folder)).unwrap();
        let write = |ranks: &str| {
            let text = format!("model = 'mlp'\n\n[ranks]\n{ranks}\n[training]\nsteps = 9\n");
            std::fs::write(run.join("config.toml"), text).unwrap();
        };
        add("a/checkpoints");
        add("a-node-1/checkpoints/epoch-0000-batch-002440");
        add("a-node-1/checkpoints/epoch-0000-batch-000300");
        for alone in ["nodes = 2\n", "nodes = 1\nelastic = \"1:2\"\n"] {
            write(alone);
            assert_eq!(checkpoints_elsewhere(&run), None, "{alone}");
            assert!(continued(&run).ends_with("the same command starts again"));
        }
        write("ranks = 2\nnodes = 2\n");
        let text = continued(&run);
        assert!(
            text.ends_with("the command of each machine, as before, starts again"),
            "{text}"
        );
        write("ranks = 2\nnodes = 2\nelastic = \"1:4\"\n");
        let newest = "a-node-1/checkpoints/epoch-0000-batch-002440 into ";
        let text = continued(&run);
        assert!(text.contains(newest) && text.contains("--resume"), "{text}");
        assert!(!text.contains("starts again"), "{text}");
        add("a/checkpoints/epoch-0000-batch-000300");
        assert!(continued(&run).contains(newest), "{}", continued(&run));
        add("a/checkpoints/epoch-0001");
        let text = continued(&run);
        let elsewhere = "may have written newer ones, in a-node-K/checkpoints";
        assert!(text.contains(elsewhere) && !text.contains(newest), "{text}");
    }
}
