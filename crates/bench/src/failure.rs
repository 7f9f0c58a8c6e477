//! Why there is no measurement.

use std::error::Error;
use std::fmt;
use std::process::ExitCode;

use everburn::devices::DeviceError;
use everburn::launch::ChildError;
use everburn_record::EXIT_INTERRUPTED;

/// The exit code for a command line that cannot work, as `clap` has it.
const BAD_COMMAND_LINE: u8 = 2;

/// Why there is no measurement. Any error becomes one by `?`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// A signal asked for the end.
    Interrupted,
    /// The command line cannot work.
    Usage(String),
    Failed(String),
}

impl Failure {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self::Failed(what.into())
    }

    pub(crate) fn usage(what: impl Into<String>) -> Self {
        Self::Usage(what.into())
    }

    /// Tells the user, and how the process should end.
    pub(crate) fn tell(self) -> ExitCode {
        match self {
            Self::Interrupted => {
                eprintln!("interrupted: all processes of the benchmark have been ended");
                ExitCode::from(EXIT_INTERRUPTED)
            }
            Self::Usage(what) => {
                eprintln!("{what}");
                ExitCode::from(BAD_COMMAND_LINE)
            }
            Self::Failed(what) => {
                eprintln!("error: {what}");
                ExitCode::FAILURE
            }
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interrupted => f.write_str("interrupted"),
            Self::Usage(what) | Self::Failed(what) => f.write_str(what),
        }
    }
}

impl<E: Error + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        let any: &(dyn Error + 'static) = &error;
        match any.downcast_ref() {
            Some(ChildError::Interrupted) => return Self::Interrupted,
            Some(late @ (ChildError::TooLong { .. } | ChildError::Silent { .. })) => {
                return Self::Failed(format!("{late}\n--run-timeout gives it more time"));
            }
            Some(ChildError::Failed(_)) | None => {}
        }
        if let Some(DeviceError { message, help }) = any.downcast_ref() {
            let help = help.as_ref().map(|help| format!("\nhelp: {help}"));
            return Self::Usage(format!("error: {message}{}", help.unwrap_or_default()));
        }
        let mut told = error.to_string();
        let mut cause = error.source();
        while let Some(deeper) = cause {
            let text = deeper.to_string();
            if !told.contains(&text) {
                told.push_str(&format!("\n  because: {text}"));
            }
            cause = deeper.source();
        }
        Self::Failed(told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_told_once() {
        let broken = "x".parse::<usize>().unwrap_err();
        let error = std::io::Error::other(broken);
        assert_eq!(
            Failure::from(error),
            Failure::new("invalid digit found in string")
        );
    }

    #[test]
    fn an_interrupt_stays_one_and_a_missing_device_is_the_command_lines_fault() {
        assert_eq!(Failure::from(ChildError::Interrupted), Failure::Interrupted);
        let late = ChildError::TooLong {
            name: "a run".to_owned(),
            timeout: std::time::Duration::from_secs(3),
        };
        let told = Failure::from(late).to_string();
        assert!(told.contains("longer than 3 s") && told.contains("--run-timeout"));
        let none = everburn::devices::check(&["lunch".to_owned()], 1).unwrap_err();
        assert!(matches!(Failure::from(none), Failure::Usage(_)));
    }
}
