//! One step of `test` and `check`, and running them one after the other.

use std::borrow::Cow;
use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use super::test_counts::{FLAKY_ALLOWED, TestCounts};
use crate::cargo::{cargo, data_dir_beside, root, target_dir};
use crate::tidy;

/// Names the file into which tests write what they skip, a line each.
const SKIPS: &str = "EVERBURN_TEST_SKIPS";

/// Tells nextest how many places there are for the tests that run at once.
const PLACES: &str = "NEXTEST_TEST_THREADS";

/// Most tests wait most of their time. `.config/nextest.toml` says how many of these places one takes that does not.
const PLACES_PER_CORE: usize = 4;

/// One thing to run.
pub(super) struct Step {
    pub(super) name: &'static str,
    pub(super) env: Vec<(&'static str, OsString)>,
    pub(super) arguments: Vec<OsString>,
    pub(super) program: Program,
    /// Whether it begins only within [`EARLY`]: it builds Burn once more.
    pub(super) early: bool,
}

/// Steps before one that builds Burn once more may take so long: who runs them all may have an hour and a half.
const EARLY: Duration = Duration::from_secs(50 * 60);

/// What a step runs.
pub(super) enum Program {
    Cargo,
    /// `cargo test`, whose results are counted.
    Tests,
    /// `cargo nextest run`, whose results are counted.
    Nextest,
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

/// How a step has ended that has not failed.
pub(super) enum Done {
    Passed,
    Skipped(Cow<'static, str>),
}

impl Step {
    /// `program` with the words of `line`.
    pub(super) fn new(name: &'static str, program: Program, line: &str) -> Self {
        Self {
            name,
            env: Vec::new(),
            arguments: line.split_whitespace().map(OsString::from).collect(),
            program,
            early: false,
        }
    }

    pub(super) fn cargo(name: &'static str, line: &str) -> Self {
        Self::new(name, Program::Cargo, line)
    }

    /// `cargo test`.
    pub(super) fn tests(name: &'static str, line: &str) -> Self {
        Self::new(name, Program::Tests, line)
    }

    pub(super) fn with_env(mut self, name: &'static str, value: impl Into<OsString>) -> Self {
        self.env.push((name, value.into()));
        self
    }

    /// The command line as one would type it in the workspace's root.
    pub(super) fn command_line(&self) -> String {
        let program = match self.program {
            Program::Other(program) | Program::IfInstalled { program, .. } => program,
            Program::Tidy => "cargo xtask tidy",
            _ => "cargo",
        };
        let variables = self
            .env
            .iter()
            .map(|(name, value)| (name, value.to_string_lossy()))
            .map(|(name, value)| match value.contains(' ') {
                true => format!("{name}=\"{value}\""),
                false => format!("{name}={value}"),
            });
        let arguments = self.arguments.iter().map(|word| {
            let word = word.to_string_lossy();
            match word.contains(['|', '(']) {
                true => format!("'{word}'"),
                false => word.into_owned(),
            }
        });
        let words: Vec<_> = variables
            .chain([program.to_owned()])
            .chain(arguments)
            .collect();
        words.join(" ")
    }

