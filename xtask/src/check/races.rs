//! Races in the memory that ranks share, looked for in two ways.
//!
//! Both build with flags of their own, and so into folders of their own: the first time takes a
//! minute or two, after that the runs take seconds. Miri would be a third, but it knows nothing of
//! memory shared by processes, and threads are what the two below look at.

use super::step::Step;
use crate::cargo::target_dir;

const PACKAGE: &str = "everburn-collectives";

/// Where ThreadSanitizer finds what it is to pass over, from the folder of [`PACKAGE`], in which
/// Cargo runs its tests.
const SUPPRESSIONS: &str = "suppressions=src/shared_memory/tests/thread_sanitizer.txt";

/// loom, and ThreadSanitizer where there is one.
pub(super) fn steps() -> Vec<Step> {
    let mut steps = vec![
        step("every interleaving, by loom", "loom", "models").with_env("RUSTFLAGS", "--cfg loom"),
    ];
    if cfg!(all(
        target_os = "linux",
        target_env = "gnu",
        any(target_arch = "x86_64", target_arch = "aarch64")
    )) {
        steps.push(thread_sanitizer());
    }
    steps
}

fn thread_sanitizer() -> Step {
    let mut step = step("ThreadSanitizer", "thread-sanitizer", "streams")
        // Sanitizers are not stable; this lets the pinned toolchain have them all the same.
        .with_env("RUSTC_BOOTSTRAP", "1")
        // The standard library comes without it; that this is known has to be said.
        .with_env(
            "RUSTFLAGS",
            "-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer",
        )
        .with_env("TSAN_OPTIONS", SUPPRESSIONS);
    // With a target named, the flags are not for build scripts and macros, which the compiler loads.
    let target = format!("--target={}-unknown-linux-gnu", std::env::consts::ARCH);
    step.arguments.insert(1, target.into());
    step
}

/// Runs one module of the tests of shared memory, built into a folder of its own.
fn step(name: &'static str, folder: &str, module: &str) -> Step {
    let line = format!("test --profile quick --lib --package {PACKAGE}");
    let mut step = Step::tests(name, &line);
    let mut target = std::ffi::OsString::from("--target-dir=");
    target.push(target_dir().join(folder));
    let tests = format!("shared_memory::tests::{module}::");
    step.arguments.extend([target, tests.into()]);
    step
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cargo::root;

    #[test]
    fn what_is_run_is_there() {
        let tests = root().join("crates/collectives/src/shared_memory/tests");
        for step in steps() {
            let line = step.command_line();
            let module = line.rsplit("::").nth(1).unwrap();
            assert!(tests.join(module).with_extension("rs").exists(), "{line}");
        }
        let (_, suppressions) = SUPPRESSIONS.split_once('=').unwrap();
        assert!(
            root()
                .join("crates/collectives")
                .join(suppressions)
                .exists()
        );
    }
}
