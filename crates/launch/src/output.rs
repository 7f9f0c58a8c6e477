//! The ranks' output: to a log each, and to the screen.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};

use everburn_collectives::heartbeat::end_of_log;
use everburn_collectives::sync::lock;

use crate::ended_alike::without_numbers;

/// A line longer than this is handed on in pieces, so that a rank cannot fill our memory.
const MAX_LINE_BYTES: u64 = 64 * 1024;

/// Copies `from` line by line to `log` and, after `prefix`, to `screen`, until `from` ends.
///
/// A log or screen that cannot be written (disk full, pipe closed) must not stop the reading: the
/// rank would block on its full pipe.
pub(crate) fn pump(from: impl Read, log: &Arc<File>, prefix: &str, mut screen: Screen<impl Write>) {
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
        let is_progress = line.ends_with(b"\r\n");
        if is_progress {
            line.truncate(line.len() - 2);
            line.push(b'\n');
        }
        // Both streams of a rank append whole lines to the same file.
        if log_works && let Err(error) = (&**log).write_all(&line[prefix.len()..]) {
            tracing::warn!("{prefix}its log is incomplete from here on: {error}");
            log_works = false;
            screen.note_incomplete_log();
        }
        if line.last() != Some(&b'\n') {
            line.push(b'\n');
        }
        if !screen.is_repeated(&line[prefix.len()..]) {
            screen.show(&line, is_progress);
        }
    }
}

/// The most errors that are remembered as shown; a job has few different ones.
const MOST_ERRORS: usize = 256;

/// The most lines that are kept of an error, with its causes and what helps.
const MOST_LINES: usize = 20;

/// The errors that ranks have printed.
#[derive(Default)]
pub(crate) struct ShownErrors {
    /// By their text without numbers of ranks; and the rank that was first.
    shown: Mutex<HashMap<String, usize>>,
    /// What the process of a rank has printed last.
    last: Mutex<HashMap<usize, LastError>>,
}

/// The error with which the standard error of a rank ends.
#[derive(Default)]
struct LastError {
    lines: Vec<String>,
    /// Its log cannot be written any more.
    log_is_incomplete: bool,
}

impl ShownErrors {
    /// Whether another rank than `rank` has printed this error before.
    fn is_repeated(&self, rank: usize, error: &str) -> bool {
        let mut shown = lock(&self.shown);
        let error = without_numbers(error);
        if let Some(first) = shown.get(&error) {
            return *first != rank;
        }
        if shown.len() < MOST_ERRORS {
            shown.insert(error, rank);
        }
        false
    }

    /// A process of `rank` begins: what an earlier one has printed is no word of it.
    pub(crate) fn begin(&self, rank: usize) {
        lock(&self.last).remove(&rank);
    }

    fn follow(&self, rank: usize, line: &str) {
        let mut last = lock(&self.last);
        let lines = &mut last.entry(rank).or_default().lines;
        if let Some(error) = line.strip_prefix("error: ") {
            *lines = vec![error.to_owned()];
        } else if !belongs_to_an_error(line) {
            if !line.is_empty() {
                lines.clear();
            }
        } else if !lines.is_empty() && lines.len() < MOST_LINES {
            lines.push(line.trim_start().to_owned());
        }
    }

    /// The error with which the standard error of `rank` ends, with its causes, where it does.
    pub(crate) fn last_of(&self, rank: usize) -> Option<String> {
        let last = lock(&self.last);
        let lines = &last.get(&rank)?.lines;
        (!lines.is_empty()).then(|| lines.join("\n"))
    }

    /// Whether lines are missing at the end of the log of `rank`.
    pub(crate) fn log_is_incomplete(&self, rank: usize) -> bool {
        let last = lock(&self.last);
        last.get(&rank).is_some_and(|last| last.log_is_incomplete)
    }
}

/// Whether a line is of the error before it: one more of its lines, a cause, or what helps.
fn belongs_to_an_error(line: &str) -> bool {
    line.starts_with("  ") || line.starts_with("help: ")
}

/// The errors of one rank's standard error that another rank has shown.
struct ErrorFilter {
    rank: usize,
    shown: Arc<ShownErrors>,
    /// The last error was hidden, and so are the lines about it.
    hides: bool,
}

