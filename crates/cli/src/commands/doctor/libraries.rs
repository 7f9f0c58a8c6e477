//! What GPUs need: drivers, NVRTC, NCCL, and kernels that compute as the processor does. Nothing here is in the CPU's way.

use everburn_distributed::gpu_names;
use everburn_nccl::{ApiDriver, Library, LibraryError, Vendor, drivers, find_library};
use everburn_record::Finding;
use everburn_train::{KernelCache, verify_device};

pub(super) fn findings() -> Vec<Finding> {
    let mut findings = vec![gpus(), nvrtc(), nccl(Vendor::Nvidia)];
    for driver in drivers() {
        findings.push(api(&driver));
        if driver.api == Vendor::Amd.api() && driver.here.is_ok() {
            findings.push(nccl(Vendor::Amd));
        }
    }
    findings.extend(kernels());
    findings
}

/// What there is of an API for GPUs. Where the machine has no GPU for it, nothing is wrong.
fn api(driver: &ApiDriver) -> Finding {
    match &driver.here {
        Ok(found) => Finding::ok(driver.name, found),
        Err(missing) if missing.has_gpu => {
            Finding::warn(driver.name, &missing.what, missing.advice)
        }
        Err(missing) => Finding::ok(driver.name, format!("no GPU for it; {}", missing.what)),
    }
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

fn nccl(vendor: Vendor) -> Finding {
    let subject = vendor.collectives();
    match Library::load_of(vendor) {
        Ok(nccl) => {
            let (version, path) = (nccl.version(), nccl.path().display());
            Finding::ok(subject, format!("{version} at {path}"))
        }
        Err(LibraryError::NoNccl { .. }) => Finding::warn(
            subject,
            format!("no {subject} found"),
            match vendor {
                Vendor::Nvidia => {
                    "only for several GPUs: install libnccl2, or name the file in EVERBURN_NCCL_LIBRARY"
                }
                Vendor::Amd => {
                    "only for several GPUs: install librccl1, or name the file in EVERBURN_NCCL_LIBRARY"
                }
            },
        ),
        Err(error) => Finding::warn(subject, error.to_string(), "only for several GPUs"),
    }
}

#[cfg(test)]
mod tests {
    use everburn_nccl::MissingDriver;
    use everburn_record::Verdict;

    use super::*;

    #[test]
    fn a_driver_is_missed_only_where_there_is_a_gpu_for_it() {
        let with = |has_gpu| ApiDriver {
            api: "rocm",
            name: "ROCm",
            here: Err(MissingDriver {
                what: "/dev/kfd is not there".into(),
                advice: "install AMD's driver",
                has_gpu,
            }),
        };
        let warned = api(&with(true));
        assert_eq!(warned.verdict, Verdict::Warn);
        assert_eq!(warned.found, "/dev/kfd is not there");
        let quiet = api(&with(false));
        assert_eq!(quiet.verdict, Verdict::Ok);
        assert_eq!(quiet.found, "no GPU for it; /dev/kfd is not there");
    }
}
