//! Several runs side by side.

mod page;
mod rows;
mod table;

use std::path::{Path, PathBuf};

use everburn_record::plain;

use crate::{ReportError, Run};

/// How many runs have room beside each other.
const MOST_RUNS: usize = 12;

/// Runs side by side; the first is the one that others are compared with.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    runs: Vec<Run>,
    names: Vec<String>,
}

/// Reads the runs in `folders` and lays them side by side.
///
/// # Errors
/// [`ReportError::Runs`] if they are fewer than two or too many; as [`Run::read`] for each.
pub fn compare(folders: &[impl AsRef<Path>]) -> Result<Comparison, ReportError> {
    if folders.len() < 2 || folders.len() > MOST_RUNS {
        return Err(ReportError::Runs {
            given: folders.len(),
            most: MOST_RUNS,
        });
    }
    let runs = folders.iter().map(|folder| Run::read(folder.as_ref()));
    Ok(Comparison::new(runs.collect::<Result<_, _>>()?))
}

impl Comparison {
    /// These runs side by side.
    #[must_use]
    pub fn new(runs: Vec<Run>) -> Self {
        let names = names(&runs.iter().map(|run| run.path.clone()).collect::<Vec<_>>());
        Self { runs, names }
    }

    /// The runs.
    #[must_use]
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }
}

/// A short name for each run: the last part of its path, or as many parts as tell it apart from the others.
fn names(paths: &[PathBuf]) -> Vec<String> {
    let tail = |path: &Path, parts: usize| {
        let all: Vec<_> = path
            .components()
            .map(|part| part.as_os_str().to_string_lossy().into_owned())
            .collect();
        plain::line(&all[all.len().saturating_sub(parts)..].join("/"), 40)
    };
    for parts in 1..8 {
        let names: Vec<String> = paths.iter().map(|path| tail(path, parts)).collect();
        let all_differ = names
            .iter()
            .enumerate()
            .all(|(index, name)| !name.is_empty() && !names[..index].contains(name));
        if all_differ {
            return names;
        }
    }
    // The same run twice, say.
    (1..=paths.len())
        .map(|number| format!("run {number}"))
        .collect()
}
