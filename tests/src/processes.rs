//! The processes of a job, by a mark in their environment.
//!
//! Parents change when they end and process groups differ by rank, but a variable of the
//! environment is inherited by everything that a job starts.

use std::path::Path;
use std::process::{Child, Command};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// A process that lives, as `/proc` showed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    /// Its process id.
    pub pid: Pid,
    /// Which rank it is; `None` for a launcher or a shell.
    pub rank: Option<usize>,
}

impl Process {
    /// A file that the system has about it in `/proc`, with spaces for the zeros between words; nothing once it has ended.
    pub fn file(self, name: &str) -> String {
        let path = format!("/proc/{}/{name}", self.pid.as_raw_nonzero());
        let text = std::fs::read(path).unwrap_or_default();
        String::from_utf8_lossy(&text).replace('\0', " ")
    }

    /// Sends a signal; that the process has ended meanwhile is no error.
    pub fn signal(self, signal: Signal) {
        let _ = kill_process(self.pid, signal);
    }
}

/// A child that is stopped by a signal, and ends with this value.
pub struct StoppedProcess(Child);

impl StoppedProcess {
    /// Starts a child that does nothing for long, and stops it.
    pub fn start(command: &mut Command) -> Self {
        let child = Self(command.spawn().expect("the child starts"));
        let process = Pid::from_child(&child.0);
        kill_process(process, Signal::STOP).expect("a child can be stopped");
        let ended =
            waitpid(Some(process), WaitOptions::UNTRACED).expect("a child can be waited for");
        assert!(ended.is_some_and(|(_, status)| status.stopped()));
        child
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for StoppedProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The name of the variable that marks a job's processes.
pub(crate) const MARK: &str = "EVERBURN_TEST_MARK";

/// A mark that no other job has.
pub(crate) fn new_mark() -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{}-{number}", std::process::id())
}

/// All processes that live and carry `mark`. One that has ended and is not reaped has no
/// environment any more, and does not count.
pub(crate) fn processes_marked(mark: &str) -> Vec<Process> {
    let entries = std::fs::read_dir("/proc").expect("/proc can be read");
    entries
        .filter_map(|entry| marked(&entry.ok()?.path(), mark))
        .collect()
}

fn marked(folder: &Path, mark: &str) -> Option<Process> {
    let pid = folder.file_name()?.to_str()?.parse().ok()?;
    let environment = std::fs::read(folder.join("environ")).ok()?;
    let value = |name: &str| {
        environment.split(|&byte| byte == 0).find_map(|entry| {
            let entry = std::str::from_utf8(entry).ok()?;
            entry.strip_prefix(name)?.strip_prefix('=')
        })
    };
    if value(MARK)? != mark {
        return None;
    }
    Some(Process {
        pid: Pid::from_raw(pid)?,
        rank: value("RANK").and_then(|rank| rank.parse().ok()),
    })
}

/// Kills all processes that carry `mark`, those that they start meanwhile included.
pub(crate) fn kill_marked(mark: &str) {
    for _ in 0..100 {
        let living = processes_marked(mark);
        if living.is_empty() {
            return;
        }
        for process in living {
            process.signal(Signal::KILL);
        }
        std::thread::yield_now();
    }
}
