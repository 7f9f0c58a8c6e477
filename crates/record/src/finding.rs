//! What an examination of a machine has found, a line each.

use std::borrow::Cow;
use std::fmt;

/// In which columns of their lines begin what was found, and what to do.
const FOUND_AT: usize = 23;
const ADVICE_AT: usize = 27;

/// Lines are filled to this many characters, however narrow the terminal is.
const FEWEST_COLUMNS: usize = 30;

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
            ..Self::warn(subject, found, "")
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
            ..Self::warn(subject, found, advice)
        }
    }

    /// The same in lines of at most `columns` characters, as a terminal has. They are broken at spaces, but not within a command
    /// between backticks.
    ///
    /// ```
    /// use everburn_record::Finding;
    ///
    /// let finding = Finding::warn("memory", "1 GiB is available, and 2 GiB are needed", "see `free --human`, and train fewer ranks");
    /// let lines = finding.wrapped(60);
    /// let expected = "\
    /// warn  memory           1 GiB is available, and 2 GiB are
    ///                        needed
    ///                         -> see `free --human`, and train
    ///                            fewer ranks";
    /// assert_eq!(lines, expected);
    /// ```
    pub fn wrapped(&self, columns: usize) -> String {
        let verdict = match self.verdict {
            Verdict::Ok => "ok  ",
            Verdict::Warn => "warn",
            Verdict::Fail => "FAIL",
        };
        let found = filled(&self.found, FOUND_AT, columns);
        let mut lines = format!("{verdict}  {:<16} {found}", self.subject);
        if !self.advice.is_empty() {
            let advice = filled(&self.advice, ADVICE_AT, columns);
            lines += &format!("\n{:24}-> {advice}", "");
        }
        lines
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.wrapped(usize::MAX))
    }
}

/// `text` that begins in column `indent`, in lines that all begin there and end at `columns`. They are broken at spaces, but not
/// within a command between backticks.
///
/// ```
/// let text = everburn_record::filled("1 GiB is available, and 2 GiB are needed: see `free -m`", 4, 36);
/// assert_eq!(text, "1 GiB is available, and 2 GiB\n    are needed: see `free -m`");
/// ```
pub fn filled(text: &str, indent: usize, columns: usize) -> String {
    let room = columns.saturating_sub(indent).max(FEWEST_COLUMNS);
    // A command is one word.
    let (mut words, mut in_command) = (Vec::<String>::new(), false);
    for part in text.split(' ') {
        match words.last_mut() {
            Some(word) if in_command => word.extend([" ", part]),
            _ => words.push(part.to_owned()),
        }
        in_command ^= part.matches('`').count() % 2 == 1;
    }
    let mut lines = Vec::<String>::new();
    for word in words {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= room => {
                line.push(' ');
                line.push_str(&word);
            }
            _ => lines.push(word),
        }
    }
    lines.join(&format!("\n{:indent$}", ""))
}
