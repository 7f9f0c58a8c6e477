//! `test` and `check`: the same steps here and in CI, one after the other.

mod gpu_tests;
mod package;
mod races;
mod run;
mod step;
mod test_counts;
mod test_steps;

use std::ffi::OsString;
use std::process::ExitCode;

use self::package::Package;
use self::run::run_all;
use self::step::{Program, Step};
use self::test_steps::{Capabilities, EXAMPLES, test_steps, torch_step};
use crate::cargo::target_dir;
use crate::torch;

/// What is fuzzed, one program for each target.
const FUZZ: &str = "fuzz/Cargo.toml";

/// `cargo xtask test`: all tests, and those of the example projects. Arguments narrow the run, so
/// with any the example projects are left out.
pub fn test(arguments: &[OsString]) -> miette::Result<ExitCode> {
    let steps = test_steps(arguments, Capabilities::here()?);
    Ok(run_all(&steps, true))
}

/// `cargo xtask test --with-torch`: the tests in which PyTorch takes part. Arguments narrow the run.
pub fn test_with_torch(arguments: &[OsString]) -> miette::Result<ExitCode> {
    let python = torch::python()?;
    let nextest = Capabilities::has_nextest();
    Ok(run_all(&[torch_step(arguments, python, nextest)], false))
}

/// `cargo xtask check`: what CI runs.
///
/// With `long`, also what takes an hour or more.
pub fn check(keep_going: bool, long: bool) -> miette::Result<ExitCode> {
    let mut steps = check_steps(Capabilities::here()?);
    if long {
        steps.extend(long_steps());
    }
    Ok(run_all(&steps, keep_going))
}

/// `cargo xtask races`: what `check` does about races.
pub fn races() -> ExitCode {
    run_all(&races::steps(), true)
}

/// What is quick to find comes first.
fn check_steps(capabilities: Capabilities) -> Vec<Step> {
    let mut steps = vec![Step::cargo("format", "fmt --all -- --check")];
    if capabilities.example {
        let line = format!("fmt --all --manifest-path {EXAMPLES} -- --check");
        steps.push(Step::cargo("format of the example projects", &line));
    }
    steps.push(Step::new("rules", Program::Tidy, ""));
    steps.push(Step::new(
        "shell script",
        Program::Other("bash"),
        "-n .ci/run",
    ));
    steps.extend(programs_that_may_be_missing());
    // With all features: without them, the step that builds the binary refuses warnings. No LLVM is needed for a mere type
    // check if the bundler takes it for docs.rs.
    let all = "--release --workspace --features cuda,metal,parquet,rocm,vulkan,webgpu";
    steps.extend([
        Step::cargo(
            "lints",
            &format!("clippy {all} --all-targets -- -D warnings"),
        )
        .with_env("DOCS_RS", "1"),
        Step::cargo("documents", &format!("doc {all} --no-deps"))
            .with_env("DOCS_RS", "1")
            .with_env("RUSTDOCFLAGS", "-D warnings"),
    ]);
    steps.push(fuzz_targets());
    steps.extend(races::steps());
    steps.extend([
        // `cargo test --test` builds no binary of another package, and the next step starts it.
        Step::new(
            "binary",
            Program::CargoWithoutWarnings,
            "build --release --workspace",
        ),
        // Whole trainings on real MNIST: minutes, so not part of `test`.
        Step::tests(
            "long tests",
            "test --release --workspace --test whole_mnist -- --ignored --test-threads=1 --skip=long_",
        ),
    ]);
    // 60,000 passes of the small net, which `test` does without.
    steps.push(Step::tests(
        "a training on synthetic digits",
        "test --release --workspace --test training -- --ignored the_synthetic_digits",
    ));
    // A crate without Burn.
    steps.push(Step::tests(
        "50 faults of 1,024 simulated ranks",
        "test --release --package everburn-simulate --test simulate -- --ignored --skip=long_",
    ));
    // One crate without Burn: the feature rebuilds nothing else.
    steps.push(Step::tests(
        "test tables in Parquet files",
        "test --release --package everburn-datasets --features parquet --lib table",
    ));
    steps.extend(test_steps(&[], capabilities));
    steps.extend(gpu_tests::software_steps(false));
    steps
}

fn programs_that_may_be_missing() -> [Step; 4] {
    let deny = |needs| Program::IfInstalled {
        program: "cargo",
        probe: &["deny", "--version"],
        package: Package::Cargo("cargo-deny".to_owned()),
        needs,
    };
    let database: &[_] = &["deny", "fetch", "db"];
    // A repository of its own, which no installer has.
    let database = Some((database, "the database of RustSec cannot be fetched"));
    let typos = Program::IfInstalled {
        program: "typos",
        probe: &["--version"],
        // As a wheel, which is quicker than compiling it.
        package: Package::Pip("typos".to_owned()),
        needs: None,
    };
    let mdbook = Program::IfInstalled {
        program: "mdbook",
        probe: &["--version"],
        package: Package::Cargo("mdbook".to_owned()),
        needs: None,
    };
    [
        Step::new(
            "dependencies",
            deny(None),
            "deny check bans licenses sources",
        ),
        Step::new("advisories", deny(database), "deny check advisories"),
        Step::new("spelling", typos, ""),
        Step::new("book", mdbook, "build"),
    ]
}

