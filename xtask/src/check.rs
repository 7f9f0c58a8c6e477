//! `test` and `check`: the same steps here and in CI, one after the other.

mod gpu_tests;
mod package;
mod races;
mod run;
mod step;
mod test_counts;

use std::ffi::OsString;
use std::process::ExitCode;

use self::package::Package;
use self::run::{is_ci, run_all};
use self::step::{Program, Step, answers};
use crate::cargo::{root, target_dir};
use crate::torch;

/// Projects outside the workspace that use Everburn as anyone else would.
const EXAMPLES: &str = "examples/Cargo.toml";

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

/// Where no Python with PyTorch is wanted.
const NO_PYTHON: Program = Program::NotAsked(
    "no Python with PyTorch is named: `cargo xtask test --with-torch` makes one, EVERBURN_PYTHON names one",
);

/// The capabilities of this machine that change how tests run.
struct Capabilities {
    /// The project outside the workspace exists.
    example: bool,
    nextest: bool,
    /// The Python whose PyTorch is used, or why there is none.
    python: Result<OsString, Program>,
}

impl Capabilities {
    fn here() -> miette::Result<Self> {
        Ok(Self {
            example: root().join(EXAMPLES).exists(),
            nextest: Self::has_nextest(),
            python: Self::python(is_ci())?,
        })
    }

    /// CI installs a Python with PyTorch if none is named. Where that fails, the end of the run asks whether it had to.
    fn python(is_ci: bool) -> miette::Result<Result<OsString, Program>> {
        Ok(match (torch::named_python(), is_ci) {
            (Some(_), true) => Ok(torch::python()?),
            (Some(python), false) => Ok(python),
            (None, true) => torch::python().map_err(|error| {
                let torch = Package::Pip("torch".to_owned());
                Program::Lacking(format!("no Python with PyTorch: {error}"), Some(torch))
            }),
            (None, false) => Err(NO_PYTHON),
        })
    }

    fn has_nextest() -> bool {
        answers("cargo", &["nextest", "--version"])
    }
}

/// All tests of the workspace, each in a process of its own where there is nextest.
fn workspace_tests(arguments: &[OsString], nextest: bool) -> Vec<Step> {
    let mut steps = match nextest {
        true => vec![
            Step::new(
                "test",
                Program::Nextest,
                "nextest run --release --workspace",
            ),
            // nextest runs no examples in documents.
            Step::tests(
                "test examples in documents",
                "test --release --workspace --doc",
            ),
        ],
        false => vec![Step::tests(
            "test",
            "test --release --workspace --no-fail-fast",
        )],
    };
    for step in &mut steps {
        step.arguments.extend_from_slice(arguments);
    }
    steps
}

fn test_steps(arguments: &[OsString], capabilities: Capabilities) -> Vec<Step> {
    let mut steps = workspace_tests(arguments, capabilities.nextest);
    if !arguments.is_empty() {
        return steps;
    }
    if capabilities.example {
        // A lock that has to change is for a person to look at: it is the workspace's.
        let line = format!("test --release --locked --workspace --manifest-path {EXAMPLES}");
        steps.push(Step::tests("test the example projects", &line));
    }
    steps.extend(gpu_tests::steps(&gpu_tests::GpuCapabilities::here()));
    steps.push(match capabilities.python {
        Ok(python) => torch_step(&[], python, capabilities.nextest),
        Err(program) => Step {
            program,
            env: Vec::new(),
            ..torch_step(&[], OsString::new(), capabilities.nextest)
        },
    });
    steps
}

