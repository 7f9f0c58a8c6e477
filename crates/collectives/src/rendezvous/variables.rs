//! The variables of a rank's environment, and how their text is read.

use std::ffi::OsString;

use everburn_auth::{AuthError, GivenToken, JobToken};

/// A variable of this process's environment. What is not UTF-8 in it is replaced, so that it is refused by those
/// who cannot use it, and not taken for a variable that is not set.
#[must_use]
pub fn variable(name: &str) -> Option<String> {
    let text = std::env::var_os(name)?;
    Some(text.to_string_lossy().into_owned())
}

/// What [`switch`] understands, for messages.
const SWITCH: &str = "0, 1, false or true";

/// Whether a variable such as EVERBURN_OPEN_STORE switches something on: `1` or `true`, in any case of letters; `0`
/// and `false` do not. `None`: it is neither.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::rendezvous::switch;
///
/// assert_eq!(switch("True"), Some(true));
/// assert_eq!(switch("0"), Some(false));
/// assert_eq!(switch("yes"), None);
/// ```
#[must_use]
pub fn switch(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" => Some(true),
        "0" | "false" => Some(false),
        _ => None,
    }
}

/// A variable holds something else than expected.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::rendezvous::Variables;
///
/// let lookup = |_: &str| Some("two".to_owned());
/// let error = Variables::of(&lookup).number("RANK").unwrap_err();
/// assert_eq!(error.to_string(), "RANK is `two`, but must be a whole number, 0 or more");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name} is `{value}`, but must be {expected}")]
pub struct MalformedVariable {
    /// The variable.
    pub name: &'static str,
    /// What it holds.
    pub value: String,
    /// What it should hold, in words.
    pub expected: String,
}

/// Environment variables, looked up by [`variable`] or elsewhere. One that is set to nothing counts as missing.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::rendezvous::Variables;
///
/// let lookup = |name: &str| (name == "RANK").then(|| " 3 ".to_owned());
/// let variables = Variables::of(&lookup);
/// assert_eq!(variables.number("RANK"), Ok(Some(3)));
/// assert_eq!(variables.number("WORLD_SIZE"), Ok(None));
/// ```
#[derive(Clone, Copy)]
pub struct Variables<'a> {
    lookup: &'a dyn Fn(&str) -> Option<String>,
}

impl<'a> Variables<'a> {
    /// The variables of which `lookup` has the text.
    pub fn of(lookup: &'a dyn Fn(&str) -> Option<String>) -> Self {
        Self { lookup }
    }

    /// The variable's text, without white space around it.
    pub fn text(&self, name: &str) -> Option<String> {
        let text = (self.lookup)(name)?.trim().to_owned();
        Some(text).filter(|text| !text.is_empty())
    }

    /// The first of `names` that is set, and its text.
    pub fn first_text(&self, names: &[&'static str]) -> Option<(&'static str, String)> {
        names
            .iter()
            .find_map(|&name| Some((name, self.text(name)?)))
    }

    /// `NAME=value` for those of `names` that are set.
    pub fn set_among(&self, names: &[&str]) -> Vec<String> {
        let set = names
            .iter()
            .filter_map(|name| Some((name, self.text(name)?)));
        set.map(|(name, value)| format!("{name}={value}")).collect()
    }

    /// The variable's value, read by `parse`.
    ///
    /// # Errors
    /// [`MalformedVariable`] where `parse` cannot read it.
    pub fn parsed<T>(
        &self,
        name: &'static str,
        expected: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, MalformedVariable> {
        let Some(value) = self.text(name) else {
            return Ok(None);
        };
        match parse(&value) {
            None => Err(MalformedVariable {
                name,
                value,
                expected: expected.to_owned(),
            }),
            parsed => Ok(parsed),
        }
    }

    /// The number that it holds.
    ///
    /// # Errors
    /// [`MalformedVariable`] if it holds something else.
    pub fn number(&self, name: &'static str) -> Result<Option<usize>, MalformedVariable> {
        self.parsed(name, "a whole number, 0 or more", |value| {
            value.parse().ok()
        })
    }

    /// Whether it is switched on; one that is missing is off.
    ///
    /// # Errors
    /// [`MalformedVariable`] if it holds nothing that [`switch`] understands.
    pub fn flag(&self, name: &'static str) -> Result<bool, MalformedVariable> {
        Ok(self.parsed(name, SWITCH, switch)?.unwrap_or(false))
    }

    /// The secret of the job, in EVERBURN_JOB_TOKEN.
    ///
    /// # Errors
    /// [`AuthError`] if it cannot be used.
    pub fn job_token(&self) -> Result<Option<JobToken>, AuthError> {
        let text = self.text("EVERBURN_JOB_TOKEN").unwrap_or_default();
        GivenToken::from(OsString::from(text)).token()
    }
}
