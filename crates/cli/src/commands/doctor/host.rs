//! The machine itself: its name, cores, memory, terminal, data.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use everburn_record::{Finding, invocation, proc, units};

use crate::devices::host_memory;
use crate::tasks::tasks;

const GIB: u64 = 1 << 30;

/// Below this even one rank of a small model hardly fits beside the system.
const MEMORY_WANTED: u64 = 2 * GIB;

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
    let mut findings = vec![machine(), cores(), memory(), shared_memory(), terminal()];
    // A program with tasks of its own alone has no use for MNIST.
    let mut tasks = tasks().iter();
    if tasks.any(|task| task.sections().contains(&"data")) {
        findings.push(data());
    }
    findings
}

/// Which machine this is. Where Slurm starts jobs and has not given it to one, a job has others.
fn machine() -> Finding {
    let name = proc::host_name().unwrap_or_else(|| "a machine without a name".to_owned());
    let path = std::env::var_os("PATH").unwrap_or_default();
    let has_slurm = std::env::split_paths(&path).any(|folder| folder.join("sbatch").is_file());
    if !has_slurm || std::env::var_os("SLURM_JOB_ID").is_some() {
        return Finding::ok("machine", name);
    }
    Finding::warn(
        "machine",
        format!("{name}, outside of an allocation of Slurm"),
        format!(
            "a job's machines may have other cores, memory and GPUs: `srun {} doctor` examines one of them",
            invocation::name()
        ),
    )
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
    match host_memory() {
        Some(bytes) if bytes >= MEMORY_WANTED => {
            Finding::ok("memory", format!("{} available", units::bytes(bytes)))
        }
        Some(bytes) => Finding::warn(
            "memory",
            format!("{} available", units::bytes(bytes)),
            "few ranks and small batches",
        ),
        None => Finding::warn(
            "memory",
            "the system does not report it",
            "look at it yourself",
        ),
    }
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
    match set {
        Some(folder) => Finding::warn(
            subject,
            format!(
                "no complete MNIST in {}",
                Path::new(&folder).join("mnist").display()
            ),
            "training downloads it, or draws synthetic digits where there is no network",
        ),
        None => Finding::warn(
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
    fn data_is_there_when_all_four_files_are() {
        let folder = tempfile::tempdir().unwrap();
        for name in MNIST {
            assert!(!has_mnist(folder.path()));
            std::fs::write(folder.path().join(format!("{name}.gz")), "").unwrap();
        }
        assert!(has_mnist(folder.path()));
    }
}
