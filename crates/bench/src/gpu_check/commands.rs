//! The processes of a check: their command lines, and where they keep their kernels.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::json;

use super::child::{self, Ended};
use super::order::{Benchmarked, Order, Part, Plant};
use super::work::Check;

impl Check<'_> {
    /// Runs a process to its end, or to that of its time.
    pub(super) fn run_part(&self, command: Command, limit: Duration) -> std::io::Result<Ended> {
        child::run(&self.children, command, limit, &self.log, |_| {})
    }

    /// A process of this program, which finds what this one has found. Its kernels are kept for the next check in a folder of
    /// `part`: of one folder, processes side by side take databases as they come, and the next check would find others' kernels.
    /// On a software device there are fewer cores than parts, and later parts start with the kernels of earlier ones of
    /// their `model`.
    pub(super) fn command(&self, model: &str, part: &str) -> Command {
        let mut command = Command::new(&self.program);
        if let Some(nccl) = &self.nccl {
            command.env(everburn::nccl::NCCL_VARIABLE, nccl);
        }
        let kept = std::env::var_os(everburn::kernels::VARIABLE).filter(|kept| !kept.is_empty());
        let kept = kept.map_or_else(
            || std::env::temp_dir().join("everburn-kernels"),
            PathBuf::from,
        );
        let folder = match self.arguments.is_software() {
            true => kept.join(model),
            false => kept.join(format!("{part}-{model}").replace([' ', ','], "-")),
        };
        share_verification(&kept, &folder);
        command.env(everburn::kernels::VARIABLE, folder);
        if self.arguments.is_software() {
            // The best of many kernels is not worth minutes of tuning on the CPU.
            command.env("CUBECL_AUTOTUNE_LEVEL", "minimal");
            // Mesa complains in the middle of every error where there is none.
            if std::env::var_os("XDG_RUNTIME_DIR").is_none() {
                command.env("XDG_RUNTIME_DIR", std::env::temp_dir());
            }
        }
        command
    }

    /// A process of this program that does `parts`, one or more, and something wrong if that is asked for.
    pub(super) fn parts(&self, parts: Vec<Part>, device: &str, plant: Option<Plant>) -> Command {
        let (name, of) = parts[0].names();
        let order = Order {
            parts,
            device: device.to_string(),
            quick: self.arguments.quick,
            plant,
        };
        let mut command = self.command(&of, name);
        command.args(["side", "part", &json!(order).to_string()]);
        command
    }

    pub(super) fn throughput_part(&self, what: Benchmarked, batch: usize) -> Part {
        // As small as it takes to see that everything is wired.
        let batch = if self.arguments.quick {
            batch.min(8)
        } else {
            batch
        };
        Part::Throughput { what, batch }
    }
}

/// Has `folder`, which is in `kept`, share what `kept` says of verified devices, so that one process verifies the device for
/// all. Where that fails, each does it for itself.
fn share_verification(kept: &Path, folder: &Path) {
    let made = std::fs::create_dir_all(kept.join("checked"));
    let made = made.and_then(|()| std::fs::create_dir_all(folder));
    // From the folder of the link: `kept` may be relative to that of the process.
    let _ = made.and_then(|()| std::os::unix::fs::symlink("../checked", folder.join("checked")));
}

#[cfg(test)]
mod tests {
    use super::share_verification;

    #[test]
    fn a_folder_of_kernels_shares_what_was_verified_wherever_it_is() {
        let here = tempfile::tempdir().unwrap();
        let kept = here.path().join("kept");
        share_verification(&kept, &kept.join("mnist"));
        let moved = here.path().join("moved");
        std::fs::rename(kept, &moved).unwrap();
        std::fs::write(moved.join("mnist/checked/note"), "verified").unwrap();
        let shared = std::fs::read_to_string(moved.join("checked/note"));
        assert_eq!(shared.unwrap(), "verified");
    }
}
