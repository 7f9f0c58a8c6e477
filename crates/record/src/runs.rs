//! The runs in a folder.

use std::path::{Path, PathBuf};

use crate::Live;

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
///
/// ```
/// let run = tempfile::tempdir()?;
/// std::fs::create_dir_all(run.path().join("checkpoints/.partial-x"))?;
/// assert!(!everburn_record::has_checkpoint(run.path()));
/// std::fs::create_dir(run.path().join("checkpoints/epoch-0001"))?;
/// assert!(everburn_record::has_checkpoint(run.path()));
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn has_checkpoint(folder: &Path) -> bool {
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
}
