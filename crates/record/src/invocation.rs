//! How this program was called, so that a message can name a command that its reader can type.

use std::ffi::OsStr;
use std::path::Path;

use crate::plain;

/// The variable in which a front door that starts this program, such as `cargo xtask`, says how it was called itself.
/// Child processes inherit it.
pub const VARIABLE: &str = "EVERBURN_CALLED_AS";

/// What a person types before the name of a command: what [`VARIABLE`] says, else this program as it was called, with its
/// path where it was called by one, as a shell takes it.
pub fn name() -> String {
    let called_as = std::env::var(VARIABLE).ok();
    name_of(called_as.as_deref(), std::env::args_os().next().as_deref())
}

/// The same without a path, for headings and usage lines.
pub fn file_name() -> String {
    without_path(&name())
}

fn name_of(called_as: Option<&str>, program: Option<&OsStr>) -> String {
    let called_as = called_as.filter(|name| !name.is_empty());
    let program = program.and_then(OsStr::to_str);
    let program = program.filter(|name| !name.is_empty());
    // A front door may be of several words.
    let called_as = called_as.map(str::to_owned);
    let program = || program.map(plain::word);
    called_as
        .or_else(program)
        .unwrap_or_else(|| "everburn".to_owned())
}

fn without_path(name: &str) -> String {
    let name = name.trim_matches('\'');
    let file = Path::new(name).file_name().and_then(OsStr::to_str);
    file.unwrap_or(name).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_goes_by_what_was_typed_unless_a_front_door_has_started_it() {
        let program = Some(OsStr::new("target/release/flowers"));
        assert_eq!(name_of(None, program), "target/release/flowers");
        assert_eq!(name_of(Some(""), program), "target/release/flowers");
        assert_eq!(name_of(None, Some(OsStr::new("flowers"))), "flowers");
        let spaced = Some(OsStr::new("my tools/flowers"));
        assert_eq!(name_of(None, spaced), "'my tools/flowers'");
        assert_eq!(name_of(Some("cargo xtask"), program), "cargo xtask");
        assert_eq!(name_of(None, None), "everburn");
        assert_eq!(name_of(None, Some(OsStr::new(""))), "everburn");
    }

    #[test]
    fn headings_have_no_path() {
        for (name, short) in [
            ("target/release/flowers", "flowers"),
            ("flowers", "flowers"),
            ("'my tools/flowers'", "flowers"),
            ("cargo xtask", "cargo xtask"),
        ] {
            assert_eq!(without_path(name), short);
        }
    }
}
