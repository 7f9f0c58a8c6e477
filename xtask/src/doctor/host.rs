//! The machine itself: toolchain, cores, memory, disks, terminal, data.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::Command;

use everburn_record::{proc, units};

use super::Finding;
use crate::cargo::{data_dir_beside, target_dir};

const GIB: u64 = 1 << 30;

/// Below this even one rank of a small model hardly fits beside the system.
const MEMORY_WANTED: u64 = 2 * GIB;

/// What a release build of Burn takes.
const DISK_WANTED: u64 = 12 * GIB;
const DISK_NEEDED: u64 = GIB / 2;

/// What containers get unless told otherwise; too little for ranks that share memory.
const SHARED_MEMORY_WANTED: u64 = 64 << 20;

/// The four files of MNIST, without their ending `.gz`.
const MNIST: [&str; 4] = [
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
];

pub(super) fn findings() -> Vec<Finding> {
    vec![
        toolchain(),
        cores(),
        memory(),
        disk(),
        shared_memory(),
        terminal(),
        data(),
    ]
}

fn toolchain() -> Finding {
    let (subject, wanted) = ("toolchain", env!("CARGO_PKG_RUST_VERSION"));
    let advice = "install it from https://rustup.rs, then `rustup update stable`";
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = match Command::new(rustc).arg("--version").output() {
        Ok(output) if output.status.success() => output.stdout,
        _ => return Finding::fail(subject, "rustc does not answer", advice),
    };
    let version = String::from_utf8_lossy(&output).trim().to_owned();
    match (
        numbers(version.split(' ').nth(1).unwrap_or_default()),
        numbers(wanted),
    ) {
        (Some(have), Some(want)) if have < want => Finding::fail(
            subject,
            format!("{version}; {wanted} or later is needed"),
            advice,
        ),
        _ => Finding::ok(subject, version),
    }
}

/// Major and minor version.
fn numbers(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split(['.', '-']);
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn cores() -> Finding {
    match std::thread::available_parallelism() {
        Ok(cores) if cores.get() > 1 => Finding::ok("cores", format!("{cores} usable")),
        Ok(_) => Finding::warn(
            "cores",
            "1 usable",
            "several ranks would share it and gain nothing",
        ),
        Err(error) => Finding::warn("cores", error.to_string(), "set RAYON_NUM_THREADS yourself"),
    }
}

fn memory() -> Finding {
    match proc::available_memory() {
        Some(bytes) if bytes >= MEMORY_WANTED => {
            Finding::ok("memory", format!("{} available", units::bytes(bytes)))
        }
        Some(bytes) => Finding::warn(
            "memory",
            format!("{} available", units::bytes(bytes)),
            "few ranks and small batches; a build needs `-j 1`",
        ),
        None => Finding::warn("memory", "the system does not say", "look at it yourself"),
    }
}

fn disk() -> Finding {
    let folder = target_dir();
    let (subject, at) = ("disk", nearest_existing(&folder));
    let Ok(space) = rustix::fs::statvfs(&at) else {
        let found = format!("{} cannot be examined", folder.display());
        return Finding::warn(
            subject,
            found,
            "set CARGO_TARGET_DIR to a folder that can be written",
        );
    };
    let free = space.f_bavail * space.f_frsize;
    let found = format!("{} free for {}", units::bytes(free), folder.display());
    let advice = "a release build takes about 12 GiB: make room or set CARGO_TARGET_DIR";
    match free {
        free if free < DISK_NEEDED => Finding::fail(subject, found, advice),
        free if free < DISK_WANTED => Finding::warn(subject, found, advice),
        _ => Finding::ok(subject, found),
    }
}

pub(super) fn nearest_existing(folder: &Path) -> PathBuf {
    let found = folder.ancestors().find(|folder| folder.exists());
    found.unwrap_or(Path::new("/")).to_path_buf()
}

fn shared_memory() -> Finding {
    let subject = "shared memory";
    let advice = "in a container, start it with `--shm-size 1g`";
    match rustix::fs::statvfs("/dev/shm") {
        Ok(space) => {
            let free = space.f_bavail * space.f_frsize;
            let found = format!("{} free in /dev/shm", units::bytes(free));
            if free > SHARED_MEMORY_WANTED {
                Finding::ok(subject, found)
            } else {
                Finding::warn(subject, found, advice)
            }
        }
        Err(error) => Finding::warn(subject, format!("/dev/shm: {error}"), advice),
    }
}

fn terminal() -> Finding {
    let subject = "terminal";
    let stdout = std::io::stdout();
    if !stdout.is_terminal() || !std::io::stdin().is_terminal() {
        return Finding::ok(subject, "none: training prints plain lines");
    }
    let name = std::env::var("TERM").unwrap_or_default();
    if name.is_empty() || name == "dumb" {
        return Finding::warn(subject, "TERM is not set", "set TERM to see the dashboard");
    }
    match rustix::termios::tcgetwinsize(&stdout) {
        Ok(window) if window.ws_col < 80 || window.ws_row < 24 => Finding::warn(
            subject,
            format!("{name}, {} x {}", window.ws_col, window.ws_row),
            "the dashboard wants 80 x 24 or more",
        ),
        Ok(window) => Finding::ok(
            subject,
            format!("{name}, {} x {}", window.ws_col, window.ws_row),
        ),
        Err(error) => Finding::warn(subject, error.to_string(), "the dashboard may look wrong"),
    }
}

fn data() -> Finding {
    let subject = "data";
    let set = std::env::var_os("EVERBURN_DATA_DIR").filter(|folder| !folder.is_empty());
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
    let cached = cache.map(|folder| folder.join("everburn"));
    let folders = set.iter().map(PathBuf::from).chain(cached);
    if let Some(folder) = folders
        .map(|folder| folder.join("mnist"))
        .find(|at| has_mnist(at))
    {
        return Finding::ok(subject, format!("MNIST in {}", folder.display()));
    }
    match (set, data_dir_beside()) {
        (Some(folder), _) => Finding::warn(
            subject,
            format!(
                "no complete MNIST in {}",
                Path::new(&folder).join("mnist").display()
            ),
            "training downloads it, or draws synthetic digits where there is no network",
        ),
        (None, Some(_)) => Finding::warn(
            subject,
            "EVERBURN_DATA_DIR is not set",
            "`export EVERBURN_DATA_DIR=../shared/data`: it lies beside this workspace",
        ),
        (None, None) => Finding::warn(
            subject,
            "EVERBURN_DATA_DIR is not set and nothing is cached",
            "training downloads MNIST, or draws synthetic digits where there is no network",
        ),
    }
}

fn has_mnist(folder: &Path) -> bool {
    MNIST
        .iter()
        .all(|name| folder.join(name).exists() || folder.join(format!("{name}.gz")).exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert!(numbers("1.100.0") > numbers("1.95"));
        assert_eq!(numbers("1.96.0-nightly"), Some((1, 96)));
        assert_eq!(numbers("unknown"), None);
    }

    #[test]
    fn data_is_there_when_all_four_files_are() {
        let folder = tempfile::tempdir().unwrap();
        for name in MNIST {
            assert!(!has_mnist(folder.path()));
            std::fs::write(folder.path().join(format!("{name}.gz")), "").unwrap();
        }
        assert!(has_mnist(folder.path()));
    }
}
