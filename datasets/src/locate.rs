//! Where the files of a collection are looked for.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::collection::{Collection, IdxFile};
use crate::{DatasetError, Surroundings};

/// A folder that was looked in, and what was there.
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use everburn::datasets::SearchedFolder;
///
/// let place = SearchedFolder {
///     folder: "/data/mnist".into(),
///     named_by: "EVERBURN_DATA_DIR",
///     missing: vec!["t10k-labels-idx1-ubyte"],
/// };
/// assert_eq!(
///     place.to_string(),
///     "/data/mnist (EVERBURN_DATA_DIR): lacks t10k-labels-idx1-ubyte"
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchedFolder {
    /// The folder.
    pub folder: PathBuf,
    /// Which setting names it.
    pub named_by: &'static str,
    /// Files that are missing; empty where the folder is complete.
    pub missing: Vec<&'static str>,
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
        is_there(&folder, Surroundings::DATA_DIR_VARIABLE)?;
        folders.push((folder.join(name), Surroundings::DATA_DIR_VARIABLE));
    }
    if let Some(folder) = surroundings.cache_dir() {
        folders.push((folder.join(name), "cache"));
    }
    Ok(folders)
}

fn is_there(folder: &Path, named_by: &'static str) -> Result<(), DatasetError> {
    let problem = match folder.metadata() {
        Ok(metadata) if metadata.is_dir() => return Ok(()),
        Ok(_) => "is no folder",
        Err(error) if error.kind() == io::ErrorKind::NotFound => "does not exist",
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => "does not exist",
        // For instance no permission.
        Err(source) => {
            return Err(DatasetError::Read {
                path: folder.to_owned(),
                source,
            });
        }
    };
    Err(DatasetError::Folder {
        folder: folder.to_owned(),
        named_by,
        problem,
    })
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
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) => {}
            // For instance no permission: saying "not found" would hide it.
            Err(source) => return Err(DatasetError::Read { path, source }),
        }
    }
    Ok(None)
}
