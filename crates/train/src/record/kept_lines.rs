//! What a run that continues keeps of the lines that it has recorded.

use std::path::Path;

use serde::de::DeserializeOwned;

use super::run_directory::write_file;
use crate::error::TrainError;

/// Takes the lines that do not stay, or cannot be read, from the end of a file: all after the last line that `is_earlier`
/// than any of them. A file of which all lines stay is not written. One that is not there becomes one without lines.
pub(crate) fn keep_lines<T: DeserializeOwned>(
    path: &Path,
    is_earlier: impl Fn(&T) -> bool,
    mut stays: impl FnMut(&T) -> bool,
) -> Result<(), TrainError> {
    let text = match std::fs::read_to_string(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return write_file(path, b"");
        }
        text => text.map_err(|error| TrainError::file("reading", path, &error))?,
    };
    let read = |line: &str| serde_json::from_str::<T>(line).ok();
    let mut kept: Vec<&str> = text.lines().collect();
    let all = kept.len();
    // A long run has many lines, and all ranks wait for this one.
    let earlier = kept
        .iter()
        .rposition(|line| read(line).is_some_and(|line| is_earlier(&line)));
    let newer = kept.split_off(earlier.map_or(0, |last| last + 1));
    let newer = newer.into_iter();
    kept.extend(newer.filter(|line| read(line).is_some_and(|line| stays(&line))));
    let ends = text.is_empty() || text.ends_with('\n');
    if kept.len() == all && ends {
        return Ok(());
    }
    let kept = kept.iter().map(|line| format!("{line}\n"));
    write_file(path, kept.collect::<String>().as_bytes())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    /// What is left of lines with these numbers where those up to 5 stay, and whether the file was written.
    fn left_of(text: &str) -> (String, bool) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("numbers.jsonl");
        std::fs::write(&path, text).unwrap();
        let file = || std::fs::metadata(&path).unwrap().ino();
        // Open, so that no other file has its number.
        let (before, _open) = (file(), std::fs::File::open(&path).unwrap());
        keep_lines(&path, |line: &usize| *line < 5, |line: &usize| *line <= 5).unwrap();
        (std::fs::read_to_string(&path).unwrap(), file() != before)
    }

    #[test]
    fn lines_that_come_again_are_taken_from_the_end() {
        assert_eq!(left_of("3\n4\n5\n6\n"), ("3\n4\n5\n".to_owned(), true));
        assert_eq!(left_of("6\n7\n"), (String::new(), true));
    }

    #[test]
    fn a_line_that_was_broken_off_is_taken_out() {
        assert_eq!(left_of("4\n5\n{\"st"), ("4\n5\n".to_owned(), true));
        assert_eq!(left_of("4\n5"), ("4\n5\n".to_owned(), true));
    }

    #[test]
    fn a_file_of_which_all_lines_stay_is_not_written() {
        for text in ["", "3\n4\n", "3\n4\n5\n5\n"] {
            assert_eq!(left_of(text), (text.to_owned(), false));
        }
    }

    #[test]
    fn a_file_that_is_not_there_becomes_one_without_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("numbers.jsonl");
        keep_lines(&path, |_: &usize| false, |_: &usize| true).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "");
    }
}
