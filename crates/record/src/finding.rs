//! What an examination of a machine has found, a line each.

use std::borrow::Cow;
use std::fmt;

/// One line of an examination: how it looks, what was looked at, what was found and what to do.
///
/// ```
/// use everburn_record::Finding;
///
/// let line = Finding::warn("memory", "1 GiB available", "train fewer ranks").to_string();
/// assert!(line.starts_with("warn  memory           1 GiB available\n"));
/// assert!(line.ends_with("-> train fewer ranks"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// How it looks.
    pub verdict: Verdict,
    /// What was looked at.
    pub subject: &'static str,
    /// What was found.
    pub found: String,
    /// What to do; empty where all is well.
    pub advice: Cow<'static, str>,
}

/// How something looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// Training on the CPU works, something else may not.
    Warn,
    /// In the way of everything; or what was asked about has failed.
    Fail,
}

impl Finding {
    /// All is well.
    pub fn ok(subject: &'static str, found: impl Into<String>) -> Self {
        Self {
            verdict: Verdict::Ok,
            subject,
            found: found.into(),
            advice: Cow::Borrowed(""),
        }
    }

    /// Something may not work.
    pub fn warn(
        subject: &'static str,
        found: impl Into<String>,
        advice: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self {
            verdict: Verdict::Warn,
            subject,
            found: found.into(),
            advice: advice.into(),
        }
    }

    /// Nothing works, or what was asked about has failed.
    pub fn fail(
        subject: &'static str,
        found: impl Into<String>,
        advice: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self {
            verdict: Verdict::Fail,
            subject,
            found: found.into(),
            advice: advice.into(),
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
