//! `ip` and `tc`, namespaces that go with their value, and who deletes them when nobody else can.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use everburn_record::Owner;
use rustix::process::{Pid, Signal, kill_process};

use super::NetworkError;

/// Where `ip netns` keeps the names.
pub(super) const FOLDER: &str = "/run/netns";

/// A network namespace; it is deleted with this value, and what runs in it is ended.
#[derive(Debug)]
pub(super) struct Netns {
    name: String,
}

impl Netns {
    pub(super) fn add(name: String) -> Result<Self, NetworkError> {
        ip(&format!("netns add {name}"))?;
        Ok(Self { name })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// A call of `program` in it; `ip` becomes it.
    pub(super) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        if let Err(error) = delete(&self.name) {
            tracing::warn!("{error}; the next run will try again");
        }
    }
}

/// A process that waits for our end, also by SIGKILL, and then deletes our namespaces with what runs in them.
#[derive(Debug)]
pub(super) struct CleanupGuard {
    process: Child,
}

impl CleanupGuard {
    /// Waits from now on. `names` is what the names of our namespaces begin with.
    pub(super) fn start(names: &str) -> Result<Self, NetworkError> {
        // The input ends when the last process goes that holds its other end: we alone do.
        let script = "cat >/dev/null; for path in \"$1\"/\"$2\"*; do [ -e \"$path\" ] || continue; \
                      name=${path##*/}; pids=$(ip netns pids \"$name\"); \
                      [ -z \"$pids\" ] || kill -KILL $pids; ip netns delete \"$name\"; done; exit 0";
        let mut command = Command::new("sh");
        command
            .args(["-c", script, "guard", FOLDER, names])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // A Ctrl-C is not meant for it.
            .process_group(0);
        let process = command.spawn();
        let process = process
            .map_err(|error| NetworkError::Failed(format!("`sh` cannot be started: {error}")))?;
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

/// The names of the namespaces that there are.
pub(super) fn names(folder: &Path) -> Vec<String> {
    // Without the folder, nobody has made a namespace since the machine started.
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().into_string());
    names.filter_map(Result::ok).collect()
}

/// Removes the namespaces of processes that are no more.
pub(super) fn remove_leftovers(folder: &Path) -> Result<(), NetworkError> {
    for name in names(folder) {
        let is_left = Owner::of_name(&name).is_some_and(|owner| !owner.lives());
        // The guard of that process may be faster.
        if is_left
            && let Err(error) = delete(&name)
            && folder.join(&name).exists()
        {
            return Err(error);
        }
    }
    Ok(())
}

/// Ends what runs in the namespace `name` and deletes it with all its devices.
fn delete(name: &str) -> Result<(), NetworkError> {
    let pids = output("ip", &format!("netns pids {name}")).unwrap_or_default();
    for pid in pids.split_whitespace().filter_map(|pid| pid.parse().ok()) {
        if let Some(pid) = Pid::from_raw(pid) {
            // It may have ended by itself by now.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
    ip(&format!("netns delete {name}"))
}

pub(super) fn ip(arguments: &str) -> Result<(), NetworkError> {
    output("ip", arguments).map(drop)
}

pub(super) fn tc(arguments: &str) -> Result<(), NetworkError> {
    output("tc", arguments).map(drop)
}

pub(super) fn sent_bytes(namespace: &Netns, device: &str) -> Result<u64, NetworkError> {
    let name = namespace.name();
    let text = output("ip", &format!("-n {name} -s -json link show dev {device}"))?;
    let sent = serde_json::from_str::<serde_json::Value>(&text).ok();
    let sent = sent.and_then(|links| links[0]["stats64"]["tx"]["bytes"].as_u64());
    sent.ok_or_else(|| {
        NetworkError::Failed(format!(
            "`ip` does not report what {device} of {name} has sent"
        ))
    })
}

/// What `program` prints with these arguments, none of which has a space in it.
fn output(program: &'static str, arguments: &str) -> Result<String, NetworkError> {
    let mut command = Command::new(program);
    command
        .args(arguments.split(' '))
        .stdin(Stdio::null())
        // A Ctrl-C must not cut short what cleans up after it.
        .process_group(0);
    let output = command.output().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => NetworkError::NoProgram(program),
        _ => NetworkError::Failed(format!("`{program}` cannot be started: {error}")),
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let why = String::from_utf8_lossy(&output.stderr);
    Err(NetworkError::Failed(format!(
        "`{program} {arguments}` has failed ({}): {}",
        output.status,
        why.trim()
    )))
}
