//! `test` and `check`: the same steps here and in CI, one after the other.

mod gpu_tests;
mod races;

use std::borrow::Cow;
use std::ffi::OsString;
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use crate::cargo::{cargo, data_dir_beside, root, target_dir};
use crate::{tidy, torch};

/// A project outside the workspace that uses Everburn as anyone else would.
const EXAMPLE: &str = "examples/reuse/Cargo.toml";

/// What is fuzzed, one program for each target.
const FUZZ: &str = "fuzz/Cargo.toml";

/// One thing to run.
struct Step {
    name: &'static str,
    env: Vec<(&'static str, OsString)>,
    arguments: Vec<OsString>,
    program: Program,
}

enum Program {
    Cargo,
    Other(&'static str),
    /// A cargo extension or a program that is not part of the toolchain: skipped where missing.
    IfInstalled {
        program: &'static str,
        probe: &'static [&'static str],
        advice: &'static str,
    },
    /// The repository's rules, in this process.
    Tidy,
    /// What nobody has asked for, and how to: never counted as passed.
    NotAsked(&'static str),
    /// What this machine lacks for it: never counted as passed.
    Lacking(String),
}

impl Step {
    fn cargo(name: &'static str, arguments: &[&str]) -> Self {
        let arguments = arguments.iter().map(OsString::from).collect();
        Self {
            name,
            env: Vec::new(),
            arguments,
            program: Program::Cargo,
        }
    }

    fn with_env(mut self, name: &'static str, value: impl Into<OsString>) -> Self {
        self.env.push((name, value.into()));
        self
    }

    /// The command line as one would type it in the workspace's root.
    fn command_line(&self) -> String {
        let program = match self.program {
            Program::Cargo | Program::NotAsked(_) | Program::Lacking(_) => "cargo",
            Program::Other(program) | Program::IfInstalled { program, .. } => program,
            Program::Tidy => "cargo xtask tidy",
        };
        let variables = self
            .env
            .iter()
            .map(|(name, value)| (name, value.to_string_lossy()))
            .map(|(name, value)| match value.contains(' ') {
                true => format!("{name}=\"{value}\""),
                false => format!("{name}={value}"),
            });
        let arguments = self
            .arguments
            .iter()
            .map(|word| word.to_string_lossy().into_owned());
        let words: Vec<_> = variables
            .chain([program.to_owned()])
            .chain(arguments)
            .collect();
        words.join(" ")
    }