/// A line of progress that is open on the terminal: the next line replaces it.
#[derive(Default)]
pub(crate) struct ProgressLine(Mutex<bool>);

/// The launcher's standard output or standard error, as one stream of a rank sees it.
pub(crate) struct Screen<W> {
    output: W,
    /// Shared by all streams of the job; `None` where standard output is no terminal.
    progress: Option<Arc<ProgressLine>>,
    errors: Option<ErrorFilter>,
}

impl<W: Write> Screen<W> {
    pub(crate) const fn new(output: W, progress: Option<Arc<ProgressLine>>) -> Self {
        Self {
            output,
            progress,
            errors: None,
        }
    }

    /// The screen for the standard error of `rank`: it does not show the errors that are in `shown` by another
    /// rank. They are in the logs, and the launcher's last message counts them.
    pub(crate) fn without_repeated_errors(self, rank: usize, shown: Arc<ShownErrors>) -> Self {
        let errors = Some(ErrorFilter {
            rank,
            shown,
            hides: false,
        });
        Self { errors, ..self }
    }

    /// Follows the errors of the rank. Whether another rank has shown the error that `line` is, or belongs to.
    fn is_repeated(&mut self, line: &[u8]) -> bool {
        let Some(filter) = &mut self.errors else {
            return false;
        };
        let line = String::from_utf8_lossy(line);
        let line = line.trim_end();
        filter.shown.follow(filter.rank, line);
        if line.starts_with("error: ") {
            filter.hides = filter.shown.is_repeated(filter.rank, line);
        } else if !line.is_empty() && !belongs_to_an_error(line) {
            filter.hides = false;
        }
        filter.hides
    }

    /// The log of the rank lacks what comes from now on.
    fn note_incomplete_log(&self) {
        if let Some(filter) = &self.errors {
            let mut last = lock(&filter.shown.last);
            last.entry(filter.rank).or_default().log_is_incomplete = true;
        }
    }

    /// Shows `line`, which ends in a newline. A line of progress stays open on a terminal.
    fn show(&mut self, line: &[u8], is_progress: bool) {
        let Some(progress) = &self.progress else {
            // One write per line keeps the lines of several ranks apart.
            let _ = self
                .output
                .write_all(line)
                .and_then(|()| self.output.flush());
            return;
        };
        let mut is_open = lock(&progress.0);
        let mut text = Vec::new();
        if *is_open {
            text.extend_from_slice(b"\r\x1b[2K");
        }
        match (is_progress, line.strip_suffix(b"\n")) {
            // Without wrapping: a line that is longer than the terminal is wide is cut off.
            (true, Some(line)) => text.extend([b"\x1b[?7l", line, b"\x1b[?7h"].concat()),
            _ => text.extend_from_slice(line),
        }
        *is_open = is_progress;
        let _ = self
            .output
            .write_all(&text)
            .and_then(|()| self.output.flush());
    }
}

/// The last `count` lines of the file at `path` that are not blank; none when it cannot be read.
pub(crate) fn last_lines(path: &Path, count: usize) -> Vec<String> {
    last_lines_of(&end_of_log(path).unwrap_or_default(), count)
}

