//! The last lines of a log file.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use everburn_record::plain;

/// The bytes read from the end of the file.
const MAX_BYTES: u64 = 32 << 10;

/// The number of lines shown, and the longest part of each.
const LINES: usize = 10;
const LINE: usize = 300;

/// The last lines of the file at `path`, or why they cannot be read.
pub(super) fn last_lines(path: &Path) -> Result<Vec<String>, String> {
    let text = end_of_log(path);
    let text = text.map_err(|error| format!("{} cannot be read: {error}", path.display()))?;
    let lines: Vec<&str> = text.lines().collect();
    let last = lines.len().saturating_sub(LINES);
    Ok(lines[last..]
        .iter()
        .map(|line| plain::line(line, LINE))
        .collect())
}

/// The whole lines in the last 32 KiB of the file at `path`.
///
/// # Errors
/// Those of reading the file.
pub fn end_of_log(path: &Path) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let start = file.metadata()?.len().saturating_sub(MAX_BYTES);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes)?;
    if start > 0 {
        let begun = bytes.iter().position(|byte| *byte == b'\n');
        bytes.drain(..begun.map_or(0, |end| end + 1));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
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
            ["one", "\u{fffd}[31mtwo\u{fffd}"]
        );
        let error = last_lines(&folder.path().join("none")).unwrap_err();
        assert!(error.contains("none cannot be read"), "{error}");
    }
}
