//! The last lines of a log file.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use crate::printable;

/// The bytes read from the end of the file.
const MAX_BYTES: u64 = 32 << 10;

/// The number of lines shown, and the longest part of each.
const LINES: usize = 10;
const LINE: usize = 300;

/// The last lines of the file at `path`, or why they cannot be read.
pub(super) fn last_lines(path: &Path) -> Result<Vec<String>, String> {
    read_end(path).map_err(|error| format!("{} cannot be read: {error}", path.display()))
}

fn read_end(path: &Path) -> std::io::Result<Vec<String>> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let start = length.saturating_sub(MAX_BYTES);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    // The first line may be incomplete.
    let skip = usize::from(start > 0);
    let lines: Vec<&str> = text.lines().skip(skip).collect();
    let last = lines.len().saturating_sub(LINES);
    let shown = lines[last..].iter().map(|line| printable(line, LINE));
    Ok(shown.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_end_of_a_long_log_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rank1.log");
        let text: String = (0..50_000).map(|line| format!("line {line}\n")).collect();
        std::fs::write(&path, text).unwrap();
        let lines = last_lines(&path).unwrap();
        assert_eq!(lines.len(), LINES);
        assert_eq!((&*lines[0], &*lines[9]), ("line 49990", "line 49999"));
        std::fs::write(&path, b"one\n\x1b[31mtwo\xff").unwrap();
        assert_eq!(
            last_lines(&path).unwrap(),
            ["one", "\\u{1b}[31mtwo\u{fffd}"]
        );
        let error = last_lines(&folder.path().join("none")).unwrap_err();
        assert!(error.contains("none cannot be read"), "{error}");
    }
}
