//! What GPUs need: driver, NVRTC, NCCL to run, LLVM to build. Nothing here is in the CPU's way.

use std::fs;
use std::path::PathBuf;

use everburn_nccl::{Library, LibraryError, find_library};

use super::Finding;
use crate::cargo::root;

pub(super) fn findings() -> Vec<Finding> {
    vec![gpus(), nvrtc(), nccl(), llvm()]
}

/// Driver, CUDA and GPUs, as the driver itself tells.
fn gpus() -> Finding {
    let subject = "GPUs";
    match everburn_nccl::gpus() {
        Ok(found) => Finding::ok(subject, found.to_string()),
        Err(LibraryError::NoDriver { .. }) => Finding::warn(
            subject,
            "no NVIDIA driver",
            "only for `--gpus`: install it, or train with `--ranks`",
        ),
        Err(error) => Finding::warn(subject, error.to_string(), "only for `--gpus`"),
    }
}

fn nvrtc() -> Finding {
    let subject = "NVRTC";
    match find_library("libnvrtc.so") {
        Some(path) => Finding::ok(subject, path.display().to_string()),
        None => Finding::warn(
            subject,
            "no libnvrtc.so found",
            "only for GPUs: install the CUDA toolkit",
        ),
    }
}

fn nccl() -> Finding {
    let subject = "NCCL";
    match Library::load() {
        Ok(nccl) => {
            let (version, path) = (nccl.version(), nccl.path().display());
            Finding::ok(subject, format!("{version} at {path}"))
        }
        Err(LibraryError::NoNccl { .. }) => Finding::warn(
            subject,
            "no libnccl.so.2 found",
            "only for several GPUs: install libnccl2, or name the file in EVERBURN_NCCL_LIBRARY",
        ),
        Err(error) => Finding::warn(subject, error.to_string(), "only for several GPUs"),
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
