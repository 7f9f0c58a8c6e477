//! `ip` and `tc`, namespaces that go with their value, and who deletes them when nobody else can.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::failure::Failure;
use crate::owner::Owner;

/// Where `ip netns` keeps the names.
pub(super) const FOLDER: &str = "/run/netns";

/// A network namespace; it is deleted with this value, and what runs in it is ended.
#[derive(Debug)]
pub(super) struct Netns {
    name: String,
}

impl Netns {
    pub(super) fn add(name: String) -> Result<Self, Failure> {
        ip(&format!("netns add {name}"))?;
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

/// A process that waits for our end, also by SIGKILL, and then deletes our namespaces.
#[derive(Debug)]
pub(super) struct CleanupGuard {
    process: Child,
}

impl CleanupGuard {
    /// Waits from now on. `names` is what the names of our namespaces begin with.
    pub(super) fn start(names: &str) -> Result<Self, Failure> {
        // The input ends when the last process goes that holds its other end: we alone do.
        let script = "cat >/dev/null; for name in \"$1\"/\"$2\"*; do \
                      [ -e \"$name\" ] && ip netns delete \"${name##*/}\"; done; exit 0";
        let mut command = Command::new("sh");
        command
            .args(["-c", script, "guard", FOLDER, names])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // A Ctrl-C is not meant for it.
            .process_group(0);
        let process = command.spawn();
        let process =
            process.map_err(|error| Failure::new(format!("`sh` cannot be started: {error}")))?;
        Ok(Self { process })
    }
}

impl Drop for CleanupGuard {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        // It has nothing left to do but to end; how it does tells nothing.
        let _ = self.process.wait();
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
    let pids = output("ip", &format!("netns pids {name}")).unwrap_or_default();
    for pid in pids.split_whitespace().filter_map(|pid| pid.parse().ok()) {
        if let Some(pid) = Pid::from_raw(pid) {
            // It may have ended by itself by now.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
    ip(&format!("netns delete {name}"))
}

pub(super) fn ip(arguments: &str) -> Result<(), Failure> {
    output("ip", arguments).map(drop)
}

pub(super) fn tc(arguments: &str) -> Result<(), Failure> {
    output("tc", arguments).map(drop)
}

/// How many bytes `device` of a namespace has sent.
pub(super) fn sent_bytes(namespace: &Netns, device: &str) -> Result<u64, Failure> {
    let name = namespace.name();
    let text = output("ip", &format!("-n {name} -s -json link show dev {device}"))?;
    let sent = serde_json::from_str::<serde_json::Value>(&text).ok();
    let sent = sent.and_then(|links| links[0]["stats64"]["tx"]["bytes"].as_u64());
    sent.ok_or_else(|| {
        Failure::new(format!(
            "`ip` does not report what {device} of {name} has sent"
        ))
    })
}

/// What `program` prints with these arguments, none of which has a space in it.
fn output(program: &str, arguments: &str) -> Result<String, Failure> {
    let mut command = Command::new(program);
    command
        .args(arguments.split(' '))
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
        "`{program} {arguments}` has failed ({}): {}",
        output.status,
        why.trim()
    )))
}
