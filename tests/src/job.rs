//! A command that runs, and how it ended.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use crate::processes::{Process, kill_marked, processes_marked};
use crate::stranger::{Attack, Siege, besiege};
use crate::wait::{DEADLINE, holds_within};

/// A command that runs, with all processes that it has started. They are killed when it is
/// dropped.
pub struct Job {
    child: Child,
    mark: String,
    output: [PathBuf; 2],
    end: Instant,
}

impl Job {
    pub(crate) fn new(child: Child, mark: String, output: [PathBuf; 2]) -> Self {
        Self {
            child,
            mark,
            output,
            end: Instant::now() + DEADLINE,
        }
    }

    /// The same with another deadline from now on, for what is known to take long.
    #[must_use]
    pub fn with_deadline(mut self, limit: Duration) -> Self {
        self.end = Instant::now() + limit;
        self
    }

    /// The processes of the job that live: the launcher or single process, and its ranks.
    pub fn processes(&self) -> Vec<Process> {
        processes_marked(&self.mark)
    }

    /// The number of the launcher or single process.
    pub fn process_id(&self) -> u32 {
        self.child.id()
    }

    /// The process of a rank.
    ///
    /// # Panics
    /// When there is none.
    pub fn rank(&self, rank: usize) -> Process {
        let mut ranks = self.processes().into_iter();
        ranks
            .find(|process| process.rank == Some(rank))
            .unwrap_or_else(|| panic!("there is no rank {rank}\n{}", self.output()))
    }