    /// Runs it; what tests came to is added to `counts`.
    pub(super) fn run(&self, counts: &mut TestCounts) -> Result<Done, String> {
        let mut command = match &self.program {
            Program::Tidy => return tidy::report().map(|()| Done::Passed),
            Program::NotAsked(how) => return Ok(Done::Skipped(Cow::Borrowed(how))),
            Program::Lacking(what) => return Ok(Done::Skipped(Cow::Owned(what.clone()))),
            Program::Cargo | Program::Tests | Program::Nextest => cargo(),
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
            .env(SKIPS, skips())
            .current_dir(root());
        if let Some(folder) = data_dir_beside() {
            command.env("EVERBURN_DATA_DIR", folder);
        }
        let status = match self.program {
            Program::Tests => counted(&mut command, counts),
            Program::Nextest => reported(&mut command, counts),
            _ => command.status(),
        };
        match status {
            Ok(status) if status.success() => Ok(Done::Passed),
            Ok(status) => Err(status.to_string()),
            Err(error) => Err(format!("cannot be run: {error}")),
        }
    }
}

/// Runs `cargo test`, shows what it prints, and counts.
fn counted(
    command: &mut Command,
    counts: &mut TestCounts,
) -> std::io::Result<std::process::ExitStatus> {
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    if let Some(output) = child.stdout.take() {
        for line in BufReader::new(output).split(b'\n') {
            let line = line?;
            let line = String::from_utf8_lossy(&line);
            println!("{line}");
            counts.take_line(&line);
        }
    }
    child.wait()
}

/// Runs `cargo nextest run`, and counts what it reports.
fn reported(
    command: &mut Command,
    counts: &mut TestCounts,
) -> std::io::Result<std::process::ExitStatus> {
    // Nextest's own folder is in the workspace, wherever Cargo builds into.
    let report = root().join("target/nextest/default/junit.xml");
    // One of an earlier run must not be taken for this one's.
    match fs::remove_file(&report) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    if std::env::var_os(PLACES).is_none() {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        command.env(PLACES, (PLACES_PER_CORE * cores).to_string());
    }
    let status = command.status()?;
    match fs::read_to_string(&report) {
        Ok(report) => counts.add(TestCounts::of_junit(&report)),
        // Nothing has run where it did not compile.
        Err(_) if !status.success() => {}
        Err(error) => return Err(error),
    }
    Ok(status)
}

fn skips() -> PathBuf {
    target_dir().join("skipped-tests")
}

/// Whether a program can be started, tried with the arguments of `probe`.
pub(super) fn answers(program: &str, probe: &[&str]) -> bool {
    let mut command = Command::new(program);
    command
        .args(probe)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Runs all steps, and says at the end what was skipped and what failed. The last line counts the tests.
pub(super) fn run_all(steps: &[Step], keep_going: bool) -> ExitCode {
    let start = Instant::now();
    let mut failed = Vec::new();
    let mut skipped = 0;
    let mut counts = TestCounts::default();
    // Of an earlier run.
    let _ = fs::remove_file(skips());
    for (number, step) in steps.iter().enumerate() {
        println!(
            "\n[{}/{}] {}: {}",
            number + 1,
            steps.len(),
            step.name,
            step.command_line()
        );
        let step_start = Instant::now();
        let result = match step.early && start.elapsed() > EARLY {
            true => Ok(Done::Skipped(Cow::Owned(format!(
                "the steps before it took {} minutes, and it takes half an hour more: run it by itself",
                start.elapsed().as_secs() / 60
            )))),
            false => step.run(&mut counts),
        };
        let seconds = step_start.elapsed().as_secs_f64();
        match result {
            Ok(Done::Passed) => println!("      {}: passed in {seconds:.1} s", step.name),
            Ok(Done::Skipped(why)) => {
                println!("      {}: SKIPPED: {why}", step.name);
                counts.skipped.push(format!("{}: {why}", step.name));
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
    counts.take_skips(&skips());
    if is_ci() && counts.flaky.len() > FLAKY_ALLOWED {
        failed.push("flaky tests");
    }
    let seconds = start.elapsed().as_secs_f64();
    let verdict = match failed.is_empty() {
        true => verdict(steps.len(), skipped),
        false => format!("FAILED: {},", failed.join(", ")),
    };
    println!("\n{verdict} in {seconds:.0} s\n{}", counts.summary());
    match failed.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// Whether this is a run of continuous integration, in which a flaky test is a failure.
pub(super) fn is_ci() -> bool {
    std::env::var_os("CI").is_some_and(|value| value == "true")
}

/// Where none has failed. A step that was skipped has not passed.
pub(super) fn verdict(steps: usize, skipped: usize) -> String {
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

    #[test]
    fn a_failing_step_stops_the_rest_unless_told_otherwise() {
        let folder = tempfile::tempdir().unwrap();
        let mark = folder.path().join("mark");
        let step = |program, argument: &Path| Step {
            name: "sample",
            env: Vec::new(),
            arguments: vec![argument.into()],
            program: Program::Other(program),
            early: false,
        };
        let steps = [step("false", Path::new("")), step("touch", &mark)];
        assert_eq!(run_all(&steps, false), ExitCode::FAILURE);
        assert!(!mark.exists());
        assert_eq!(run_all(&steps, true), ExitCode::FAILURE);
        assert!(mark.exists());
    }

    #[test]
    fn what_was_skipped_has_not_passed() {
        assert_eq!(verdict(3, 1), "2 of 3 steps passed, 1 SKIPPED");
        assert_eq!(verdict(3, 0), "all 3 steps passed");
    }

    #[test]
    fn what_a_test_program_prints_is_shown_and_counted() {
        let mut counts = TestCounts::default();
        let mut program = Command::new("printf");
        program.arg("test a ... FAILED\ntest result: FAILED. 2 passed; 1 failed\n");
        assert!(counted(&mut program, &mut counts).unwrap().success());
        assert_eq!((counts.passed, counts.failed), (2, vec!["a".to_owned()]));
    }
}
