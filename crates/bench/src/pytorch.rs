//! The peer: PyTorch trains the same models in `crates/bench/peers/pytorch_train.py`.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use everburn::launch::{ChildError, Children};
use serde_json::Value;

use crate::failure::Failure;
use crate::peers::script;
use crate::train::options::Case;

const SCRIPT: &str = "pytorch_train.py";

/// Models that the script knows; each is the same net as ours.
const MODELS: [&str; 3] = ["mnist", "mnist-bn", "gpt-nano"];

/// Steps that the peer makes before its clock starts. Ours counts its first steps, so any unfairness
/// is to our loss.
const WARM_UP_STEPS: usize = 5;

/// Names the Python that has PyTorch.
const PYTHON: &str = "EVERBURN_PYTHON";

/// Says the version, and fails as `import` does.
const PROBE: &str = include_str!("../peers/probe.py");

/// How long Python may take to import PyTorch, from a cold disk too.
const IMPORT_DEADLINE: Duration = Duration::from_secs(180);

/// A Python with PyTorch.
#[derive(Debug)]
pub(super) struct Pytorch {
    python: OsString,
    pub(super) version: String,
}

impl Pytorch {
    /// `Ok(Err(reason))` where there is no PyTorch to measure against.
    pub(super) fn find(
        children: &Children,
        folder: &Path,
    ) -> Result<Result<Self, String>, Failure> {
        let python = std::env::var_os(PYTHON)
            .filter(|python| !python.is_empty())
            .unwrap_or_else(|| "python3".into());
        let mut probe = Command::new(&python);
        probe.args(["-c", PROBE]);
        match children.run("python", &mut probe, folder, IMPORT_DEADLINE) {
            Ok(version) => Ok(Ok(Self {
                python,
                version: version.trim().to_owned(),
            })),
            Err(ChildError::Failed(why)) => Ok(Err(skip_reason(&python.to_string_lossy(), &why))),
            Err(other) => Err(other.into()),
        }
    }

    pub(super) fn python(&self) -> &OsStr {
        &self.python
    }

    pub(super) fn name(&self) -> String {
        format!("pytorch {}", self.version)
    }

    /// Whether the script has this model.
    pub(super) fn knows(model: &str) -> bool {
        MODELS.contains(&model)
    }

    /// The command line that trains `case` for `steps` measured steps, on the data at `path` or on
    /// random ones.
    pub(super) fn command(&self, case: &Case, steps: usize, path: Option<&Path>) -> Command {
        let mut command = Command::new(&self.python);
        command
            .arg(script(SCRIPT))
            .args(["--model", &case.model])
            .env("PYTHONDONTWRITEBYTECODE", "1");
        for (flag, number) in [
            ("--ranks", case.ranks),
            ("--threads", case.threads),
            ("--batch-size", case.batch),
            ("--steps", steps),
            ("--warm-up-steps", WARM_UP_STEPS),
        ] {
            command.arg(flag).arg(number.to_string());
        }
        if let Some(path) = path {
            command.arg("--data").arg(path);
        }
        command
    }
}

/// Why there are no numbers of PyTorch, and what to do about it.
fn skip_reason(python: &str, why: &str) -> String {
    let last = why.lines().next_back().unwrap_or(why).trim();
    format!(
        "SKIPPED: nothing was measured against PyTorch, because `{python}` has none ({last}); \
         name a Python that can `import torch` in {PYTHON}"
    )
}

/// What the script prints as its last line.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PeerResult {
    pub(super) samples_per_second: f64,
    /// `real` or `random`.
    pub(super) data: String,
}

impl PeerResult {
    pub(super) fn parse(output: &str, case: &Case, steps: usize) -> Result<Self, Failure> {
        let broken = |what: &str| Failure::new(format!("the peer's result for {case}: {what}"));
        let line = output.lines().rev().find(|line| line.starts_with('{'));
        let line = line.ok_or_else(|| broken("it has printed none"))?;
        let result: Value =
            serde_json::from_str(line).map_err(|error| broken(&error.to_string()))?;
        let as_asked = result["steps"].as_u64() == Some(steps as u64)
            && result["ranks"].as_u64() == Some(case.ranks as u64)
            && result["threads"].as_u64() == Some(case.threads as u64)
            && result["batch_size"].as_u64() == Some(case.batch as u64);
        if !as_asked {
            return Err(broken(&format!("it has measured something else: {line}")));
        }
        // A net that computes nothing sensible may be fast.
        if result["loss"].as_f64().is_none_or(|loss| !loss.is_finite()) {
            return Err(broken(&format!("its loss is NaN: {line}")));
        }
        let rate = result["samples_per_second"].as_f64();
        Ok(Self {
            samples_per_second: rate
                .filter(|rate| *rate > 0.0)
                .ok_or_else(|| broken("no positive `samples_per_second`"))?,
            data: result["data"].as_str().unwrap_or("unknown").to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"{"samples_per_second": 7000.5, "steps": 50, "ranks": 2, "threads": 1,
        "batch_size": 64, "loss": 0.4, "data": "random"}"#;

    fn case() -> Case {
        Case {
            model: "mnist".into(),
            ranks: 2,
            threads: 1,
            batch: 64,
        }
    }

    fn parse(line: &str, steps: usize) -> Result<PeerResult, String> {
        let output = format!("a warning\n{}\n", line.replace('\n', " "));
        PeerResult::parse(&output, &case(), steps).map_err(|failure| failure.to_string())
    }

    #[test]
    fn the_peers_line_is_read() {
        let result = parse(LINE, 50).unwrap();
        assert_eq!(result.samples_per_second, 7000.5);
        assert_eq!(result.data, "random");
    }

    #[test]
    fn what_was_not_asked_for_is_no_result() {
        assert!(parse(LINE, 51).unwrap_err().contains("something else"));
        let one_thread_too_many = LINE.replace(r#""threads": 1"#, r#""threads": 2"#);
        assert!(parse(&one_thread_too_many, 50).is_err());
        assert!(parse(&LINE.replace("0.4", "NaN"), 50).is_err());
        assert!(
            parse(&LINE.replace("0.4", "null"), 50)
                .unwrap_err()
                .contains("loss")
        );
        assert!(parse("nothing", 50).unwrap_err().contains("printed none"));
    }

    #[test]
    fn a_python_without_pytorch_is_skipped_with_the_reason() {
        let why =
            "python has failed; its last words:\nModuleNotFoundError: No module named 'torch'";
        assert_eq!(
            skip_reason("python3", why),
            "SKIPPED: nothing was measured against PyTorch, because `python3` has none \
             (ModuleNotFoundError: No module named 'torch'); name a Python that can \
             `import torch` in EVERBURN_PYTHON"
        );
    }

    #[test]
    fn the_script_is_there_and_knows_the_models() {
        let text = std::fs::read_to_string(script(SCRIPT)).unwrap();
        for model in MODELS {
            assert!(text.contains(&format!("\"{model}\":")), "{model}");
        }
    }
}
