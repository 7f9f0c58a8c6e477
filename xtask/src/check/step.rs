//! One step of `test` and `check`.

use std::borrow::Cow;
use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::package::{Package, ends_well};
use super::test_counts::TestCounts;
use crate::cargo::{cargo, data_dir_beside, root, target_dir};
use crate::tidy;

/// Names the file into which tests write what they skip, a line each.
const SKIPS: &str = "EVERBURN_TEST_SKIPS";

/// Tells nextest how many places there are for the tests that run at once.
const PLACES: &str = "NEXTEST_TEST_THREADS";

/// Most tests wait most of their time. `.config/nextest.toml` says which do not, of which a core has one.
const PLACES_PER_CORE: usize = 3;

/// One thing to run.
pub(super) struct Step {
    pub(super) name: &'static str,
    pub(super) env: Vec<(&'static str, OsString)>,
    pub(super) arguments: Vec<OsString>,
    pub(super) program: Program,
    /// How long the steps before it may take: who runs them all may have an hour and a half.
    pub(super) begins_within: Option<Duration>,
}

/// A probe may fetch: the database of advisories is a repository.
const PROBE_PATIENCE: Duration = Duration::from_secs(5 * 60);

/// What a step runs.
pub(super) enum Program {
    Cargo,
    /// Cargo, which may not warn of anything in the workspace.
    CargoWithoutWarnings,
    /// `cargo test`, whose results are counted.
    Tests,
    /// `cargo nextest run`, whose results are counted.
    Nextest,
    Other(&'static str),
    /// A cargo extension or a program that is not part of the toolchain: skipped where missing.
    IfInstalled {
        program: &'static str,
        probe: &'static [&'static str],
        package: Package,
        /// What it needs besides and no installer has: arguments that fail without it, and what it is.
        needs: Option<(&'static [&'static str], &'static str)>,
    },
    /// The repository's rules, in this process.
    Tidy,
    /// What nobody has asked for, and how to: never counted as passed.
    NotAsked(&'static str),
    /// What this machine lacks for it, and where that could have come from: never counted as passed.
    Lacking(String, Option<Package>),
}

/// How a step has ended that has not failed.
pub(super) enum Done {
    Passed,
    Skipped {
        why: Cow<'static, str>,
        package: Option<Package>,
    },
}

impl Done {
    pub(super) fn skipped(why: impl Into<Cow<'static, str>>) -> Self {
        Self::Skipped {
            why: why.into(),
            package: None,
        }
    }
}

impl Step {
    pub(super) fn new(name: &'static str, program: Program, line: &str) -> Self {
        Self {
            name,
            env: Vec::new(),
            arguments: line.split_whitespace().map(OsString::from).collect(),
            program,
            begins_within: None,
        }
    }

    pub(super) fn cargo(name: &'static str, line: &str) -> Self {
        Self::new(name, Program::Cargo, line)
    }

    /// The same, but for where the steps before it have taken longer.
    pub(super) const fn within_minutes(mut self, minutes: u64) -> Self {
        self.begins_within = Some(Duration::from_secs(60 * minutes));
        self
    }

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

    /// Runs it; what tests came to is added to `counts`, what they skip is written into the file `skips`.
    pub(super) fn run(&self, counts: &mut TestCounts, skips: &Path) -> Result<Done, String> {
        let mut command = match &self.program {
            Program::Tidy => return tidy::report().map(|()| Done::Passed),
            Program::NotAsked(how) => return Ok(Done::skipped(*how)),
            Program::Lacking(what, package) => {
                return Ok(Done::Skipped {
                    why: Cow::Owned(what.clone()),
                    package: package.clone(),
                });
            }
            Program::Cargo | Program::CargoWithoutWarnings | Program::Tests | Program::Nextest => {
                cargo()
            }
            Program::Other(program) => Command::new(program),
            Program::IfInstalled {
                program,
                probe,
                package,
                needs,
            } => {
                if !answers(program, probe) {
                    return Ok(Done::Skipped {
                        why: Cow::Owned(format!("missing: {package} installs it")),
                        package: Some(package.clone()),
                    });
                }
                match needs {
                    Some((probe, what)) if !answers(program, probe) => {
                        return Ok(Done::skipped(*what));
                    }
                    _ => Command::new(program),
                }
            }
        };
        command
            .args(&self.arguments)
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .env("CARGO_TARGET_DIR", target_dir())
            .env(SKIPS, skips)
            .current_dir(root());
        if let Some(folder) = data_dir_beside() {
            command.env("EVERBURN_DATA_DIR", folder);
        }
        let status = match self.program {
            Program::Tests => counted(&mut command, counts),
            Program::Nextest => reported(&mut command, counts),
            Program::CargoWithoutWarnings => {
                let warned = warnings(&mut command).map_err(|error| error.to_string())?;
                return match warned {
                    (status, _) if !status.success() => Err(status.to_string()),
                    (_, 0) => Ok(Done::Passed),
                    (_, crates) => Err(format!("warnings in {crates} crates")),
                };
            }
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

/// Runs Cargo, shows what it prints, and counts the crates of the workspace that it warns of, built now or before.
fn warnings(command: &mut Command) -> std::io::Result<(std::process::ExitStatus, usize)> {
    let command = command.env("CARGO_TERM_COLOR", "never");
    let mut child = command.stderr(Stdio::piped()).spawn()?;
    let mut crates = 0;
    if let Some(output) = child.stderr.take() {
        for line in BufReader::new(output).lines() {
            let line = line?;
            eprintln!("{line}");
            crates += usize::from(line.starts_with("warning: `") && line.contains(" generated "));
        }
    }
    Ok((child.wait()?, crates))
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

/// Whether a program can be started, tried with the arguments of `probe`.
pub(super) fn answers(program: &str, probe: &[&str]) -> bool {
    ends_well(Command::new(program).args(probe), PROBE_PATIENCE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_counted_by_crate() {
        let of = |said: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", &format!("printf '{said}' >&2")]);
            warnings(&mut command).unwrap().1
        };
        let said =
            "warning: unused variable\\nwarning: `everburn-train` (lib) generated 2 warnings\\n";
        assert_eq!(of(said), 1);
        assert_eq!(of("   Compiling everburn v0.1.0\\n"), 0);
    }

    #[test]
    fn a_program_that_is_not_there_is_skipped_with_its_package() {
        let folder = tempfile::tempdir().unwrap();
        let done = |program, needs| {
            let program = Program::IfInstalled {
                program,
                probe: &[],
                package: Package::Cargo("a-package".to_owned()),
                needs,
            };
            let step = Step::new("sample", program, "");
            step.run(&mut TestCounts::default(), &folder.path().join("skips"))
        };
        let Ok(Done::Skipped { why, package }) = done("everburn-no-such-program", None) else {
            panic!("it was not skipped")
        };
        assert_eq!(why, "missing: `cargo install a-package` installs it");
        assert_eq!(package, Some(Package::Cargo("a-package".to_owned())));
        // It is there, and lacks something that no installer has.
        let needs = ["--no-such-argument"].as_slice();
        let Ok(Done::Skipped { why, package }) = done("env", Some((needs, "the database is away")))
        else {
            panic!("it was not skipped")
        };
        assert_eq!((why.as_ref(), package), ("the database is away", None));
        assert!(matches!(done("true", None), Ok(Done::Passed)));
    }
}
