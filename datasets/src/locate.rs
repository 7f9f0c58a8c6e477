//! Where the files of a collection are looked for.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::collection::{Collection, IdxFile};
use crate::error::{unreadable, unusable};
use crate::{DatasetError, Surroundings};

const VARIABLE: &str = "EVERBURN_DATA_DIR";

/// A folder that was looked in, and what was there.
pub(crate) struct SearchedFolder {
    pub(crate) folder: PathBuf,
    /// Which setting names it.
    pub(crate) named_by: &'static str,
    /// Files that are missing; empty where the folder is complete.
    pub(crate) missing: Vec<&'static str>,
}

impl SearchedFolder {
    pub(crate) fn is_complete(&self) -> bool {
        self.missing.is_empty()
    }
}

impl fmt::Display for SearchedFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.folder.display(), self.named_by)?;
        match self.missing.len() {
            0 => Ok(()),
            4 => write!(f, ": none of the four files"),
            _ => write!(f, ": lacks {}", self.missing.join(", ")),
        }
    }
}

/// A line for each place that was looked in.
pub(crate) fn listed(places: &[SearchedFolder]) -> String {
    let lines = places.iter().map(|place| format!("  looked in {place}\n"));
    lines.collect()
}

/// The folders that were looked in, separated by commas.
pub(crate) fn named(places: &[SearchedFolder]) -> String {
    let folders = places
        .iter()
        .map(|place| place.folder.display().to_string());
    folders.collect::<Vec<_>>().join(", ")
}

/// Looks in every place, in the order of precedence, and stops at the first complete one, which
/// is then the last of the list.
pub(crate) fn look(
    collection: &Collection,
    data_dir: Option<&Path>,
    surroundings: &Surroundings,
) -> Result<Vec<SearchedFolder>, DatasetError> {
    let mut places = Vec::new();
    for (folder, named_by) in folders(collection.folder, data_dir, surroundings)? {
        let mut missing = Vec::new();
        for file in &collection.files {
            if find(&folder, file)?.is_none() {
                missing.push(file.name);
            }
        }
        places.push(SearchedFolder {
            folder,
            named_by,
            missing,
        });
        if places.last().is_some_and(SearchedFolder::is_complete) {
            break;
        }
    }
    Ok(places)
}

/// The folders in which the files of a data set with this sub-folder may be, the first to look in
/// first, each with the setting that names it. Where a folder was named, no other one is taken in its
/// place; a folder that was named and is not there is an error.
pub(crate) fn folders(
    name: &str,
    data_dir: Option<&Path>,
    surroundings: &Surroundings,
) -> Result<Vec<(PathBuf, &'static str)>, DatasetError> {
    if let Some(folder) = data_dir {
        is_there(folder, "--data-dir or the configuration")?;
        // Either the folder of this very set or, as with the variable, the parent of several.
        let folders = [folder.join(name), folder.to_owned()];
        return Ok(folders.map(|folder| (folder, "--data-dir")).into());
    }
    let mut folders = Vec::new();
    if let Some(folder) = surroundings.data_dir() {
        is_there(folder, VARIABLE)?;
        folders.push((folder.join(name), VARIABLE));
    }
    if let Some(folder) = surroundings.cache_dir() {
        folders.push((folder.join(name), "cache"));
    }
    Ok(folders)
}

fn is_there(folder: &Path, named_by: &str) -> Result<(), DatasetError> {
    let problem = match folder.metadata() {
        Ok(metadata) if metadata.is_dir() => return Ok(()),
        Ok(_) => "is no folder",
        Err(error) if is_missing(&error) => "does not exist",
        // For instance no permission.
        Err(source) => return Err(unreadable(folder, source)),
    };
    let problem = format!(
        ", the data folder named by {named_by}, {problem}: make it, name another one, or name none"
    );
    Err(unusable(folder, problem))
}

/// Whether there is no such file.
pub(crate) fn is_missing(error: &io::Error) -> bool {
    use io::ErrorKind::{NotADirectory, NotFound};
    matches!(error.kind(), NotFound | NotADirectory)
}

/// Where a download goes: below the folder that the user named, else into the cache. Never below
/// `$EVERBURN_DATA_DIR`, which is often shared and read-only.
pub(crate) fn download_folder(
    name: &str,
    data_dir: Option<&Path>,
    surroundings: &Surroundings,
) -> Option<PathBuf> {
    let parent = data_dir
        .map(Path::to_owned)
        .or_else(|| surroundings.cache_dir());
    parent.map(|folder| folder.join(name))
}

/// The path of `file` in `folder`, compressed or plain.
pub(crate) fn find(folder: &Path, file: &IdxFile) -> Result<Option<PathBuf>, DatasetError> {
    for name in [file.compressed_name(), file.name.to_owned()] {
        let path = folder.join(name);
        match path.metadata() {
            Ok(_) => return Ok(Some(path)),
            Err(error) if is_missing(&error) => {}
            // For instance no permission: saying "not found" would hide it.
            Err(source) => return Err(unreadable(&path, source)),
        }
    }
    Ok(None)
}
