//! What GPUs need: driver, NVRTC, NCCL to run, LLVM to build. Nothing here is in the CPU's way.

use std::fs;
use std::path::PathBuf;

use super::Finding;
use crate::cargo::root;
use crate::gpu::{find_library, nvidia_driver};

pub(super) fn findings() -> Vec<Finding> {
    let library = |subject, name: &str, advice| match find_library(name) {
        Some(path) => Finding::ok(subject, path.display().to_string()),
        None => Finding::warn(subject, format!("no {name} found"), advice),
    };
    vec![
        driver(),
        library(
            "NVRTC",
            "libnvrtc.so",
            "only for GPUs: install the CUDA toolkit",
        ),
        library(
            "NCCL",
            "libnccl.so",
            "only for several GPUs: install libnccl2",
        ),
        llvm(),
    ]
}

fn driver() -> Finding {
    let version = fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    match (version.lines().next(), nvidia_driver()) {
        (Some(version), _) => Finding::ok("NVIDIA driver", version),
        (None, Some(path)) => Finding::ok("NVIDIA driver", path.display().to_string()),
        (None, None) => Finding::warn(
            "NVIDIA driver",
            "none",
            "only for `--gpus`: install it, or train with `--ranks`",
        ),
    }
}

/// Burn's `cuda` feature links LLVM from a bundle that its build script fetches or finds here.
fn llvm() -> Finding {
    let subject = "LLVM bundle";
    let lock = fs::read_to_string(root().join("Cargo.lock")).unwrap_or_default();
    let Some(version) = locked_version(&lock, "tracel-llvm-bundler") else {
        return Finding::ok(subject, "not needed by this Cargo.lock");
    };
    let data = std::env::var_os("XDG_DATA_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".local/share")));
    let prefix = data
        .unwrap_or_default()
        .join(format!("tracel/tracel-llvm-{version}"));
    if prefix.join(".tracel-llvm-installed").exists() {
        return Finding::ok(subject, prefix.display().to_string());
    }
    Finding::warn(
        subject,
        format!("{version} is not there"),
        "only for `--gpus`: the build fetches it; without a network run ../shared/bin/setup-llvm",
    )
}

fn locked_version(lock: &str, package: &str) -> Option<String> {
    let name = format!("name = \"{package}\"");
    let after = lock.lines().skip_while(|line| *line != name).nth(1)?;
    Some(
        after
            .strip_prefix("version = \"")?
            .trim_end_matches('"')
            .to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_locked_version_is_found() {
        let lock = "[[package]]\nname = \"a\"\nversion = \"1.0.0\"\n\n[[package]]\nname = \"b\"\n\
                    version = \"2.0.0-4\"\n";
        assert_eq!(locked_version(lock, "b").as_deref(), Some("2.0.0-4"));
        assert_eq!(locked_version(lock, "c"), None);
    }
}
