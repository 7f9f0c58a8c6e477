//! `environment.json`: where and how a run was made.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::{file, plain, proc, unix_time_ms};

/// The longest file that is read of a run: it has some hundred bytes.
const LONGEST: u64 = 1 << 20;

/// How much of a file of `/proc` is looked at.
const MOST_BYTES: u64 = 1 << 16;

/// Variables that change how a training runs.
const PREFIXES: [&str; 8] = [
    "EVERBURN_",
    "RAYON_",
    "OMP_",
    "CUDA_",
    "NVIDIA_",
    "CUBECL_",
    "MALLOC_",
    "SLURM_JOB",
];

/// What `environment.json` holds: where a run was made, and by which command. What is not known is absent.
///
/// ```
/// use everburn_record::Environment;
///
/// let command = ["everburn", "train", "mnist", "--job-token", "abc"].map(String::from);
/// let variables = [("RAYON_NUM_THREADS".to_string(), "2".to_string())];
/// let environment = Environment::of_this_machine(command, variables);
/// assert_eq!(environment.command.as_deref(), Some("everburn train mnist --job-token (not shown)"));
/// assert_eq!(environment.variables["RAYON_NUM_THREADS"], "2");
/// assert!(environment.cores > Some(0));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Environment {
    /// When the run began, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_unix_ms: Option<u64>,
    /// The command line, without secrets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Which settings a resume has changed, of the newest: `training.epochs = 14 (was 10)`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resume_changes: Vec<String>,
    /// The machine's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The operating system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// The kernel's version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// The processor's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processor: Option<String>,
    /// How many cores this process may use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cores: Option<usize>,
    /// The machine's memory, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// The names of its accelerators.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub accelerators: Vec<String>,
    /// Versions of programs, by their names: the compiler, the driver, the commit.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub versions: BTreeMap<String, String>,
    /// Variables that change how a training runs, without secrets.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub variables: BTreeMap<String, String>,
}

impl Environment {
    /// The file's name in the folder of a run.
    pub const FILE: &str = "environment.json";

    /// That of the run in a folder, where it can be read.
    pub fn of_run(run: &Path) -> Option<Self> {
        let text = file::read_text(&run.join(Self::FILE), LONGEST).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// What this machine says of itself (in `/proc` and `/etc`), and the command and variables of this process:
    /// `std::env::args()` and `std::env::vars()`, those of `vars_os` that are text. Secrets are left out, and of the
    /// variables those that have nothing to do with a training.
    pub fn of_this_machine(
        command: impl IntoIterator<Item = String>,
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Self {
        let words: Vec<String> = command.into_iter().collect();
        let variables = variables.into_iter().filter(|(name, _)| {
            let matters = PREFIXES.iter().any(|prefix| name.starts_with(prefix));
            matters && !plain::is_secret(name)
        });
        let driver = text_of("/proc/driver/nvidia/version");
        let driver = driver.as_deref().and_then(driver_version);
        Self {
            started_unix_ms: Some(unix_time_ms()),
            command: (!words.is_empty()).then(|| plain::command_line(&words)),
            resume_changes: Vec::new(),
            host: proc::host_name(),
            system: text_of("/etc/os-release").and_then(|text| pretty_name(&text)),
            kernel: proc::kernel_release(),
            processor: proc::cpu_name(),
            cores: std::thread::available_parallelism().ok().map(usize::from),
            memory_bytes: proc::total_memory(),
            accelerators: nvidia_names(Path::new("/proc/driver/nvidia/gpus")),
            versions: driver
                .map(|version| ("NVIDIA driver".to_owned(), version))
                .into_iter()
                .collect(),
            variables: variables.collect(),
        }
    }
}

fn text_of(path: impl AsRef<Path>) -> Option<String> {
    let mut bytes = Vec::new();
    let file = File::open(path).ok()?;
    file.take(MOST_BYTES).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

fn pretty_name(os_release: &str) -> Option<String> {
    let mut lines = os_release.lines();
    let name = lines.find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
    Some(name.trim_matches('"').to_owned())
}

/// The version in `NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Tue ...`.
fn driver_version(text: &str) -> Option<String> {
    let line = text.lines().next()?;
    let is_version =
        |word: &&str| word.contains('.') && word.starts_with(|c: char| c.is_ascii_digit());
    line.split_whitespace().find(is_version).map(str::to_owned)
}

fn nvidia_names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let texts = entries.filter_map(|entry| text_of(entry.path().join("information")));
    let names = texts.filter_map(|text| Some(proc::value_in(&text, "Model")?.to_owned()));
    names.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_says_is_read() {
        assert_eq!(
            pretty_name("ID=debian\nPRETTY_NAME=\"Debian 12\"\n").unwrap(),
            "Debian 12"
        );
        let driver = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Tue Jan 1\nGCC version: 12.2";
        assert_eq!(driver_version(driver).unwrap(), "570.86.15");
    }

    #[test]
    fn secrets_and_strangers_are_left_out() {
        let variables = [
            ("EVERBURN_JOB_TOKEN", "abc"),
            ("EVERBURN_LOG", "debug"),
            ("HOME", "/root"),
            ("CUDA_VISIBLE_DEVICES", "0"),
        ];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let environment = Environment::of_this_machine([], variables);
        let names: Vec<_> = environment.variables.keys().collect();
        assert_eq!(names, ["CUDA_VISIBLE_DEVICES", "EVERBURN_LOG"]);
        assert_eq!(environment.command, None);
    }
}
