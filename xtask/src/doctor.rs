//! `cargo xtask doctor`: what this machine has and lacks for training, without building Burn.

mod host;
mod libraries;
mod network;

use std::fmt;
use std::process::ExitCode;

/// One line of the report.
struct Finding {
    verdict: Verdict,
    subject: &'static str,
    found: String,
    /// What to do; empty where all is well.
    advice: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Ok,
    /// Training on the CPU works, something else may not.
    Warn,
    /// Training on the CPU does not work.
    Fail,
}

impl Finding {
    fn ok(subject: &'static str, found: impl Into<String>) -> Self {
        Self {
            verdict: Verdict::Ok,
            subject,
            found: found.into(),
            advice: "",
        }
    }

    fn warn(subject: &'static str, found: impl Into<String>, advice: &'static str) -> Self {
        Self {
            verdict: Verdict::Warn,
            subject,
            found: found.into(),
            advice,
        }
    }

    fn fail(subject: &'static str, found: impl Into<String>, advice: &'static str) -> Self {
        Self {
            verdict: Verdict::Fail,
            subject,
            found: found.into(),
            advice,
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match self.verdict {
            Verdict::Ok => "ok  ",
            Verdict::Warn => "warn",
            Verdict::Fail => "FAIL",
        };
        write!(f, "{verdict}  {:<16} {}", self.subject, self.found)?;
        if !self.advice.is_empty() {
            write!(f, "\n{:24}-> {}", "", self.advice)?;
        }
        Ok(())
    }
}

/// Prints the report. Fails only where training on the CPU could not work.
pub fn run() -> ExitCode {
    let mut findings = host::findings();
    findings.extend(network::findings());
    findings.extend(libraries::findings());
    for finding in &findings {
        println!("{finding}");
    }
    let count = |verdict| {
        findings
            .iter()
            .filter(|finding| finding.verdict == verdict)
            .count()
    };
    let (warnings, failures) = (count(Verdict::Warn), count(Verdict::Fail));
    println!(
        "\n{} checked, {warnings} to look at, {failures} in the way",
        findings.len()
    );
    if failures > 0 {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_is_wrong_and_what_to_do() {
        let line = Finding::warn("memory", "1 GiB free", "train fewer ranks").to_string();
        assert!(line.starts_with("warn  memory"), "{line}");
        assert!(line.ends_with("-> train fewer ranks"), "{line}");
    }

    #[test]
    fn this_machine_can_be_examined() {
        for finding in host::findings().into_iter().chain(libraries::findings()) {
            assert_eq!(
                finding.advice.is_empty(),
                finding.verdict == Verdict::Ok,
                "{finding}"
            );
        }
    }
}
