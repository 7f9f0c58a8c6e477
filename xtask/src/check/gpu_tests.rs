//! The NCCL and GPU tests: run if the machine can, otherwise skipped with what is missing.

use everburn_nccl::{Inventory, Library, LibraryError};

use super::package::Package;
use super::step::{Program, Step};
use crate::binary;
use crate::gpu_check::no_software_gpu;

/// The capabilities of this machine for these tests.
pub(super) struct GpuCapabilities {
    nccl: Result<(), LibraryError>,
    gpus: Result<Inventory, LibraryError>,
}

impl GpuCapabilities {
    pub(super) fn here() -> Self {
        Self {
            nccl: Library::load().map(|_| ()),
            gpus: everburn_nccl::gpus(),
        }
    }
}

/// Why a step cannot run, and the package with which it could.
type Lack = (String, Option<Package>);

/// What an error of a library says. NCCL alone comes with a package: it loads without a GPU.
fn lack(error: &LibraryError) -> Lack {
    let nccl = || Package::Pip("nvidia-nccl-cu12".to_owned());
    let package = matches!(error, LibraryError::NoNccl { .. }).then(nccl);
    (error.to_string(), package)
}

pub(super) fn steps(capabilities: &GpuCapabilities) -> Vec<Step> {
    let without_nccl = capabilities.nccl.as_ref().err().map(lack);
    let without_gpu = capabilities.gpus.as_ref().err().map(lack);
    let without_either = without_gpu.clone().or(without_nccl.clone());
    let gpus = capabilities
        .gpus
        .as_ref()
        .map_or(0, |inventory| inventory.gpus.len());
    let one_gpu = (gpus < 2).then(|| ("this machine has one GPU".to_string(), None));
    let without_two = without_either.clone().or(one_gpu);
    let has_gpu = without_nccl
        .clone()
        .or_else(|| (gpus > 0).then(|| ("this machine has a GPU".to_string(), None)));
    // In a separate target folder: another feature set would rebuild all of Burn each time.
    let cuda = "--features cuda --target-dir target/cuda ";
    let (but_two, two) = ("--skip two_gpus::", "two_gpus::");
    vec![
        step(
            "tests with NCCL",
            "",
            "nccl",
            "--skip no_gpu::",
            without_nccl,
        ),
        step(
            "tests with NCCL and no GPU",
            "",
            "nccl",
            "no_gpu::",
            has_gpu,
        ),
        step(
            "tests with a GPU",
            "",
            "gpu",
            but_two,
            without_either.clone(),
        ),
        step("tests with two GPUs", "", "gpu", two, without_two.clone()),
        step(
            "tests of tensors on a GPU",
            cuda,
            "cuda",
            but_two,
            without_either,
        ),
        step(
            "tests of tensors on two GPUs",
            cuda,
            "cuda",
            two,
            without_two,
        ),
        gpu_check(without_gpu),
    ]
}

/// Trainings by generated kernels on a Vulkan device that is made of the CPU, and the check of a whole GPU. Burn is built a
/// second time for them. Of some models the kernels alone take minutes: those are `long`.
pub(super) fn software_steps(long: bool) -> Vec<Step> {
    // Each of them keeps all cores busy.
    let tests = format!(
        "test --profile quick --package everburn-tests --test software_gpu -- --ignored \
         --test-threads=1 {}",
        if long { "long_" } else { "--skip=long_" }
    );
    let mut steps = vec![
        Step::cargo("binary with WGSL kernels", binary::FOR_SOFTWARE_GPU),
        Step::tests("tests on software Vulkan", &tests),
    ];
    if long {
        let line = "xtask gpu-check -- --device webgpu:cpu --out target/software-gpu-check";
        steps.push(Step::cargo("check of software Vulkan", line));
    } else {
        // They build Burn once more.
        steps = steps
            .into_iter()
            .map(|step| step.within_minutes(50))
            .collect();
    }
    if let Some(missing) = no_software_gpu() {
        let package = Package::Apt("mesa-vulkan-drivers".to_owned());
        for step in &mut steps {
            step.program = Program::Lacking(missing.clone(), Some(package.clone()));
        }
    }
    steps
}

/// The check of a whole GPU, which is not for every run of the tests even where there is one.
fn gpu_check(missing: Option<Lack>) -> Step {
    Step {
        program: match missing {
            Some((why, package)) => Program::Lacking(why, package),
            None => Program::NotAsked(
                "it builds for half an hour and takes the GPU for ten minutes: `cargo xtask gpu-check`",
            ),
        },
        ..Step::cargo("check of the GPU", "xtask gpu-check")
    }
}

