//! What GPUs need: driver, NVRTC, NCCL. Nothing here is in the CPU's way.

use everburn_nccl::{Library, LibraryError, find_library};
use everburn_record::Finding;

pub(super) fn findings() -> Vec<Finding> {
    vec![gpus(), nvrtc(), nccl()]
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
