//! The tests of NCCL and of GPUs: run where there are any, else skipped with what is missing.

use everburn_nccl::{Inventory, Library, LibraryError};

use super::{Program, Step};

/// What this machine has for such tests.
pub(super) struct Found {
    nccl: Result<(), LibraryError>,
    gpus: Result<Inventory, LibraryError>,
}

impl Found {
    pub(super) fn here() -> Self {
        Self {
            nccl: Library::load().map(|_| ()),
            gpus: everburn_nccl::gpus(),
        }
    }
}

pub(super) fn steps(found: &Found) -> Vec<Step> {
    let lacking = |error: &LibraryError| Some(error.to_string());
    let without_nccl = found.nccl.as_ref().err().and_then(lacking);
    let without_gpu = found.gpus.as_ref().err().and_then(lacking);
    vec![
        step("tests with NCCL", "nccl", without_nccl.clone()),
        step("tests with GPUs", "gpu", without_gpu.or(without_nccl)),
    ]
}

/// The ignored tests of the targets of that name.
fn step(name: &'static str, target: &str, missing: Option<String>) -> Step {
    let line = [
        "test",
        "--release",
        "--workspace",
        "--test",
        target,
        "--",
        "--ignored",
        // One GPU is not shared by tests that count on its memory and its time.
        "--test-threads=1",
    ];
    let step = Step::cargo(name, &line);
    match missing {
        Some(missing) => Step {
            program: Program::Lacking(missing),
            ..step
        },
        None => step,
    }
}

#[cfg(test)]
mod tests {
    use super::super::Done;
    use super::*;

    #[test]
    fn what_is_missing_is_said_and_never_counted_as_passed() {
        let no_driver = LibraryError::NoDriver {
            reason: "libcuda.so.1 is not there".to_owned(),
        };
        let found = Found {
            nccl: Ok(()),
            gpus: Err(no_driver),
        };
        let [nccl, gpu] = steps(&found).try_into().ok().unwrap();
        assert_eq!(
            nccl.command_line(),
            "cargo test --release --workspace --test nccl -- --ignored --test-threads=1"
        );
        assert!(matches!(nccl.program, Program::Cargo));
        assert!(
            matches!(gpu.run(), Ok(Done::Skipped(why)) if why.starts_with("no driver: libcuda.so.1"))
        );
    }
}