/// The ignored tests of the targets of that name, built with `options`, of which `filter` leaves those that this
/// machine is for.
fn step(
    name: &'static str,
    options: &str,
    target: &str,
    filter: &str,
    missing: Option<Lack>,
) -> Step {
    // One GPU is not shared by tests that count on its memory and its time.
    let line = format!(
        "test --release --workspace {options}--test {target} -- --ignored --test-threads=1 {filter}"
    );
    let step = Step::tests(name, &line);
    match missing {
        Some((why, package)) => Step {
            program: Program::Lacking(why, package),
            ..step
        },
        None => step,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use everburn_nccl::{CudaVersion, Gpu, NcclVersion, Vendor};

    use super::super::step::Done;
    use super::super::test_counts::TestCounts;
    use super::*;

    #[test]
    fn what_is_missing_is_said_and_never_counted_as_passed() {
        let no_driver = LibraryError::NoDriver {
            vendor: Vendor::Nvidia,
            reason: "libcuda.so.1 is not there".to_owned(),
        };
        let capabilities = GpuCapabilities {
            nccl: Ok(()),
            gpus: Err(no_driver),
        };
        let [nccl, no_gpu, gpu, two, cuda, cuda_on_two, check] =
            steps(&capabilities).try_into().ok().unwrap();
        assert_eq!(check.command_line(), "cargo xtask gpu-check");
        let lines = [
            (
                &nccl,
                "cargo test --release --workspace --test nccl -- --ignored --test-threads=1 --skip no_gpu::",
            ),
            (
                &no_gpu,
                "cargo test --release --workspace --test nccl -- --ignored --test-threads=1 no_gpu::",
            ),
        ];
        for (step, line) in lines {
            assert_eq!(step.command_line(), line);
            assert!(matches!(step.program, Program::Tests));
        }
        assert_eq!(
            cuda.command_line(),
            "cargo test --release --workspace --features cuda --target-dir target/cuda --test cuda -- \
             --ignored --test-threads=1 --skip two_gpus::"
        );
        for step in [gpu, two, cuda, cuda_on_two, check] {
            // No installer has a GPU: in CI too this is a skip.
            let done = step.run(&mut TestCounts::default(), Path::new("no-skips"));
            assert!(
                matches!(done, Ok(Done::Skipped { why, package: None }) if why.starts_with("no driver: libcuda.so.1"))
            );
        }
    }

    #[test]
    fn nccl_comes_as_a_package_and_a_gpu_does_not() {
        let capabilities = GpuCapabilities {
            nccl: Err(LibraryError::NoNccl {
                vendor: Vendor::Nvidia,
                tried: Vec::new(),
            }),
            gpus: Err(LibraryError::NoGpu {
                vendor: Vendor::Nvidia,
                visible: None,
            }),
        };
        let packages: Vec<_> = steps(&capabilities)
            .into_iter()
            .map(|step| match step.program {
                Program::Lacking(_, package) => package,
                _ => panic!("{} is not skipped", step.name),
            })
            .collect();
        let nccl = Some(Package::Pip("nvidia-nccl-cu12".to_owned()));
        let expected = [nccl.clone(), nccl, None, None, None, None, None];
        assert_eq!(packages, expected);
    }

    #[test]
    fn what_needs_two_gpus_is_skipped_where_there_is_one() {
        let gpu = |index| Gpu {
            index,
            name: "a GPU".to_string(),
            memory_bytes: 1 << 30,
            free_bytes: None,
            compute_capability: (9, 0),
            uuid: format!("GPU-{index}"),
        };
        let inventory = |count: usize| Inventory {
            driver: None,
            cuda: CudaVersion::from_code(13000),
            nccl: Ok(NcclVersion::from_code(22800)),
            gpus: (0..count).map(gpu).collect(),
        };
        let skipped = |count| {
            let capabilities = GpuCapabilities {
                nccl: Ok(()),
                gpus: Ok(inventory(count)),
            };
            let lacking = steps(&capabilities)
                .into_iter()
                .filter_map(|step| match step.program {
                    Program::Lacking(why, _) => Some((step.name, why)),
                    _ => None,
                });
            lacking.collect::<Vec<_>>()
        };
        let no_gpu = (
            "tests with NCCL and no GPU",
            "this machine has a GPU".to_string(),
        );
        let two = ["tests with two GPUs", "tests of tensors on two GPUs"]
            .map(|name| (name, "this machine has one GPU".to_string()));
        let expected = [no_gpu.clone(), two[0].clone(), two[1].clone()];
        assert_eq!(skipped(1), expected);
        assert_eq!(skipped(2), [no_gpu]);
    }
}
