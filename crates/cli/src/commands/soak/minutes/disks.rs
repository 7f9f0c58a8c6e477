//! Disks of machines that can be full: file systems in memory, in a mount namespace that ends with this process and all that
//! it has started.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::statvfs;

use super::mount_namespace;
use crate::commands::soak::Soak;
use crate::commands::{ToolError, failed};

/// The room of a disk that is not full: pages are taken only where something is written.
const ROOM: &str = "50%";

/// More bytes that a disk may have when it becomes full, one attempt after the other: files grow meanwhile.
const GROWTH: [u64; 4] = [0, 1 << 14, 1 << 17, 1 << 20];

/// A disk of no size would have no limit.
const LEAST: u64 = 1 << 14;

/// A disk per machine; they are unmounted with this value.
pub(super) struct Disks {
    /// By machine; empty where none can be mounted.
    mounted: Vec<PathBuf>,
}

impl Disks {
    /// Makes the folder of each machine, and mounts a disk on it where this process may.
    pub(super) fn prepare(soak: &Soak<'_>) -> Result<Self, ToolError> {
        let machines = 0..soak.options.machines as usize;
        let folders = machines.map(|machine| soak.disk(machine));
        let folders = folders.collect::<Vec<_>>();
        for folder in &folders {
            std::fs::create_dir_all(folder).map_err(failed)?;
        }
        let mut disks = Self {
            mounted: Vec::new(),
        };
        if !rustix::process::geteuid().is_root() {
            return Ok(disks);
        }
        if let Err(why) = disks.mount(folders) {
            say!("no disk becomes full, because none can be mounted here: {why}");
            disks = Self {
                mounted: Vec::new(),
            };
        }
        Ok(disks)
    }

    fn mount(&mut self, folders: Vec<PathBuf>) -> Result<(), String> {
        mount_namespace::enter().map_err(|error| error.to_string())?;
        call("mount", ["--make-rprivate", "/"].map(OsStr::new))?;
        for folder in folders {
            let options = format!("mode=0700,size={ROOM}");
            let before = ["-t", "tmpfs", "-o", &options, "everburn-soak"];
            let arguments = before.map(OsStr::new).into_iter();
            call("mount", arguments.chain([folder.as_os_str()]))?;
            self.mounted.push(folder);
        }
        Ok(())
    }

    /// Whether they can be full.
    pub(super) fn are_mounted(&self) -> bool {
        !self.mounted.is_empty()
    }

    /// Leaves no room on the disk of `machine`.
    pub(super) fn fill(&self, machine: usize) -> Result<(), ToolError> {
        let disk = &self.mounted[machine];
        let mut refused = String::new();
        for growth in GROWTH {
            let space = statvfs(disk).map_err(failed)?;
            let used = space.f_blocks.saturating_sub(space.f_bfree) * space.f_frsize;
            match resize(disk, &(used + growth).max(LEAST).to_string()) {
                Ok(()) => return Ok(()),
                Err(why) => refused = why,
            }
        }
        Err(ToolError::Failed(format!(
            "the disk of machine {machine} cannot be made full: {refused}"
        )))
    }

    /// Gives it its room back.
    pub(super) fn make_room(&self, machine: usize) -> Result<(), ToolError> {
        resize(&self.mounted[machine], ROOM).map_err(failed)
    }
}

impl Drop for Disks {
    fn drop(&mut self) {
        for folder in &self.mounted {
            // The namespace ends with this process in any case; without the disks their folder can be removed.
            let _ = call("umount", [OsStr::new("--lazy"), folder.as_os_str()]);
        }
    }
}

fn resize(disk: &Path, size: &str) -> Result<(), String> {
    let options = format!("remount,size={size}");
    let before = ["-o", &options].map(OsStr::new).into_iter();
    call("mount", before.chain([disk.as_os_str()]))
}

fn call<'a>(program: &str, arguments: impl IntoIterator<Item = &'a OsStr>) -> Result<(), String> {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .stdin(Stdio::null())
        // A Ctrl-C must not cut short what cleans up after it.
        .process_group(0);
    let output = command.output();
    let output = output.map_err(|error| format!("`{program}` cannot be started: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!(
            "`{program}` has failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::ErrorKind;

    use super::*;

    #[test]
    fn a_disk_is_full_until_it_has_room_again() {
        let folder = tempfile::tempdir().unwrap();
        let disk = folder.path().join("disk-0");
        fs::create_dir(&disk).unwrap();
        let mut disks = Disks {
            mounted: Vec::new(),
        };
        // The namespace is that of this test's thread.
        if let Err(why) = disks.mount(vec![disk.clone()]) {
            everburn_tests::skip("a disk that is full", &why);
            return;
        }
        fs::write(disk.join("log"), vec![0; 100_000]).unwrap();
        disks.fill(0).unwrap();
        let refused = fs::write(disk.join("checkpoint"), vec![0; 100_000]).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::StorageFull);
        disks.make_room(0).unwrap();
        fs::write(disk.join("checkpoint"), vec![0; 100_000]).unwrap();
        drop(disks);
        assert!(!disk.join("log").exists());
    }
}
