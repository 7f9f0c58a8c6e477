//! Machines of a training: network namespaces, and the etcd in which their launchers meet.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use everburn_launch::network::{Network, NetworkError, Rate, SWITCH};
use everburn_launch::{StartedChild, forget_ranks};
use tempfile::TempDir;

use crate::commands::soak::Soak;
use crate::commands::{ToolError, failed};

/// The port of etcd, which has its namespace to itself.
const PORT: u16 = 2379;

/// The rate of a slow link.
const SLOW: Rate = Rate {
    bits_per_second: 10_000_000,
};

/// Where etcd keeps its data, which nobody needs once `soak` has ended: each write waits for a disk otherwise.
const MEMORY: &str = "/dev/shm";

/// How many lines of etcd's are shown where it has ended.
const LINES_SHOWN: usize = 5;

/// Several machines on this one; they end with this value.
pub(super) struct Cluster {
    // Ended before its namespace.
    etcd: StartedChild,
    /// What etcd writes.
    output: PathBuf,
    network: Network,
    _data: TempDir,
}

impl Cluster {
    pub(super) fn start(soak: &Soak<'_>) -> Result<Self, ToolError> {
        require_etcd()?;
        let network = Network::create(soak.options.machines as usize).map_err(no_network)?;
        let output = soak.folder.path().join("etcd");
        std::fs::create_dir_all(&output).map_err(failed)?;
        let data = tempfile::tempdir_in(MEMORY).map_err(failed)?;
        let mut command = network.command_at_switch(Path::new("etcd"));
        forget_ranks(&mut command);
        // Settings of another etcd of this machine.
        let inherited = std::env::vars_os().map(|(name, _)| name);
        for name in inherited.filter(|name| name.to_string_lossy().starts_with("ETCD_")) {
            command.env_remove(name);
        }
        let (clients, peers) = (format!("http://{SWITCH}:{PORT}"), "http://127.0.0.1:2380");
        command
            .args(["--name", "soak", "--data-dir"])
            .arg(data.path())
            .args(["--listen-client-urls", &clients])
            .args(["--advertise-client-urls", &clients])
            .args(["--listen-peer-urls", peers])
            .args(["--initial-advertise-peer-urls", peers])
            .args(["--initial-cluster", &format!("soak={peers}")])
            .args(["--auto-compaction-mode", "periodic"])
            .args(["--auto-compaction-retention", "10m"]);
        // Launchers wait until it answers.
        let etcd = soak.children.start("etcd", &mut command, &output)?;
        Ok(Self {
            etcd,
            output,
            network,
            _data: data,
        })
    }

    /// The address of the etcd, as `--store` takes it.
    pub(super) fn store(&self) -> String {
        format!("etcd://{SWITCH}:{PORT}")
    }

    /// A call of `program` on `machine`.
    pub(super) fn command(&self, machine: usize, program: &Path) -> Command {
        self.network.command(machine, program)
    }

    /// Fails if etcd has ended.
    pub(super) fn check(&self) -> Result<(), ToolError> {
        if !self.etcd.has_ended() {
            return Ok(());
        }
        let said = std::fs::read_to_string(self.output.join("stderr")).unwrap_or_default();
        let lines = said.lines().collect::<Vec<_>>();
        let last = &lines[lines.len().saturating_sub(LINES_SHOWN)..];
        let last = last.join("\n");
        Err(ToolError::Failed(format!(
            "etcd has ended; its last words:\n{last}"
        )))
    }

    /// Cuts the link of `machine`.
    pub(super) fn cut(&self, machine: usize) -> Result<(), ToolError> {
        self.network.cut(machine).map_err(failed)
    }

    /// Joins it again.
    pub(super) fn restore(&self, machine: usize) -> Result<(), ToolError> {
        self.network.restore(machine).map_err(failed)
    }

    /// Makes the link of `machine` slow, both ways.
    pub(super) fn slow_down(&self, machine: usize) -> Result<(), ToolError> {
        self.network.limit(machine, SLOW).map_err(failed)
    }

    /// Makes it fast again.
    pub(super) fn speed_up(&self, machine: usize) -> Result<(), ToolError> {
        self.network.lift_limit(machine).map_err(failed)
    }
}

/// What is left of the namespaces of a cluster that has ended.
pub(super) fn namespaces_left() -> Vec<String> {
    let left = Network::namespaces().unwrap_or_default().into_iter();
    left.map(|name| format!("the network namespace {name} is still there"))
        .collect()
}

fn require_etcd() -> Result<(), ToolError> {
    let mut version = Command::new("etcd");
    let version = version.arg("--version").stdin(Stdio::null()).output();
    match version {
        Ok(output) if output.status.success() => Ok(()),
        _ => Err(ToolError::Usage(
            "--machines starts an etcd, in which the launchers meet, and `etcd --version` does not run: install \
             etcd 3.4 or newer (the package etcd-server of Debian), or leave --machines out"
                .to_owned(),
        )),
    }
}

/// Why there are no machines, with what to do.
fn no_network(error: NetworkError) -> ToolError {
    match error {
        NetworkError::NotRoot => ToolError::Usage(
            "--machines makes a network namespace for each machine, and only root may: run it with `sudo -E`, or \
             leave --machines out"
                .to_owned(),
        ),
        NetworkError::TooMany(_) | NetworkError::NoProgram(_) => {
            ToolError::Usage(format!("--machines: {error}"))
        }
        NetworkError::Failed(why) => ToolError::Failed(format!(
            "--machines needs network namespaces, which cannot be made here: {why}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_cannot_make_machines_learns_what_is_needed() {
        for (error, part) in [
            (NetworkError::NotRoot, "only root may"),
            (NetworkError::NoProgram("tc"), "install iproute2"),
            (NetworkError::TooMany(99), "not 99"),
        ] {
            let refused = no_network(error);
            assert!(matches!(refused, ToolError::Usage(_)), "{refused}");
            let text = refused.to_string();
            assert!(text.contains("--machines") && text.contains(part), "{text}");
        }
        let refused = no_network(NetworkError::Failed("no bridge".to_owned()));
        assert!(refused.to_string().ends_with("no bridge"), "{refused}");
    }
}
