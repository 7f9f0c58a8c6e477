//! What a binary needs of the system that it runs on: how new a glibc, and which libraries.

use std::fmt;
use std::path::Path;
use std::process::Command;

use miette::miette;

use super::output_of;

/// Libraries that every Linux of a `manylinux` platform has (PEP 600), as far as our binary could want them.
const EVERYWHERE: [&str; 9] = [
    "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1",
    "libc.so.6",
    "libdl.so.2",
    "libgcc_s.so.1",
    "libm.so.6",
    "libpthread.so.0",
    "librt.so.1",
    "libz.so.1",
];

#[derive(Debug, PartialEq, Eq)]
pub(super) struct BinaryNeeds {
    /// Of glibc, major and minor.
    glibc: (u32, u32),
    libraries: Vec<String>,
}

impl BinaryNeeds {
    /// Python's name of the systems that have it, as in `manylinux_2_34_x86_64`.
    pub(super) fn platform_tag(&self) -> String {
        let (major, minor) = self.glibc;
        format!("manylinux_{major}_{minor}_{}", std::env::consts::ARCH)
    }
}

impl fmt::Display for BinaryNeeds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.glibc;
        let libraries = self.libraries.join(", ");
        write!(
            f,
            "the binary needs glibc {major}.{minor} or later, and {libraries}"
        )
    }
}

/// What `program` needs, as `objdump` (binutils) reads it.
///
/// # Errors
/// If it needs a library that not every system has.
pub(super) fn of(program: &Path) -> miette::Result<BinaryNeeds> {
    let said = output_of(Command::new("objdump").args(["-p", "-T"]).arg(program))?;
    let needs = read(&String::from_utf8_lossy(&said));
    let elsewhere = |name: &&String| !EVERYWHERE.contains(&name.as_str());
    match needs.libraries.iter().find(elsewhere) {
        Some(library) => Err(miette!(
            "the binary is linked with {library}, which not every system has: link it statically, or open it at run \
             time"
        )),
        None => Ok(needs),
    }
}

fn read(objdump: &str) -> BinaryNeeds {
    let needed = objdump
        .lines()
        .filter_map(|line| line.trim().strip_prefix("NEEDED"));
    let mut libraries: Vec<String> = needed.map(|name| name.trim().to_owned()).collect();
    libraries.sort();
    let versions = objdump.split("GLIBC_").skip(1).filter_map(|rest| {
        let end = rest.find(|c: char| !(c.is_ascii_digit() || c == '.'));
        let mut numbers = rest[..end.unwrap_or(rest.len())].split('.').map(str::parse);
        Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
    });
    BinaryNeeds {
        glibc: versions.max().unwrap_or_default(),
        libraries,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "\
Dynamic Section:
  NEEDED               libm.so.6
  NEEDED               libc.so.6
Version References:
  required from libc.so.6:
    0x09691a75 0x00 05 GLIBC_2.2.5
    0x069691b4 0x00 02 GLIBC_2.34
DYNAMIC SYMBOL TABLE:
0000000000000000      DF *UND*  0000000000000000 (GLIBC_2.9)  close
0000000000000000  w   DO *UND*  0000000000000000 (GLIBC_PRIVATE) x
";

    #[test]
    fn the_newest_version_counts_and_is_compared_as_numbers() {
        let needs = read(SAID);
        assert_eq!(needs.glibc, (2, 34));
        assert_eq!(needs.libraries, ["libc.so.6", "libm.so.6"]);
        assert!(needs.platform_tag().starts_with("manylinux_2_34_"));
    }

    #[test]
    fn the_program_of_this_test_can_be_read_where_there_is_objdump() {
        if Command::new("objdump").arg("--version").output().is_err() {
            everburn_tests::skip_missing("what a program needs", "there is no objdump", "binutils");
            return;
        }
        let needs = of(&std::env::current_exe().unwrap()).unwrap();
        assert!(needs.glibc >= (2, 2), "{needs}");
        assert!(needs.to_string().contains("libc.so.6"), "{needs}");
    }
}
