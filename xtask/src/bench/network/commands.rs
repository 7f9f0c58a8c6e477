//! `ip` and `tc`, and namespaces that know whose they are.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::super::process::Failure;

/// Where `ip netns` keeps the names.
pub(super) const FOLDER: &str = "/run/netns";

/// The beginning of all names: `everburn-bench-PID-START-WHAT`.
const PREFIX: &str = "everburn-bench-";

/// The process that namespaces belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Owner {
    pid: u32,
    /// In the kernel's ticks since it started. Process numbers come again, both together do not.
    start: u64,
}

impl Owner {
    pub(super) fn this_process() -> Result<Self, Failure> {
        Self::of(std::process::id())
            .ok_or_else(|| Failure::new("/proc does not tell when this process has started"))
    }

    fn of(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name in parentheses may hold anything; the start is the twentieth word after it.
        let (_, after_name) = stat.rsplit_once(')')?;
        let start = after_name.split_whitespace().nth(19)?.parse().ok()?;
        Some(Self { pid, start })
    }

    pub(super) fn name(self, what: &str) -> String {
        format!("{PREFIX}{}-{}-{what}", self.pid, self.start)
    }

    /// Whose namespace `name` is, if it is a benchmark's.
    pub(super) fn of_name(name: &str) -> Option<Self> {
        let mut parts = name.strip_prefix(PREFIX)?.split('-');
        let (pid, start) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        parts.next().map(|_| Self { pid, start })
    }

    pub(super) fn lives(self) -> bool {
        Self::of(self.pid) == Some(self)
    }
}

/// A network namespace; it is deleted with this value, and what runs in it is ended.
#[derive(Debug)]
pub(super) struct Netns {
    name: String,
}

impl Netns {
    pub(super) fn add(name: String) -> Result<Self, Failure> {
        ip(&["netns", "add", &name])?;
        Ok(Self { name })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        if let Err(error) = delete(&self.name) {
            eprintln!("{error}; the next run will try again");
        }
    }
}

/// Removes the namespaces of benchmarks that are no more.
pub(super) fn remove_leftovers(folder: &Path) -> Result<(), Failure> {
    let Ok(entries) = fs::read_dir(folder) else {
        // Nobody has made a namespace since the machine started.
        return Ok(());
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        if let Some(name) = name.to_str()
            && Owner::of_name(name).is_some_and(|owner| !owner.lives())
        {
            delete(name)?;
        }
    }
    Ok(())
}

/// Ends what runs in the namespace `name` and deletes it with all its devices.
fn delete(name: &str) -> Result<(), Failure> {
    let pids = output("ip", &["netns", "pids", name]).unwrap_or_default();
    for pid in pids.split_whitespace().filter_map(|pid| pid.parse().ok()) {
        if let Some(pid) = Pid::from_raw(pid) {
            // It may have ended by itself by now.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
    ip(&["netns", "delete", name])
}

pub(super) fn ip(arguments: &[&str]) -> Result<(), Failure> {
    output("ip", arguments).map(drop)
}

pub(super) fn tc(arguments: &[&str]) -> Result<(), Failure> {
    output("tc", arguments).map(drop)
}

fn output(program: &str, arguments: &[&str]) -> Result<String, Failure> {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .stdin(Stdio::null())
        // A Ctrl-C must not cut short what cleans up after it.
        .process_group(0);
    let output = command.output().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Failure::new(format!(
            "there is no `{program}`, which --link needs: install iproute2"
        )),
        _ => Failure::new(format!("`{program}` cannot be started: {error}")),
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let why = String::from_utf8_lossy(&output.stderr);
    Err(Failure::new(format!(
        "`{program} {}` has failed ({}): {}",
        arguments.join(" "),
        output.status,
        why.trim()
    )))
}
