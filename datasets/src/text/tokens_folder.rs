//! A folder of files of tokens, which is there whole or not at all.

use std::fs;
use std::path::{Path, PathBuf};

use crate::DatasetError;
use crate::error::unwritable;

/// A folder beside the place where it is to be. It is removed unless it gets there.
pub(super) struct TokensFolder {
    folder: tempfile::TempDir,
    output: PathBuf,
}

impl TokensFolder {
    /// A folder that is to be `output`, where nothing is yet, or only what may be replaced.
    pub(super) fn of(output: &Path, replace: bool) -> Result<Self, DatasetError> {
        let unwritable = |source| unwritable(output, source);
        let output = std::path::absolute(output).map_err(unwritable)?;
        check_output(&output, replace)?;
        let (Some(parent), Some(name)) = (output.parent(), output.file_name()) else {
            let problem = format!("{} is no name for a folder", output.display());
            return Err(DatasetError::Request(problem));
        };
        fs::create_dir_all(parent).map_err(unwritable)?;
        let mut prefix = name.to_owned();
        prefix.push(".unfinished-");
        let folder = tempfile::Builder::new()
            .prefix(&prefix)
            // Before the umask.
            .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o777))
            .tempdir_in(parent)
            .map_err(unwritable)?;
        Ok(Self { folder, output })
    }

    /// Where it is until then.
    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Puts the folder in its place, and removes what was there.
    pub(super) fn rename(self) -> Result<(), DatasetError> {
        let output = self.output;
        let unwritable = |source| unwritable(&output, source);
        everburn_record::file::sync_folder(self.folder.path()).map_err(unwritable)?;
        let parent = output.parent().unwrap_or(Path::new("/"));
        if output.exists() {
            // Moved first, so that there is never half a folder.
            let old = tempfile::tempdir_in(parent).map_err(unwritable)?;
            fs::rename(&output, old.path().join("old")).map_err(unwritable)?;
        }
        fs::rename(self.folder.path(), &output).map_err(unwritable)?;
        // It is not there any more to be removed.
        let _ = self.folder.keep();
        everburn_record::file::sync_folder(parent).map_err(unwritable)
    }
}

/// Refuses a place where something else is.
fn check_output(output: &Path, replace: bool) -> Result<(), DatasetError> {
    let refused = |problem: &str| {
        let problem = format!("{} {problem}", output.display());
        Err(DatasetError::Request(problem))
    };
    if !output.is_dir() {
        return match output.symlink_metadata() {
            Ok(_) => refused("is there already, and is no folder"),
            Err(_) => Ok(()),
        };
    }
    let entries = output
        .read_dir()
        .map_err(|source| unwritable(output, source))?;
    let mut strange = None;
    let mut is_empty = true;
    for entry in entries {
        let name = entry
            .map_err(|source| unwritable(output, source))?
            .file_name();
        is_empty = false;
        if !is_ours(&name.to_string_lossy()) {
            strange = Some(name);
        }
    }
    match (is_empty, replace, strange) {
        (true, ..) | (_, true, None) => Ok(()),
        (_, false, _) => refused("is not empty; --force replaces a folder of tokens"),
        (_, true, Some(name)) => refused(&format!(
            "has {} in it, which is not of a folder of tokens; it is not replaced",
            name.display()
        )),
    }
}

/// Whether a folder of tokens has files of this name.
fn is_ours(name: &str) -> bool {
    let numbered = |name: &str| {
        let number = name.strip_prefix("train_").or(name.strip_prefix("val_"));
        let number = number.and_then(|rest| rest.strip_suffix(".bin"));
        number.is_some_and(|number| number.bytes().all(|digit| digit.is_ascii_digit()))
    };
    numbered(name) || ["tokenizer.json", "vocab.json", "merges.txt"].contains(&name)
}