/// What is too long for every change: for a night, or before a release.
fn long_steps() -> Vec<Step> {
    let mut steps = vec![
        // It differs from `cuda` below CubeCL only: no code of Everburn is behind it.
        Step::cargo(
            "types with cuda-cpp",
            "check --release --workspace --features cuda-cpp",
        )
        .with_env("DOCS_RS", "1"),
        Step::tests(
            "other seeds of a simulation",
            "test --release --package everburn-simulate --test simulate -- --ignored long_",
        ),
        Step::tests(
            "longer tests",
            "test --release --workspace --test whole_mnist --test leftovers -- --ignored --test-threads=1 long_",
        ),
        Step::tests(
            "all conversions to half precision",
            "test --release --workspace --lib -- --ignored every_f32_narrows_as_by_half",
        ),
        Step::cargo(
            "the same bits on any number of ranks",
            "xtask verify mnist-bn",
        ),
        // What only a build without features has.
        Step::cargo(
            "lints with the default features",
            "clippy --release --workspace --all-targets -- -D warnings",
        ),
        Step::cargo("soak", "xtask soak --runs 100"),
        Step::cargo("release", "xtask release --try"),
    ];
    steps.extend(gpu_tests::software_steps(true));
    steps
}

/// The programs of `fuzz/`, which is a workspace of its own, type-checked as `cargo xtask fuzz` builds them.
/// Into a folder of its own, since the flag would build all else anew.
fn fuzz_targets() -> Step {
    let line = format!("check --release --locked --manifest-path {FUZZ}");
    let mut step =
        Step::cargo("fuzz targets compile", &line).with_env("RUSTFLAGS", "--cfg fuzzing");
    let mut target = OsString::from("--target-dir=");
    target.push(target_dir().join("fuzz-check"));
    step.arguments.push(target);
    step
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::process::Command;

    use super::*;
    use crate::cargo::root;

    /// Else the examples would build Burn once more, from other versions.
    #[test]
    fn the_examples_are_locked_to_the_workspaces_versions() {
        let packages = |lock: &str| -> Vec<String> {
            let text = std::fs::read_to_string(root().join(lock)).unwrap();
            let blocks = text.split("[[package]]").skip(1);
            let line = |block: &str, key: &str| {
                let line = block.lines().find(|line| line.starts_with(key));
                line.unwrap_or_default().to_owned()
            };
            blocks
                .map(|block| format!("{} {}", line(block, "name"), line(block, "version")))
                .collect()
        };
        let workspace = packages("Cargo.lock");
        let mut shared = 0;
        for package in packages("examples/Cargo.lock") {
            let name = package.split_once(" version").map_or("", |(name, _)| name);
            // What only examples use may have any version.
            let known = workspace.iter().any(|other| other.starts_with(name));
            shared += usize::from(known);
            assert!(
                !known || workspace.contains(&package),
                "{package} is not the workspace's: copy Cargo.lock there and run cargo build"
            );
        }
        assert!(shared > 100, "{shared} packages in common");
    }

    /// A feature more or less of one crate under Burn, and Burn is built once more: for the binary after the tests, and for
    /// the examples.
    #[test]
    fn the_binary_the_tests_and_the_examples_are_built_from_one_burn() {
        let built = |what: &[&str]| -> BTreeSet<String> {
            let output = Command::new("cargo")
                .args(["tree", "--locked", "--prefix=none", "--format={p} [{f}]"])
                .args(what)
                .current_dir(root())
                .output()
                .unwrap();
            assert!(output.status.success(), "{output:?}");
            let text = String::from_utf8(output.stdout).unwrap();
            let lines = text.lines().map(|line| line.trim_end_matches(" (*)"));
            // Ours are built by workspace, and macros run at build time.
            let is_shared = |line: &&str| !line.contains("(/") && !line.contains("(proc-macro)");
            lines.filter(is_shared).map(str::to_owned).collect()
        };
        let tests = built(&["--workspace", "--edges=normal,build,dev"]);
        let binary = built(&["--package=everburn", "--edges=normal,build"]);
        assert!(binary.iter().any(|line| line.starts_with("burn-flex ")));
        let examples = format!("--manifest-path={EXAMPLES}");
        let examples = built(&[&examples, "--workspace", "--edges=normal,build,dev"]);
        // Of names alone: what an example uses beside may be of any features.
        let name = |line: &str| line.split(" [").next().unwrap_or_default().to_owned();
        let names: BTreeSet<String> = tests.iter().map(|line| name(line)).collect();
        for line in binary.iter().chain(&examples) {
            let known = names.contains(&name(line));
            assert!(
                !known || tests.contains(line),
                "{line}: the tests are built with other features of it"
            );
        }
    }

    #[test]
    fn long_steps_are_commands_that_there_are() {
        for step in long_steps() {
            let line = step.command_line();
            if let Some(rest) = line.strip_prefix("cargo xtask ") {
                let name = rest.split(' ').next().unwrap().to_owned();
                assert!(crate::command_names().contains(&name), "{line}");
            }
        }
    }
}