/// The last `count` lines of `text` that are not blank.
pub(crate) fn last_lines_of(text: &str, count: usize) -> Vec<String> {
    let said = text.lines().filter(|line| !line.trim().is_empty());
    let mut lines: Vec<String> = said.rev().take(count).map(str::to_owned).collect();
    lines.reverse();
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_logged_as_it_is_and_shown_with_its_rank() {
        let log = tempfile::NamedTempFile::new().unwrap();
        let mut screen = Vec::new();
        let file = Arc::new(log.reopen().unwrap());
        let shown = Screen::new(&mut screen, None);
        pump(&b"one\n\ntwo \xff"[..], &file, "[rank 3] ", shown);
        assert_eq!(std::fs::read(log.path()).unwrap(), b"one\n\ntwo \xff");
        assert_eq!(screen, b"[rank 3] one\n[rank 3] \n[rank 3] two \xff\n");
    }

    #[test]
    fn an_error_that_all_ranks_print_is_shown_once_and_logged_by_each() {
        let log = tempfile::NamedTempFile::new().unwrap();
        let shown = Arc::new(ShownErrors::default());
        let mut screen = Vec::new();
        for rank in [3, 0, 12] {
            let text = format!(
                "error: rank {rank} waited 2.0{rank} s for rank 7\n  because: x\nhelp: y\nlast\n"
            );
            let file = Arc::new(log.reopen().unwrap());
            let output =
                Screen::new(&mut screen, None).without_repeated_errors(rank, shown.clone());
            pump(text.as_bytes(), &file, &format!("{rank}> "), output);
            assert_eq!(std::fs::read_to_string(log.path()).unwrap(), text);
        }
        let screen = String::from_utf8(screen).unwrap();
        let first =
            "3> error: rank 3 waited 2.03 s for rank 7\n3>   because: x\n3> help: y\n3> last\n";
        assert_eq!(screen, format!("{first}0> last\n12> last\n"));
    }

    #[test]
    fn an_error_of_several_lines_that_all_ranks_print_is_shown_once() {
        let log = Arc::new(tempfile::tempfile().unwrap());
        let shown = Arc::new(ShownErrors::default());
        let mut screen = Vec::new();
        let error = "error: building the model with [net] width = 0 failed: panicked at net.rs:7:5:\n  too narrow\n  \n  in `Net::new`\nhelp: x\n";
        for (rank, more) in [(0, ""), (1, ""), (2, " WARN more\n")] {
            let output =
                Screen::new(&mut screen, None).without_repeated_errors(rank, shown.clone());
            pump(format!("{error}{more}").as_bytes(), &log, "", output);
        }
        let screen = String::from_utf8(screen).unwrap();
        assert_eq!(screen, format!("{error} WARN more\n"));
        let kept = shown.last_of(1).unwrap();
        assert!(
            kept.ends_with(":\ntoo narrow\nin `Net::new`\nhelp: x"),
            "{kept}"
        );
        assert_eq!(shown.last_of(2), None);
    }

    #[test]
    fn the_error_with_which_a_rank_ends_is_kept_with_its_causes() {
        let shown = Arc::new(ShownErrors::default());
        let print = |text: &str| {
            // A file that cannot be written.
            let log = Arc::new(File::open("/dev/null").unwrap());
            let output = Screen::new(io::sink(), None).without_repeated_errors(1, shown.clone());
            pump(text.as_bytes(), &log, "", output);
            shown.last_of(1)
        };
        assert!(!shown.log_is_incomplete(1));
        let error = "error: the report is not written\n  because: no space\nhelp: make room\n";
        let kept = "the report is not written\nbecause: no space\nhelp: make room";
        assert_eq!(print(&format!("warned\nhelp: x\n{error}\n")).unwrap(), kept);
        assert!(shown.log_is_incomplete(1) && !shown.log_is_incomplete(0));
        assert_eq!(shown.last_of(0), None);
        assert_eq!(print("warned later\n"), None);
        assert_eq!(print("error: one\nerror: two\n").unwrap(), "two");
        shown.begin(1);
        assert!(shown.last_of(1).is_none() && !shown.log_is_incomplete(1));
    }

    #[test]
    fn progress_stays_in_place_on_a_terminal() {
        let log = tempfile::NamedTempFile::new().unwrap();
        let text = b"1/3\r\n2/3\r\n3/3\n";
        let show = |progress| {
            let mut screen = Vec::new();
            let file = Arc::new(log.reopen().unwrap());
            pump(&text[..], &file, "> ", Screen::new(&mut screen, progress));
            String::from_utf8(screen).unwrap()
        };
        assert_eq!(show(None), "> 1/3\n> 2/3\n> 3/3\n");
        assert_eq!(std::fs::read(log.path()).unwrap(), b"1/3\n2/3\n3/3\n");
        let shown = show(Some(Arc::default()));
        let replaced = "\r\x1b[2K";
        let line = |text| format!("\x1b[?7l> {text}\x1b[?7h{replaced}");
        assert_eq!(shown, format!("{}{}> 3/3\n", line("1/3"), line("2/3")));
    }

    #[test]
    fn an_endless_line_comes_in_pieces() {
        let log = tempfile::NamedTempFile::new().unwrap();
        let mut screen = Vec::new();
        let long = vec![b'x'; 2 * usize::try_from(MAX_LINE_BYTES).unwrap()];
        let shown = Screen::new(&mut screen, None);
        pump(&long[..], &Arc::new(log.reopen().unwrap()), "", shown);
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
