//! Files and folders of data, read within bounds.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::DatasetError;
use crate::error::{refused, too_large, unreadable};
use crate::locate::is_missing;

/// What is in a folder, in the order of the names; hidden files are left out.
pub(crate) fn entries(folder: &Path) -> Result<Vec<PathBuf>, DatasetError> {
    let failed = |source| unreadable(folder, source);
    let mut entries = Vec::new();
    for entry in folder.read_dir().map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().unwrap_or_default();
        if !name.as_encoded_bytes().starts_with(b".") {
            entries.push(path);
        }
    }
    entries.sort();
    Ok(entries)
}

/// The `wanted` names in a folder, in alphabetical order; hidden ones are left out.
pub(crate) fn names(
    folder: &Path,
    wanted: impl Fn(&Path) -> bool,
) -> Result<Vec<String>, DatasetError> {
    let mut names = Vec::new();
    for path in entries(folder)? {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
            return Err(refused(&path, "its name is not UTF-8"));
        };
        if wanted(&path) {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

/// The first bytes of a file: this many, or all.
pub(crate) fn beginning(path: &Path, bytes: u64) -> Result<Vec<u8>, DatasetError> {
    let mut beginning = Vec::new();
    let file = File::open(path).map_err(|source| unreadable(path, source))?;
    let read = file.take(bytes).read_to_end(&mut beginning);
    read.map_err(|source| unreadable(path, source))?;
    Ok(beginning)
}

/// The bytes of a file, which has no more than `most`.
pub(crate) fn read_at_most(path: &Path, most: u64) -> Result<Vec<u8>, DatasetError> {
    let bytes = beginning(path, most + 1)?;
    match bytes.len() as u64 > most {
        true => Err(too_large(path, most)),
        false => Ok(bytes),
    }
}

/// The same; `None` if there is no such file.
pub(crate) fn read_if_there(path: &Path, most: u64) -> Result<Option<Vec<u8>>, DatasetError> {
    match read_at_most(path, most) {
        Err(DatasetError::Read { source, .. }) if is_missing(&source) => Ok(None),
        read => read.map(Some),
    }
}

/// SHA-256 of a file, in hexadecimal.
pub(crate) fn sha256_of(path: &Path) -> Result<String, DatasetError> {
    let failed = |source| unreadable(path, source);
    let mut hash = Sha256::new();
    io::copy(&mut File::open(path).map_err(failed)?, &mut hash).map_err(failed)?;
    Ok(format!("{:x}", hash.finalize()))
}
