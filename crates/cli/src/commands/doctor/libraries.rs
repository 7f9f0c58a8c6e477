//! What GPUs need: driver, NVRTC, NCCL, and kernels that compute as the processor does. Nothing here is in the CPU's way.

use everburn_distributed::gpu_names;
use everburn_nccl::{Library, LibraryError, find_library};
use everburn_record::Finding;
use everburn_train::{KernelCache, verify_device};

pub(super) fn findings() -> Vec<Finding> {
    let mut findings = vec![gpus(), nvrtc(), nccl()];
    findings.extend(kernels());
    findings
}

/// Known numbers on each GPU for which this program has kernels.
fn kernels() -> Vec<Finding> {
    // What is compiled is kept for trainings.
    crate::kernels::keep(None);
    let each = gpu_names().into_iter().map(|name| {
        let subject = "kernels";
        let checked = name.open().map_err(|error| error.to_string());
        let checked = checked.and_then(|device| {
            // Anew, whatever was noted before.
            let nowhere = KernelCache::Nowhere("the doctor looks anew".to_string());
            verify_device(&device, &nowhere).map_err(|error| error.to_string())
        });
        match checked {
            Ok(()) => Finding::ok(subject, format!("{name} has the CPU's results")),
            Err(error) => Finding::warn(subject, error, "train on another device"),
        }
    });
    each.collect()
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