    /// Sends a signal to the launcher or single process.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        Process { pid, rank: None }.signal(signal);
    }

    /// Waits for a condition while the job runs.
    ///
    /// # Panics
    /// With the output so far, when the job ends first or the deadline comes first.
    pub fn wait_for(&mut self, what: &str, condition: impl FnMut() -> bool) {
        if !self.holds_before_its_end(what, condition) {
            panic!("waiting for {what}: it has ended\n{}", self.output());
        }
    }

    /// Waits for a condition or the end of the job, and returns whether the condition came first.
    ///
    /// # Panics
    /// With the output so far, when the deadline comes first.
    pub fn holds_before_its_end(
        &mut self,
        what: &str,
        mut condition: impl FnMut() -> bool,
    ) -> bool {
        let mut ended = false;
        let left = self.end.saturating_duration_since(Instant::now());
        let child = &mut self.child;
        let done = holds_within(left, || {
            let status = child.try_wait().expect("a child can be waited for");
            ended = status.is_some();
            ended || condition()
        });
        self.require(done, what);
        !ended
    }

    /// Waits until no process of the job is left, and returns how it ended.
    ///
    /// # Panics
    /// With the output so far and the processes that are left, when that takes longer than
    /// `limit`.
    pub fn wait_until_gone(mut self, limit: Duration) -> Ended {
        let gone = holds_within(limit, || {
            // Reaped, or it would count as a process for ever. As long as it lives, nobody need read all of /proc.
            let ended = self.child.try_wait();
            ended.is_ok_and(|status| status.is_some()) && self.processes().is_empty()
        });
        let what = format!("no process left after {limit:?}");
        self.require(gone, &what);
        self.wait()
    }

    /// Waits for the end of the launcher or single process.
    ///
    /// # Panics
    /// With the output so far, when the deadline comes first.
    pub fn wait(mut self) -> Ended {
        let left = self.end.saturating_duration_since(Instant::now());
        let mut ended = None;
        let child = &mut self.child;
        holds_within(left, || {
            ended = child.try_wait().expect("a child can be waited for");
            ended.is_some()
        });
        self.require(ended.is_some(), "its end");
        let status = ended.expect("it was just required");
        let [stdout, stderr] = self.output.each_ref().map(|path| read(path));
        Ended {
            status,
            stdout,
            stderr,
        }
    }

    fn require(&self, holds: bool, what: &str) {
        if holds {
            return;
        }
        let left = self.processes();
        kill_marked(&self.mark);
        panic!(
            "deadline passed waiting for {what}\nprocesses: {left:?}\n{}",
            self.output()
        );
    }

    /// Waits for its end, as [`Job::wait`], while a stranger attacks every port of its processes.
    ///
    /// # Panics
    /// With the output so far, when the deadline comes first.
    pub fn wait_under_siege(self, attack: Attack) -> (Ended, Siege) {
        let (mark, over) = (self.mark.clone(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let stranger = scope.spawn(|| besiege(&mark, attack, &over));
            let waited = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.wait()));
            over.store(true, Ordering::Release);
            let siege = stranger.join().expect("the stranger does not panic");
            match waited {
                Ok(ended) => (ended, siege),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// What it has printed so far, for messages.
    pub fn output(&self) -> String {
        let [stdout, stderr] = self.output.each_ref().map(|path| read(path));
        format!("--- standard output\n{stdout}\n--- standard error\n{stderr}")
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        kill_marked(&self.mark);
        // Already reaped in most cases; what else could be wrong is of no use to anyone here.
        let _ = self.child.wait();
    }
}

fn read(path: &Path) -> String {
    let bytes = std::fs::read(path).expect("the output files are there");
    String::from_utf8_lossy(&bytes).into_owned()
}

/// How a command ended, and all that it printed.
#[derive(Debug)]
pub struct Ended {
    status: ExitStatus,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Ended {
    /// The exit code, or 128 + the signal, as a shell shows it.
    pub fn code(&self) -> i32 {
        let signal = self.status.signal().map(|signal| 128 + signal);
        self.status.code().or(signal).expect("it has ended")
    }

    /// The same, when it has succeeded.
    ///
    /// # Panics
    /// With the output, when it has failed.
    #[track_caller]
    pub fn succeeded(self) -> Self {
        assert_eq!(self.code(), 0, "{self}");
        self
    }

    /// Checks that standard output holds every one of `parts`.
    ///
    /// # Panics
    /// With the output, when it lacks one.
    #[track_caller]
    pub fn prints<P: AsRef<str>>(&self, parts: impl IntoIterator<Item = P>) {
        self.holds(&self.stdout, parts);
    }

    /// Checks that standard error holds every one of `parts`.
    ///
    /// # Panics
    /// With the output, when it lacks one.
    #[track_caller]
    pub fn warns<P: AsRef<str>>(&self, parts: impl IntoIterator<Item = P>) {
        self.holds(&self.stderr, parts);
    }

    #[track_caller]
    fn holds<P: AsRef<str>>(&self, text: &str, parts: impl IntoIterator<Item = P>) {
        for part in parts {
            let part = part.as_ref();
            assert!(text.contains(part), "{part} is missing\n{self}");
        }
    }

    /// The JSON that it has printed.
    ///
    /// # Panics
    /// With the output, when it has printed anything else.
    pub fn json(&self) -> serde_json::Value {
        let parsed = serde_json::from_str(self.stdout.trim());
        parsed.unwrap_or_else(|error| panic!("no JSON: {error}\n{self}"))
    }

    /// Whether another process had taken the port that was free a moment before.
    pub fn lost_the_port(&self) -> bool {
        let error = self.stderr.to_lowercase();
        error.contains("port in use") || error.contains("address already in use")
    }

    /// Checks the exit code and that standard error holds every one of `messages`. White space and
    /// the frame that wrapped lines are put in do not count: a temporary folder's path may be
    /// broken anywhere.
    ///
    /// # Panics
    /// With the output, when one of them differs.
    #[track_caller]
    pub fn failed_with(&self, code: i32, messages: &[&str]) {
        assert_eq!(self.code(), code, "{self}");
        let squeezed = squeeze(&self.stderr);
        for message in messages {
            let found = squeezed.contains(&squeeze(message));
            assert!(found, "the message should say `{message}`\n{self}");
        }
    }

    /// Checks that no rank was started and nothing has panicked.
    ///
    /// # Panics
    /// With the output, when it was.
    #[track_caller]
    pub fn started_nothing(&self) {
        assert!(!self.stdout.contains("epoch"), "{self}");
        assert!(!self.stderr.contains("[rank "), "{self}");
        assert!(!self.stderr.contains("panicked"), "{self}");
    }
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            status,
            stdout,
            stderr,
        } = self;
        write!(
            f,
            "{status}\n--- standard output\n{stdout}\n--- standard error\n{stderr}"
        )
    }
}

/// `text` without white space and without the left edge of a framed message.
fn squeeze(text: &str) -> String {
    text.chars()
        .filter(|character| !character.is_whitespace() && *character != '│')
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_path_is_still_found() {
        let framed = "  × writing /tmp/a-\n  │ long/path failed\n";
        assert!(squeeze(framed).contains(&squeeze("/tmp/a-long/path failed")));
    }
}