    fn run(&self) -> Result<Done, String> {
        let mut command = match &self.program {
            Program::Tidy => return tidy::report().map(|()| Done::Passed),
            Program::NotAsked(how) => return Ok(Done::Skipped(Cow::Borrowed(how))),
            Program::Lacking(what) => return Ok(Done::Skipped(Cow::Owned(what.clone()))),
            Program::Cargo => cargo(),
            Program::Other(program) => Command::new(program),
            Program::IfInstalled {
                program,
                probe,
                advice,
            } => {
                if !answers(program, probe) {
                    return Ok(Done::Skipped(Cow::Borrowed(advice)));
                }
                Command::new(program)
            }
        };
        command
            .args(&self.arguments)
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .env("CARGO_TARGET_DIR", target_dir())
            .current_dir(root());
        if let Some(folder) = data_dir_beside() {
            command.env("EVERBURN_DATA_DIR", folder);
        }
        match command.status() {
            Ok(status) if status.success() => Ok(Done::Passed),
            Ok(status) => Err(status.to_string()),
            Err(error) => Err(format!("cannot be started: {error}")),
        }
    }
}

enum Done {
    Passed,
    Skipped(Cow<'static, str>),
}

fn answers(program: &str, probe: &[&str]) -> bool {
    let mut command = Command::new(program);
    command
        .args(probe)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// `cargo xtask test`: all tests, and those of the example project. Arguments narrow the run, so
/// with any the example project is left out.
pub fn test(arguments: &[OsString]) -> miette::Result<ExitCode> {
    let steps = test_steps(arguments, has_example(), torch::named_python());
    Ok(run_all(&steps, false))
}

/// `cargo xtask test --with-torch`: the tests in which PyTorch takes part. Arguments narrow the run.
pub fn test_with_torch(arguments: &[OsString]) -> miette::Result<ExitCode> {
    let python = torch::python()?;
    Ok(run_all(&[torch_step(arguments, python)], false))
}

/// `cargo xtask check`: what CI runs.
pub fn check(keep_going: bool) -> miette::Result<ExitCode> {
    let steps = check_steps(has_example(), torch::named_python());
    Ok(run_all(&steps, keep_going))
}

/// `cargo xtask races`: what `check` does about races.
pub fn races() -> ExitCode {
    run_all(&races::steps(), true)
}

fn has_example() -> bool {
    root().join(EXAMPLE).exists()
}

/// `python` is the one that the user has named for tests with PyTorch.
fn test_steps(arguments: &[OsString], example: bool, python: Option<OsString>) -> Vec<Step> {
    let mut workspace = Step::cargo("test", &["test", "--release", "--workspace"]);
    workspace.arguments.extend_from_slice(arguments);
    let mut steps = vec![workspace];
    if example && arguments.is_empty() {
        // A lock that has to change is for a person to look at: it is the workspace's.
        let line = ["test", "--release", "--locked", "--manifest-path", EXAMPLE];
        steps.push(Step::cargo("test the example project", &line));
    }
    if arguments.is_empty() {
        steps.extend(gpu_tests::steps(&gpu_tests::Found::here()));
        steps.push(match python {
            Some(python) => torch_step(&[], python),
            None => Step {
                program: Program::NotAsked(
                    "no Python with PyTorch is named: `cargo xtask test --with-torch` makes one, \
                     EVERBURN_PYTHON names one",
                ),
                env: Vec::new(),
                ..torch_step(&[], OsString::new())
            },
        });
    }
    steps
}

/// The tests that `python`'s PyTorch takes part in. Each is ignored otherwise, and fails without a
/// Python.
fn torch_step(arguments: &[OsString], python: OsString) -> Step {
    // The last two have tests of both kinds, and none that is ignored for another reason.
    let line = [
        "test",
        "--release",
        "--workspace",
        "--test",
        "torch*",
        "--test",
        "parity",
        "--test",
        "launchers",
    ];
    let mut step = Step::cargo("tests with PyTorch", &line).with_env(torch::PYTHON, python);
    let (options, filters) = match arguments.iter().position(|word| word == "--") {
        Some(at) => (&arguments[..at], &arguments[at + 1..]),
        None => (arguments, &[][..]),
    };
    step.arguments.extend_from_slice(options);
    step.arguments
        .extend(["--", "--ignored"].map(OsString::from));
    step.arguments.extend_from_slice(filters);
    step
}

/// What is quick to find comes first.
fn check_steps(example: bool, python: Option<OsString>) -> Vec<Step> {
    let lint = [
        "clippy",
        "--release",
        "--workspace",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ];
    let cuda = [
        "clippy",
        "--release",
        "--workspace",
        "--all-targets",
        "--features",
        "cuda",
        "--",
        "-D",
        "warnings",
    ];
    let cuda_cpp = [
        "check",
        "--release",
        "--workspace",
        "--features",
        "cuda-cpp",
    ];
    let deny = Program::IfInstalled {
        program: "cargo",
        probe: &["deny", "--version"],
        advice: "cargo-deny is not installed (`cargo install cargo-deny`)",
    };
    let advisories = Program::IfInstalled {
        program: "cargo",
        // The database is a repository of its own.
        probe: &["deny", "fetch", "db"],
        advice: "cargo-deny is not installed (`cargo install cargo-deny`), or the database of RustSec cannot \
                 be fetched",
    };
    let typos = Program::IfInstalled {
        program: "typos",
        probe: &["--version"],
        advice: "typos is not installed (`cargo install typos-cli`)",
    };
    let words = |line: &str| line.split(' ').map(OsString::from).collect();
    let other = |name, program, line: &str| {
        let arguments = if line.is_empty() {
            Vec::new()
        } else {
            words(line)
        };
        Step {
            name,
            env: Vec::new(),
            arguments,
            program,
        }
    };
    let mut steps = vec![Step::cargo("format", &["fmt", "--all", "--", "--check"])];
    if example {
        let line = ["fmt", "--manifest-path", EXAMPLE, "--", "--check"];
        steps.push(Step::cargo("format of the example project", &line));
    }
    steps.extend([
        other("rules", Program::Tidy, ""),
        other("shell script", Program::Other("bash"), "-n .ci/run"),
        other("dependencies", deny, "deny check bans licenses sources"),
        other("advisories", advisories, "deny check advisories"),
        other("spelling", typos, ""),
        Step::cargo("lints", &lint),
        // No LLVM is needed for a mere type check if the bundler takes it for docs.rs.
        Step::cargo("lints with cuda", &cuda).with_env("DOCS_RS", "1"),
        Step::cargo("types with cuda-cpp", &cuda_cpp).with_env("DOCS_RS", "1"),
        Step::cargo(
            "documents",
            &["doc", "--release", "--workspace", "--no-deps"],
        )
        .with_env("RUSTDOCFLAGS", "-D warnings"),
    ]);
    steps.push(fuzz_targets());
    steps.extend(races::steps());
    steps.extend([
        // `cargo test --test` builds no binary of another package, and the next step starts it.
        Step::cargo("binary", &["build", "--release", "--workspace"]),
        // Whole trainings on real MNIST, 1, 2 and 4 ranks: minutes, so not part of `test`.
        Step::cargo(
            "long tests",
            &[
                "test",
                "--release",
                "--workspace",
                "--test",
                "whole_mnist",
                "--",
                "--ignored",
                "--test-threads=1",
            ],
        ),
    ]);
    steps.extend(test_steps(&[], example, python));
    steps
}

/// The programs of `fuzz/`, which is a workspace of its own, type-checked as `cargo xtask fuzz` builds them.
/// Into a folder of its own, since the flag would build all else anew.
fn fuzz_targets() -> Step {
    let line = ["check", "--release", "--locked", "--manifest-path", FUZZ];
    let mut step =
        Step::cargo("fuzz targets compile", &line).with_env("RUSTFLAGS", "--cfg fuzzing");
    let mut target = OsString::from("--target-dir=");
    target.push(target_dir().join("fuzz-check"));
    step.arguments.push(target);
    step
}

fn run_all(steps: &[Step], keep_going: bool) -> ExitCode {
    let start = Instant::now();
    let mut failed = Vec::new();
    let mut skipped = 0;
    for (number, step) in steps.iter().enumerate() {
        println!(
            "\n[{}/{}] {}: {}",
            number + 1,
            steps.len(),
            step.name,
            step.command_line()
        );
        let step_start = Instant::now();
        let result = step.run();
        let seconds = step_start.elapsed().as_secs_f64();
        match result {
            Ok(Done::Passed) => println!("      {}: passed in {seconds:.1} s", step.name),
            Ok(Done::Skipped(why)) => {
                println!("      {}: SKIPPED: {why}", step.name);
                skipped += 1;
            }
            Err(why) => {
                println!("      {}: FAILED after {seconds:.1} s ({why})", step.name);
                failed.push(step.name);
                if !keep_going {
                    break;
                }
            }
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    if failed.is_empty() {
        println!("\n{} in {seconds:.0} s", verdict(steps.len(), skipped));
        ExitCode::SUCCESS
    } else {
        println!("\nfailed after {seconds:.0} s: {}", failed.join(", "));
        ExitCode::FAILURE
    }
}

/// Where none has failed. A step that was skipped has not passed.
fn verdict(steps: usize, skipped: usize) -> String {
    match skipped {
        0 => format!("all {steps} steps passed"),
        _ => format!(
            "{} of {steps} steps passed, {skipped} SKIPPED",
            steps - skipped
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Else the example would build Burn once more, from other versions.
    #[test]
    fn the_example_is_locked_to_the_workspaces_versions() {
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
        for package in packages("examples/reuse/Cargo.lock") {
            let own = package.starts_with("name = \"reuse\"");
            assert!(
                own || workspace.contains(&package),
                "{package} is not the workspace's: copy Cargo.lock there and run cargo build"
            );
        }
    }

    #[test]
    fn check_ends_with_exactly_the_tests() {
        let lines = |steps: Vec<Step>| steps.iter().map(Step::command_line).collect::<Vec<_>>();
        let check = lines(check_steps(true, None));
        assert!(
            check.ends_with(&lines(test_steps(&[], true, None))),
            "{check:?}"
        );
        assert!(check.contains(
            &"DOCS_RS=1 cargo clippy --release --workspace --all-targets --features cuda -- -D warnings"
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
    fn arguments_narrow_the_tests() {
        let steps = test_steps(
            &["--".into(), "sampler".into()],
            true,
            Some("python".into()),
        );
        assert_eq!(steps.len(), 1);
        assert_eq!(
            steps[0].command_line(),
            "cargo test --release --workspace -- sampler"
        );
    }

    #[test]
    fn tests_with_pytorch_are_skipped_by_name_or_run_and_never_pass_unseen() {
        let skipped = test_steps(&[], true, None).pop().unwrap();
        assert!(matches!(skipped.run(), Ok(Done::Skipped(why)) if why.contains("--with-torch")));
        assert_eq!(verdict(3, 1), "2 of 3 steps passed, 1 SKIPPED");
        assert_eq!(verdict(3, 0), "all 3 steps passed");
        let run = test_steps(&[], true, Some("/p/python".into()))
            .pop()
            .unwrap();
        assert_eq!(
            run.command_line(),
            "EVERBURN_PYTHON=/p/python cargo test --release --workspace --test torch* --test parity --test launchers -- --ignored"
        );
        let narrowed = torch_step(&["--".into(), "file::".into()], "p".into());
        assert!(
            narrowed
                .command_line()
                .ends_with("--test launchers -- --ignored file::")
        );
    }

    #[test]
    fn a_failing_step_stops_the_rest_unless_told_otherwise() {
        let folder = tempfile::tempdir().unwrap();
        let mark = folder.path().join("mark");
        let step = |program, argument: &Path| Step {
            name: "sample",
            env: Vec::new(),
            arguments: vec![argument.into()],
            program: Program::Other(program),
        };
        let steps = [step("false", Path::new("")), step("touch", &mark)];
        assert_eq!(run_all(&steps, false), ExitCode::FAILURE);
        assert!(!mark.exists());
        assert_eq!(run_all(&steps, true), ExitCode::FAILURE);
        assert!(mark.exists());
    }
}
