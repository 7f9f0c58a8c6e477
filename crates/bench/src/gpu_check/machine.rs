//! What a check has run on, and with what.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use everburn::launch::Children;
use everburn::nccl::{Library, LibraryPaths, Vendor};
use serde::{Deserialize, Serialize};

use super::child;
use crate::machine;

/// How long a Python may take to say where its packages are.
const ASKED_FOR: Duration = Duration::from_secs(20);

/// Versions and hardware, as far as they are available.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Machine {
    pub(super) everburn: String,
    pub(super) burn: String,
    /// How kernels are compiled.
    pub(super) features: String,
    /// GPUs, their memory, driver, CUDA and NCCL; or why there are none.
    pub(super) gpus: String,
    pub(super) processor: String,
    /// PyTorch's versions, as it tells them; absent where it was not asked.
    pub(super) pytorch: Option<String>,
    /// Seconds since 1970.
    pub(super) time: u64,
}

impl Machine {
    pub(super) fn here() -> Self {
        let versions = everburn::train::Versions::default();
        Self {
            everburn: versions.everburn,
            burn: versions.burn,
            features: features().to_string(),
            gpus: match everburn::nccl::gpus() {
                Ok(inventory) => inventory.to_string(),
                Err(error) => error.to_string(),
            },
            processor: processor(),
            pytorch: None,
            time: everburn_record::unix_time().as_secs(),
        }
    }
}

/// Where NCCL is, if it is not found by itself but in the packages of `python`; or why there is none.
pub(super) fn find_nccl(
    children: &Children,
    python: Option<&str>,
) -> Result<Option<PathBuf>, String> {
    let missing = match Library::load() {
        Ok(_) => return Ok(None),
        Err(error) => error.to_string(),
    };
    let file = python
        .and_then(|python| nccl_of(children, python))
        .ok_or(missing)?;
    let library_paths = LibraryPaths {
        named: Some(file.clone()),
        ..LibraryPaths::default()
    };
    match Library::load_from(Vendor::Nvidia, &library_paths) {
        Ok(_) => Ok(Some(file)),
        Err(error) => Err(error.to_string()),
    }
}

/// NCCL's file among the packages of `python`.
fn nccl_of(children: &Children, python: &str) -> Option<PathBuf> {
    let mut command = Command::new(python);
    let program = "import nvidia.nccl as nccl; print(list(nccl.__path__)[0])";
    command.args(["-c", program]);
    let nowhere = Path::new("/dev/null");
    let ended = child::run(children, command, ASKED_FOR, nowhere, |_| {}).ok()?;
    let folder = ended.lines.last().filter(|_| ended.failure().is_none())?;
    let file = Path::new(folder).join("lib/libnccl.so.2");
    file.is_file().then_some(file)
}

fn features() -> String {
    let built = everburn::devices::built_for();
    match cfg!(feature = "cuda-cpp") {
        true => "cuda-cpp".to_string(),
        false if built.is_empty() => "no GPUs".to_string(),
        false => built.join(", "),
    }
}

/// `Intel(R) Xeon(R) ... (16 threads)`
fn processor() -> String {
    let machine::Machine { cores, cpu } = machine::Machine::look();
    format!("{cpu} ({cores} threads)")
}
