//! Processes that a check runs, each with a deadline: one that crashes or hangs costs its own row.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use everburn::launch::Children;
use everburn_record::file;
use rustix::process::{Pid, Signal, kill_process_group};

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

/// How often a process that says nothing is left for a look at whether a signal has come.
const LOOK: Duration = Duration::from_millis(100);

/// How long a process that has been killed is waited for.
const AFTER_KILL: Duration = Duration::from_secs(10);

enum Heard {
    Line(String),
    Complaint(String),
}

/// Runs `command` for `limit` at most, and appends all that it says to `log`. `each` is told each line of its
/// standard output as it comes. A signal to this process ends the command and is an error of the kind
/// [`Interrupted`](std::io::ErrorKind::Interrupted).
pub(super) fn run(
    children: &Children,
    mut command: Command,
    limit: Duration,
    log: &Path,
    mut each: impl FnMut(&str),
) -> std::io::Result<Ended> {
    let mut log = file::append_to(log)?;
    let start = Instant::now();
    let asked = format!("{command:?}");
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // Its own group, so that what it has started can be ended with it.
        .process_group(0)
        .spawn()?;
    // Processes side by side write to one log: a line at once, with whose it is.
    let pid = child.id();
    let mut note = |line: &str| log.write_all(format!("[{pid}] {line}\n").as_bytes());
    note(&format!("$ {asked}"))?;
    let (tell, hear) = mpsc::channel();
    let readers = [
        child
            .stdout
            .take()
            .map(|out| listen(out, Heard::Line, tell.clone())),
        child
            .stderr
            .take()
            .map(|out| listen(out, Heard::Complaint, tell)),
    ];
    let (mut lines, mut complaints) = (Vec::new(), Vec::new());
    let mut status = None;
    let is_interrupted = loop {
        let left = limit.saturating_sub(start.elapsed());
        let is_interrupted = children.check_interrupted().is_err();
        // Who never stops talking is heard no longer than who is silent.
        if left.is_zero() || is_interrupted {
            break is_interrupted;
        }
        match hear.recv_timeout(left.min(LOOK)) {
            Ok(Heard::Line(line)) => {
                note(&line)?;
                each(&line);
                lines.push(line);
            }
            Ok(Heard::Complaint(line)) => {
                note(&format!("! {line}"))?;
                complaints.push(line);
            }
            // Nobody has its output open any more: it has ended, or is about to.
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                status = wait_until(&mut child, start + limit)?;
                break false;
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {}
        }
    };
    if status.is_none() {
        kill(&child);
        // What hangs in a driver may outlive its signal; the next part is tried all the same.
        wait_until(&mut child, Instant::now() + AFTER_KILL)?;
    }
    drop(hear);
    for reader in readers.into_iter().flatten() {
        // It reads until nobody writes any more; who survives its group is not waited for.
        if reader.is_finished() {
            let _ = reader.join();
        }
    }
    let took = start.elapsed();
    note(&format!("{status:?} after {:.1} s", took.as_secs_f64()))?;
    if is_interrupted {
        return Err(std::io::ErrorKind::Interrupted.into());
    }
    Ok(Ended {
        status,
        lines,
        complaint: end_of(&complaints),
        took,
    })
}

fn listen(
    output: impl Read + Send + 'static,
    heard: fn(String) -> Heard,
    tell: mpsc::Sender<Heard>,
) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).into_owned();
            if tell.send(heard(line)).is_err() {
                return;
            }
        }
    })
}

/// A process that has closed its output ends soon, and there is nothing else to wait for.
fn wait_until(child: &mut Child, deadline: Instant) -> std::io::Result<Option<ExitStatus>> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline {
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(5));
    }
}

fn kill(child: &Child) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // It may have ended meanwhile.
        let _ = kill_process_group(group, Signal::KILL);
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
            thread::yield_now();
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
