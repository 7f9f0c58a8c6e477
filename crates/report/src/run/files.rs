//! Which files a run directory has.

use std::path::Path;

use everburn_record::plain;

use super::{Note, Run};
use crate::ReportError;
use crate::error::READING_RUN;

/// More than a run ever has: its checkpoints are one folder.
const MOST_FILES: usize = 1000;

/// How much of a file's name is kept.
const LONGEST_NAME: usize = 200;

/// The files of `folder`, not of the folders in it, by name.
pub(super) fn list(
    folder: &Path,
    notes: &mut Vec<Note>,
) -> Result<Vec<(String, u64)>, ReportError> {
    let entries = std::fs::read_dir(folder)
        .map_err(|error| ReportError::file(READING_RUN, folder, &error))?;
    let mut files = Vec::new();
    for entry in entries.flatten() {
        let Ok(metadata) = entry.metadata() else {
            continue;
        };
        if !metadata.is_file() {
            continue;
        }
        if files.len() == MOST_FILES {
            let what = format!("it has more than {MOST_FILES} files: some are not listed");
            notes.push(Note::new(".", what));
            break;
        }
        let name = plain::line(&entry.file_name().to_string_lossy(), LONGEST_NAME);
        files.push((name, metadata.len()));
    }
    // A folder with many strangers may hold a run all the same.
    for name in Run::FILES {
        let known = files.iter().any(|(file, _)| file == name);
        if let (false, Ok(metadata)) = (known, folder.join(name).symlink_metadata()) {
            files.push((name.to_owned(), metadata.len()));
        }
    }
    files.sort();
    Ok(files)
}
