//! What a test demands of a text or a value, the words of a command, and the variables it sets.

use std::ffi::OsStr;
use std::process::Command;

/// Demands parts of a text.
pub trait AssertContains {
    /// Fails, with the whole text, where it lacks one of `parts`.
    fn assert_contains<P: AsRef<str>>(&self, parts: impl IntoIterator<Item = P>);
}

impl AssertContains for str {
    #[track_caller]
    fn assert_contains<P: AsRef<str>>(&self, parts: impl IntoIterator<Item = P>) {
        for part in parts {
            let part = part.as_ref();
            assert!(self.contains(part), "{part} not in\n{self}");
        }
    }
}

/// Fails, with the value, where it does not match the pattern.
#[macro_export]
macro_rules! assert_matches {
    ($value:expr, $pattern:pat $(if $guard:expr)? $(,)?) => {
        match $value {
            $pattern $(if $guard)? => {}
            ref other => panic!("{other:?} does not match {}", stringify!($pattern)),
        }
    };
}

/// The words after a command's program, as a line.
pub fn words_of(command: &Command) -> String {
    let words = command.get_args().map(OsStr::to_string_lossy);
    words.collect::<Vec<_>>().join(" ")
}

/// Looks a variable up among `set`, the first of a name.
pub fn lookup<'a>(set: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<String> + 'a {
    |name| {
        let found = set.iter().find(|(other, _)| *other == name);
        found.map(|(_, value)| (*value).to_owned())
    }
}
