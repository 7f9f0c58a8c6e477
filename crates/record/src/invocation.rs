//! How this program was called, so that a message can name a command that its reader can type.

use std::ffi::OsStr;
use std::path::Path;

/// The variable in which a front door that starts this program, such as `cargo xtask`, says how it was called itself.
/// Child processes inherit it.
pub const VARIABLE: &str = "EVERBURN_CALLED_AS";

/// What a person types before the name of a command: what [`VARIABLE`] says, else this program's file name.
///
/// ```
/// let help = format!("`{} train --list` shows them all", everburn_record::invocation::name());
/// ```
#[must_use]
pub fn name() -> String {
    let called_as = std::env::var(VARIABLE).ok();
    name_of(called_as.as_deref(), std::env::args_os().next().as_deref())
}

fn name_of(called_as: Option<&str>, program: Option<&OsStr>) -> String {
    let program = || Path::new(program?).file_name()?.to_str();
    let called_as = called_as.filter(|name| !name.is_empty());
    called_as.or_else(program).unwrap_or("everburn").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_goes_by_its_file_name_unless_a_front_door_has_started_it() {
        let program = Some(OsStr::new("/usr/local/bin/flowers"));
        assert_eq!(name_of(None, program), "flowers");
        assert_eq!(name_of(Some(""), program), "flowers");
        assert_eq!(name_of(Some("cargo xtask"), program), "cargo xtask");
        assert_eq!(name_of(None, None), "everburn");
    }
}