/// The tests that `python`'s PyTorch takes part in. Each is ignored otherwise, and fails without a
/// Python.
fn torch_step(arguments: &[OsString], python: OsString, nextest: bool) -> Step {
    // The last two programs have tests of both kinds, and none that is ignored for another reason.
    let name = "tests with PyTorch";
    let mut step = match nextest {
        true => {
            let line = "nextest run --release --workspace --run-ignored=only";
            let mut step = Step::new(name, Program::Nextest, line);
            let filter = "--filterset=binary(/^torch/) | binary(parity) | binary(launchers)";
            step.arguments.push(filter.into());
            step
        }
        false => Step::tests(
            name,
            "test --release --workspace --test torch* --test parity --test launchers",
        ),
    }
    .with_env(torch::PYTHON, python);
    let (options, filters) = match arguments.iter().position(|word| word == "--") {
        Some(at) => (&arguments[..at], &arguments[at + 1..]),
        None => (arguments, &[][..]),
    };
    step.arguments.extend_from_slice(options);
    if !nextest {
        step.arguments
            .extend(["--", "--ignored"].map(OsString::from));
    }
    step.arguments.extend_from_slice(filters);
    step
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
    let lints = "clippy --release --workspace --all-targets";
    let gpus = "--features cuda,metal,parquet,rocm,vulkan,webgpu";
    steps.extend([
        Step::cargo("lints", &format!("{lints} -- -D warnings")),
        // No LLVM is needed for a mere type check if the bundler takes it for docs.rs.
        Step::cargo(
            "lints with all features",
            &format!("{lints} {gpus} -- -D warnings"),
        )
        .with_env("DOCS_RS", "1"),
        Step::cargo("documents", "doc --release --workspace --no-deps")
            .with_env("RUSTDOCFLAGS", "-D warnings"),
    ]);
    steps.push(fuzz_targets());
    steps.extend(races::steps());
    steps.extend([
        // `cargo test --test` builds no binary of another package, and the next step starts it.
        Step::cargo("binary", "build --release --workspace"),
        // Whole trainings on real MNIST, 1, 2 and 4 ranks: minutes, so not part of `test`.
        Step::tests(
            "long tests",
            "test --release --workspace --test whole_mnist -- --ignored --test-threads=1",
        ),
    ]);
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
            "all conversions to half precision",
            "test --release --workspace --lib -- --ignored every_f32_narrows_as_by_half",
        ),
        Step::cargo(
            "the same bits on any number of ranks",
            "xtask verify mnist-bn",
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

    use super::*;

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

    fn capabilities(nextest: bool, python: Option<&str>) -> Capabilities {
        Capabilities {
            example: true,
            nextest,
            python: python.map(OsString::from).ok_or(NO_PYTHON),
        }
    }

    #[test]
    fn check_ends_with_exactly_the_tests_and_those_of_software_gpus() {
        let lines = |steps: Vec<Step>| steps.iter().map(Step::command_line).collect::<Vec<_>>();
        let check = lines(check_steps(capabilities(true, None)));
        let mut last = lines(test_steps(&[], capabilities(true, None)));
        last.extend(lines(gpu_tests::software_steps(false)));
        assert!(check.ends_with(&last), "{check:?}");
        assert!(check.contains(
            &"DOCS_RS=1 cargo clippy --release --workspace --all-targets --features cuda,metal,parquet,rocm,vulkan,webgpu -- -D warnings"
                .into()
        ));
        assert!(check.contains(
            &"RUSTDOCFLAGS=\"-D warnings\" cargo doc --release --workspace --no-deps".into()
        ));
        assert!(check.iter().any(|line| {
            line.starts_with("RUSTFLAGS=\"--cfg fuzzing\" cargo check") && line.contains(FUZZ)
        }));
        let at = |wanted: &str| check.iter().position(|line| line.contains(wanted));
        assert!(at("cargo build --release --workspace") < at("--test whole_mnist"));
        assert!(root().join(".ci/run").exists());
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

    #[test]
    fn all_tests_run_with_nextest_and_without() {
        let lines = |nextest| -> Vec<String> {
            let steps = workspace_tests(&["sampler".into()], nextest);
            steps.iter().map(Step::command_line).collect()
        };
        assert_eq!(
            lines(true),
            [
                "cargo nextest run --release --workspace sampler",
                "cargo test --release --workspace --doc sampler"
            ]
        );
        assert_eq!(
            lines(false),
            ["cargo test --release --workspace --no-fail-fast sampler"]
        );
        assert!(root().join(".config/nextest.toml").exists());
    }

    #[test]
    fn arguments_narrow_the_tests() {
        let arguments = ["--".into(), "sampler".into()];
        let steps = test_steps(&arguments, capabilities(false, Some("python")));
        assert_eq!(steps.len(), 1);
    }

    #[test]
    fn tests_with_pytorch_are_skipped_by_name_or_run_and_never_pass_unseen() {
        let skipped = test_steps(&[], capabilities(false, None)).pop().unwrap();
        assert!(matches!(
            skipped.program,
            Program::NotAsked(why) if why.contains("--with-torch")
        ));
        // What the step shows is the command that was not run.
        assert!(skipped.command_line().starts_with("cargo test"));
        let run = test_steps(&[], capabilities(false, Some("/p/python")))
            .pop()
            .unwrap();
        assert_eq!(
            run.command_line(),
            "EVERBURN_PYTHON=/p/python cargo test --release --workspace --test torch* --test parity --test launchers -- --ignored"
        );
        let narrowed = torch_step(&["--".into(), "file::".into()], "p".into(), false);
        assert!(
            narrowed
                .command_line()
                .ends_with("--test launchers -- --ignored file::")
        );
        let narrowed = torch_step(&["file::".into()], "p".into(), true).command_line();
        assert!(
            narrowed.ends_with("binary(parity) | binary(launchers)' file::"),
            "{narrowed}"
        );
    }
}
