//! Errors of a task.

use std::error::Error;
use std::fmt::Display;

use crate::error::TrainError;

/// An error in a task's settings or data, with help. Any error converts to it by `?`.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::TaskError;
///
/// fn width(text: &str) -> Result<usize, TaskError> {
///     Ok(text.parse()?)
/// }
///
/// assert!(width("wide").unwrap_err().to_string().contains("invalid digit"));
/// let error = TaskError::new("a width of 0 leaves nothing").with_help("use 1 or more");
/// assert_eq!(error.help(), Some("use 1 or more"));
/// ```
///
/// Like `anyhow::Error` it does not implement [`Error`], because every [`Error`] converts to it. In a function of your own program that
/// returns a `Box<dyn Error>` or a [`TrainError`], `?` converts it to that, with its help:
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use std::error::Error;
///
/// use everburn::train::{AnyTask, TaskError};
///
/// fn parameters(task: &AnyTask) -> Result<usize, Box<dyn Error>> {
///     Ok(task.configure(&task.preset())?.num_params()?)
/// }
///
/// let error = TaskError::new("a width of 0 leaves nothing").with_help("use 1 or more");
/// let error = Box::<dyn Error + Send + Sync>::from(error);
/// assert_eq!(error.to_string(), "a width of 0 leaves nothing; use 1 or more");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskError {
    message: String,
    help: Option<String>,
    known_keys: Vec<String>,
    other_classes: Option<Box<OtherClasses>>,
    not_finite: Option<Box<NotFinitePrediction>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NotFinitePrediction {
    /// The sample's number in its batch.
    pub(crate) sample: usize,
    /// What is wrong with it, as "is a NaN".
    pub(crate) what: String,
}

/// Data with other classes than the model of a run: what a test or a resume of it needs.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::{OtherClasses, TaskError};
///
/// let other = OtherClasses { needed: "a folder for each class".into(), head: Some("fc.*".into()) };
/// let error = TaskError::new("the data have other classes").with_other_classes(other.clone());
/// assert_eq!(error.other_classes(), Some(&other));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherClasses {
    /// The data that fit, and how these differ.
    pub needed: String,
    /// The pattern of the layer that a new run begins anew with these data, as `--init-skip` takes it, if it is known.
    pub head: Option<String>,
}

impl OtherClasses {
    /// The help of a test.
    pub fn help_of_test(&self) -> String {
        format!("a test needs {}", self.needed)
    }
}

impl TaskError {
    /// An error with this message: lower case, no full stop.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            help: None,
            known_keys: Vec::new(),
            other_classes: None,
            not_finite: None,
        }
    }

    /// The error of a prediction that `what` says of, of the sample of this number in its batch.
    pub(super) fn not_finite(sample: usize, what: &str) -> Self {
        Self {
            not_finite: Some(Box::new(NotFinitePrediction {
                sample,
                what: what.to_owned(),
            })),
            ..Self::new(format!(
                "the prediction of sample {sample} of a batch {what}"
            ))
        }
    }

    pub(crate) fn not_finite_prediction(&self) -> Option<&NotFinitePrediction> {
        self.not_finite.as_deref()
    }

    /// Adds help: what the user can do.
    #[must_use]
    pub fn with_help(self, help: impl Into<String>) -> Self {
        Self {
            help: Some(help.into()),
            ..self
        }
    }

    /// Adds the keys that a section has, of an error about another one.
    #[must_use]
    pub fn with_known_keys(self, known_keys: Vec<String>) -> Self {
        Self { known_keys, ..self }
    }

    /// The keys that a section has, if the error is another one in it; otherwise empty.
    pub(crate) fn known_keys(&self) -> &[String] {
        &self.known_keys
    }

    /// Adds that the data have other classes than the model, of which a test and a resume have a help of their own.
    #[must_use]
    pub fn with_other_classes(self, other: OtherClasses) -> Self {
        Self {
            other_classes: Some(Box::new(other)),
            ..self
        }
    }

    /// How the classes of the data differ from those of the model, if that is the error.
    pub fn other_classes(&self) -> Option<&OtherClasses> {
        self.other_classes.as_deref()
    }

    /// What the user can do.
    pub fn help(&self) -> Option<&str> {
        self.help.as_deref()
    }

    /// The message with the help, where only a text is taken.
    fn with_help_in_text(&self) -> String {
        match self.help() {
            Some(help) => format!("{self}; {help}"),
            None => self.to_string(),
        }
    }
}

impl From<TaskError> for TrainError {
    fn from(error: TaskError) -> Self {
        Self::Config(error.with_help_in_text())
    }
}

/// Its text is the task's message with the help.
impl From<TaskError> for Box<dyn Error + Send + Sync> {
    fn from(error: TaskError) -> Self {
        error.with_help_in_text().into()
    }
}

/// Its text is the task's message with the help.
impl From<TaskError> for Box<dyn Error> {
    fn from(error: TaskError) -> Self {
        error.with_help_in_text().into()
    }
}

impl Display for TaskError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl<E: Error> From<E> for TaskError {
    fn from(error: E) -> Self {
        let mut message = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            let cause_text = cause.to_string();
            if !message.contains(&cause_text) {
                message = format!("{message}: {cause_text}");
            }
            source = cause.source();
        }
        Self::new(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fails() -> Result<(), TaskError> {
        Err(TaskError::new("a width of 0 leaves nothing").with_help("use 1 or more"))
    }

    #[test]
    fn a_program_of_any_error_has_the_message_and_the_help() {
        let boxed = || -> Result<(), Box<dyn Error>> {
            fails()?;
            Ok(())
        };
        let sent = || -> Result<(), Box<dyn Error + Send + Sync>> {
            fails()?;
            Ok(())
        };
        let text = "a width of 0 leaves nothing; use 1 or more";
        assert_eq!(boxed().unwrap_err().to_string(), text);
        assert_eq!(sent().unwrap_err().to_string(), text);
        let without = Box::<dyn Error>::from(TaskError::new("no width"));
        assert_eq!(without.to_string(), "no width");
    }
}
