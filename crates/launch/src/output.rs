//! The ranks' output: to a log each, and to the screen.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;

/// A line longer than this is handed on in pieces, so that a rank cannot fill our memory.
const MAX_LINE_BYTES: u64 = 64 * 1024;

/// How much of a log's end is searched for its last lines.
const TAIL_BYTES: u64 = 32 * 1024;

/// Copies `from` line by line to `log` and, behind `prefix`, to `screen`, until `from` ends.
///
/// A log or screen that cannot be written (disk full, pipe closed) must not stop the reading: the
/// rank would block on its full pipe.
pub(crate) fn pump(from: impl Read, log: &Arc<File>, prefix: &str, mut screen: impl Write) {
    let mut from = BufReader::new(from);
    let mut line = prefix.as_bytes().to_vec();
    let mut log_works = true;
    loop {
        line.truncate(prefix.len());
        match from
            .by_ref()
            .take(MAX_LINE_BYTES)
            .read_until(b'\n', &mut line)
        {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return,
        }
        // Both streams of a rank append whole lines to the same file.
        if log_works && let Err(error) = (&**log).write_all(&line[prefix.len()..]) {
            tracing::warn!("{prefix}its log is incomplete from here on: {error}");
            log_works = false;
        }
        if line.last() != Some(&b'\n') {
            line.push(b'\n');
        }
        // One write a line keeps the lines of several ranks apart.
        let _ = screen.write_all(&line).and_then(|()| screen.flush());
    }
}

/// The last `count` lines of the file at `path` that are not blank; none when it cannot be read.
pub(crate) fn last_lines(path: &Path, count: usize) -> Vec<String> {
    let read = || -> io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
        let mut bytes = Vec::new();
        file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    lines[lines.len().saturating_sub(count)..]
        .iter()
        .map(ToString::to_string)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_logged_as_it_is_and_shown_with_its_rank() {
        let log = tempfile::NamedTempFile::new().unwrap();
        let mut screen = Vec::new();
        let file = Arc::new(log.reopen().unwrap());
        pump(&b"one\n\ntwo \xff"[..], &file, "[rank 3] ", &mut screen);
        assert_eq!(std::fs::read(log.path()).unwrap(), b"one\n\ntwo \xff");
        assert_eq!(screen, b"[rank 3] one\n[rank 3] \n[rank 3] two \xff\n");
    }

    #[test]
    fn an_endless_line_comes_in_pieces() {
        let log = tempfile::NamedTempFile::new().unwrap();
        let mut screen = Vec::new();
        let long = vec![b'x'; 2 * usize::try_from(MAX_LINE_BYTES).unwrap()];
        pump(&long[..], &Arc::new(log.reopen().unwrap()), "", &mut screen);
        assert_eq!(screen.iter().filter(|&&byte| byte == b'\n').count(), 2);
        assert_eq!(std::fs::read(log.path()).unwrap(), long);
    }

    #[test]
    fn the_tail_of_a_log_is_its_last_lines() {
        let log = tempfile::NamedTempFile::new().unwrap();
        let text: String = (0..9000).map(|n| format!("line {n}\n\n")).collect();
        std::fs::write(log.path(), text).unwrap();
        assert_eq!(last_lines(log.path(), 2), ["line 8998", "line 8999"]);
        assert!(last_lines(Path::new("/no/such/file"), 2).is_empty());
    }
}
