//! Running steps one after the other, and what their end says.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use super::package::Package;
use super::step::{Done, Step};
use super::test_counts::{FLAKY_ALLOWED, Skip, TestCounts};
use crate::cargo::target_dir;

fn skips() -> PathBuf {
    target_dir().join("skipped-tests")
}

/// Runs all steps, and says at the end what was skipped and what failed. The last line counts the tests.
pub(super) fn run_all(steps: &[Step], keep_going: bool) -> ExitCode {
    run_noting(steps, keep_going, &skips())
}

/// [`run_all`], with the file in which tests note what they skip.
fn run_noting(steps: &[Step], keep_going: bool, skips: &Path) -> ExitCode {
    let start = Instant::now();
    let mut failed = Vec::new();
    let mut skipped = 0;
    let mut counts = TestCounts::default();
    // Of an earlier run.
    let _ = fs::remove_file(skips);
    for (number, step) in steps.iter().enumerate() {
        println!(
            "\n[{}/{}] {}: {}",
            number + 1,
            steps.len(),
            step.name,
            step.command_line()
        );
        let step_start = Instant::now();
        let result = match step.begins_within {
            Some(most) if start.elapsed() > most => Ok(Done::skipped(format!(
                "the steps before it took {} minutes, more than {}: run it by itself",
                start.elapsed().as_secs() / 60,
                most.as_secs() / 60
            ))),
            _ => step.run(&mut counts, skips),
        };
        let seconds = step_start.elapsed().as_secs_f64();
        match result {
            Ok(Done::Passed) => println!("      {}: passed in {seconds:.1} s", step.name),
            Ok(Done::Skipped { why, package }) => {
                println!("      {}: SKIPPED: {why}", step.name);
                let what = format!("{}: {why}", step.name);
                counts.skipped.push(Skip { what, package });
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
    counts.take_skips(skips);
    if is_ci() {
        failed.extend(failures_of_ci(&counts, Package::is_offered));
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

/// What fails in CI alone, each printed with its reason: flaky tests, and skips for lack of a package that is `offered`.
fn failures_of_ci(
    counts: &TestCounts,
    offered: impl Fn(&Package) -> bool,
) -> impl Iterator<Item = &'static str> {
    let needless = counts.needless_skips(offered);
    for (package, skip) in &needless {
        println!("NOT INSTALLED, though it could have been ({package}): {skip}");
    }
    let flaky = counts.flaky.len() > FLAKY_ALLOWED;
    let skips = (!needless.is_empty()).then_some("skips that an installation avoids");
    flaky.then_some("flaky tests").into_iter().chain(skips)
}

/// Whether this is a run of continuous integration, in which a flaky test is a failure, and so is a skip for lack of what
/// could have been installed.
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
    use super::super::step::Program;
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
            begins_within: None,
        };
        let steps = [step("false", Path::new("")), step("touch", &mark)];
        // Not the file of the run that this test is a part of.
        let skips = folder.path().join("skips");
        assert_eq!(run_noting(&steps, false, &skips), ExitCode::FAILURE);
        assert!(!mark.exists());
        assert_eq!(run_noting(&steps, true, &skips), ExitCode::FAILURE);
        assert!(mark.exists());
    }

    #[test]
    fn ci_fails_for_skips_that_an_installation_avoids_and_for_no_others() {
        let skip = |what: &str, package| Skip {
            what: what.to_owned(),
            package,
        };
        let tmux = || Some(Package::Apt("tmux".to_owned()));
        let deny = || Some(Package::Cargo("cargo-deny".to_owned()));
        let counts = TestCounts {
            skipped: vec![
                skip("a GPU: there is none", None),
                skip("the dashboard: there is no tmux", tmux()),
                skip("licenses", deny()),
            ],
            ..TestCounts::default()
        };
        let needless = "skips that an installation avoids";
        let failures = |offered: fn(&Package) -> bool| -> Vec<_> {
            failures_of_ci(&counts, offered).collect()
        };
        // All mirrors are away.
        assert!(failures(|_| false).is_empty());
        assert_eq!(
            failures(|package| matches!(package, Package::Apt(_))),
            [needless]
        );
        let unavoidable = TestCounts {
            skipped: vec![skip("a GPU: there is none", None)],
            ..TestCounts::default()
        };
        assert_eq!(failures_of_ci(&unavoidable, |_| true).count(), 0);
        let flaky = TestCounts {
            flaky: vec!["a test".to_owned(); FLAKY_ALLOWED + 1],
            ..TestCounts::default()
        };
        let failed: Vec<_> = failures_of_ci(&flaky, |_| true).collect();
        assert_eq!(failed, ["flaky tests"]);
    }

    #[test]
    fn what_was_skipped_has_not_passed() {
        assert_eq!(verdict(3, 1), "2 of 3 steps passed, 1 SKIPPED");
        assert_eq!(verdict(3, 0), "all 3 steps passed");
    }
}
