//! The steps of `test`.

use std::ffi::OsString;

use super::gpu_tests;
use super::package::Package;
use super::run::is_ci;
use super::step::{Program, Step, answers};
use crate::cargo::root;
use crate::torch;

/// Projects outside the workspace that use Everburn as anyone else would.
pub(super) const EXAMPLES: &str = "examples/Cargo.toml";

/// Where no Python with PyTorch is wanted.
const NO_PYTHON: Program = Program::NotAsked(
    "no Python with PyTorch is named: `cargo xtask test --with-torch` makes one, EVERBURN_PYTHON names one",
);

/// The capabilities of this machine that change how tests run.
pub(super) struct Capabilities {
    /// The project outside the workspace exists.
    pub(super) example: bool,
    pub(super) nextest: bool,
    /// The Python whose PyTorch is used, or why there is none.
    python: Result<OsString, Program>,
}

impl Capabilities {
    pub(super) fn here() -> miette::Result<Self> {
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

    pub(super) fn has_nextest() -> bool {
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

pub(super) fn test_steps(arguments: &[OsString], capabilities: Capabilities) -> Vec<Step> {
    let mut steps = workspace_tests(arguments, capabilities.nextest);
    if !arguments.is_empty() {
        return steps;
    }
    if capabilities.example {
        // A lock that has to change is for a person to look at: it is the workspace's.
        let line = format!("test --release --locked --workspace --manifest-path {EXAMPLES}");
        let step = Step::tests("test the example projects", &line);
        // It builds all but Burn once more.
        steps.push(step.within_minutes(65));
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
pub(super) fn torch_step(arguments: &[OsString], python: OsString, nextest: bool) -> Step {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn capabilities(python: Option<&str>) -> Capabilities {
        Capabilities {
            example: true,
            nextest: false,
            python: python.map(OsString::from).ok_or(NO_PYTHON),
        }
    }

    #[test]
    fn tests_with_pytorch_are_skipped_by_name_or_run_and_never_pass_unseen() {
        let skipped = test_steps(&[], capabilities(None)).pop().unwrap();
        assert!(matches!(
            skipped.program,
            Program::NotAsked(why) if why.contains("--with-torch")
        ));
        // What the step shows is the command that was not run.
        assert!(skipped.command_line().starts_with("cargo test"));
        let run = test_steps(&[], capabilities(Some("/p/python")))
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
