//! Processes that a check runs, each with a deadline: one that crashes or hangs costs its own row.

use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use everburn::launch::{ChildError, Children, Said};
use everburn_record::file;

/// How a process ended.
#[derive(Debug)]
pub(super) struct Ended {
    /// Absent where its time was up and it was killed.
    pub(super) status: Option<ExitStatus>,
    /// What it wrote to standard output, line by line.
    pub(super) lines: Vec<String>,
    /// The end of what it wrote to standard error.
    pub(super) complaint: String,
    pub(super) took: Duration,
}

impl Ended {
    /// Why it is no success.
    pub(super) fn failure(&self) -> Option<String> {
        let why = match self.status {
            Some(status) if status.success() => return None,
            Some(status) => status.to_string(),
            None => format!("killed after {:.0} s", self.took.as_secs_f64()),
        };
        Some(match self.complaint.is_empty() {
            true => why,
            false => format!("{why}: {}", self.complaint),
        })
    }
}

/// How much of standard error is shown in a table; all of it goes to the log.
const COMPLAINT: usize = 400;

/// Runs `command` for `limit` at most, and appends all that it says to `log`. `each` is told each line of its
/// standard output as it comes. A signal to this process ends the command and is an error of the kind
/// [`Interrupted`](io::ErrorKind::Interrupted).
pub(super) fn run(
    children: &Children,
    mut command: Command,
    limit: Duration,
    log: &Path,
    mut each: impl FnMut(&str),
) -> io::Result<Ended> {
    let mut log = file::append_to(log)?;
    let start = Instant::now();
    let (asked, said) = (format!("{command:?}"), tempfile::tempdir()?);
    let name = command.get_program().to_string_lossy().into_owned();
    let child = children.start(&name, &mut command, said.path());
    let child = child.map_err(io::Error::other)?;
    // Processes side by side write to one log: a line at once, with whose it is.
    let pid = child.id();
    let mut note = |line: &str| log.write_all(format!("[{pid}] {line}\n").as_bytes());
    note(&format!("$ {asked}"))?;
    let (mut lines, mut complaints) = (Vec::new(), Vec::new());
    let mut noted = Ok(());
    let ended = child.wait_hearing(limit, |said| {
        let written = match said {
            Said::Output(line) => {
                each(line);
                lines.push(line.to_owned());
                note(line)
            }
            Said::Error(line) => {
                complaints.push(line.to_owned());
                note(&format!("! {line}"))
            }
        };
        if noted.is_ok() {
            noted = written;
        }
    });
    noted?;
    let took = start.elapsed();
    let status = ended.as_ref().ok().map(|ended| ended.status);
    note(&format!("{status:?} after {:.1} s", took.as_secs_f64()))?;
    match ended {
        Ok(_) | Err(ChildError::TooLong { .. }) => Ok(Ended {
            status,
            lines,
            complaint: end_of(&complaints),
            took,
        }),
        Err(ChildError::Interrupted) => Err(io::ErrorKind::Interrupted.into()),
        Err(error) => Err(io::Error::other(error)),
    }
}

/// The last lines that say something.
fn end_of(lines: &[String]) -> String {
    let told = lines.iter().map(|line| line.trim());
    let told: Vec<_> = told.filter(|line| !line.is_empty()).collect();
    let mut text = told.join(" ");
    let characters = text.chars().count();
    if characters > COMPLAINT {
        text = text.chars().skip(characters - COMPLAINT).collect();
        text.insert_str(0, "... ");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> (Ended, Vec<String>) {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let mut heard = Vec::new();
        let each = |line: &str| heard.push(line.to_string());
        let children = Children::listen().unwrap();
        let log = folder.path().join("log");
        let ended = run(&children, command, limit, &log, each).unwrap();
        (ended, heard)
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn what_a_process_says_is_heard() {
        let (ended, heard) = shell("echo one; echo oops >&2; echo two", LONG);
        assert_eq!(heard, ["one", "two"]);
        assert_eq!(ended.lines, heard);
        assert_eq!((ended.failure(), ended.complaint.as_str()), (None, "oops"));
    }

    #[test]
    fn a_process_that_fails_says_why() {
        let (ended, _) = shell("echo 'no such kernel' >&2; exit 3", LONG);
        assert_eq!(ended.failure().unwrap(), "exit status: 3: no such kernel");
    }

    #[test]
    fn a_process_that_does_not_end_is_killed_with_what_it_has_started() {
        let folder = tempfile::tempdir().unwrap();
        let pid = folder.path().join("pid");
        let script = format!("sleep 600 & echo $! > {}; echo begun; wait", pid.display());
        let mut command = Command::new("sh");
        command.args(["-c", &script]);
        let log = folder.path().join("log");
        // Long enough for a shell to start on any machine.
        let children = Children::listen().unwrap();
        let ended = run(&children, command, Duration::from_secs(8), &log, |_| {}).unwrap();
        assert!(ended.status.is_none());
        assert!(ended.failure().unwrap().starts_with("killed after"));
        let pid = std::fs::read_to_string(pid).unwrap();
        let pid = pid.trim().parse().unwrap();
        let end = Instant::now() + LONG;
        while !everburn_record::proc::has_ended(pid) {
            assert!(Instant::now() < end, "the sleeping process lives");
            std::thread::yield_now();
        }
    }

    #[test]
    fn long_complaints_keep_their_end() {
        let lines = vec!["x".repeat(500), "the cause".to_string()];
        let text = end_of(&lines);
        assert!(
            text.starts_with("... x") && text.ends_with("the cause"),
            "{text}"
        );
    }
}
