//! `cargo xtask doctor`: what building takes here; then `everburn doctor` says what training takes.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use everburn_record::{Finding, Verdict, file, units};

use crate::binary;
use crate::cargo::{data_dir_beside, root, target_dir};

const GIB: u64 = 1 << 30;

/// What a release build of Burn takes.
const DISK_WANTED: u64 = 12 * GIB;
const DISK_NEEDED: u64 = GIB / 2;

/// Prints what building takes, and becomes `everburn doctor`, unless that cannot be built.
pub fn run(arguments: &[OsString]) -> miette::Result<ExitCode> {
    if binary::asks_for_help(arguments) {
        return binary::become_everburn("doctor", arguments);
    }
    let mut findings = vec![toolchain(), disk(), llvm()];
    if data_dir_beside().is_some() {
        findings.push(Finding::warn(
            "data folder",
            "EVERBURN_DATA_DIR is not set",
            "set it to the folder that contains `mnist`",
        ));
    }
    for finding in &findings {
        println!("{finding}");
    }
    match findings.iter().any(|found| found.verdict == Verdict::Fail) {
        true => Ok(ExitCode::FAILURE),
        false => binary::become_everburn("doctor", arguments),
    }
}

fn toolchain() -> Finding {
    let (subject, wanted) = ("toolchain", env!("CARGO_PKG_RUST_VERSION"));
    let advice = "install it from https://rustup.rs, then `rustup update stable`";
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = match Command::new(rustc).arg("--version").output() {
        Ok(output) if output.status.success() => output.stdout,
        _ => return Finding::fail(subject, "rustc does not answer", advice),
    };
    let version = String::from_utf8_lossy(&output).trim().to_owned();
    match (
        numbers(version.split(' ').nth(1).unwrap_or_default()),
        numbers(wanted),
    ) {
        (Some(have), Some(want)) if have < want => Finding::fail(
            subject,
            format!("{version}; {wanted} or later is needed"),
            advice,
        ),
        _ => Finding::ok(subject, version),
    }
}

/// Major and minor version.
fn numbers(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split(['.', '-']);
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn disk() -> Finding {
    let folder = target_dir();
    let (subject, at) = ("disk", file::nearest_existing(&folder));
    let Ok(space) = rustix::fs::statvfs(at) else {
        let found = format!("{} cannot be examined", folder.display());
        return Finding::warn(
            subject,
            found,
            "set CARGO_TARGET_DIR to a folder that can be written",
        );
    };
    let free = space.f_bavail * space.f_frsize;
    let found = format!("{} free for {}", units::bytes(free), folder.display());
    let advice = "a release build takes about 12 GiB: make room or set CARGO_TARGET_DIR";
    match free {
        free if free < DISK_NEEDED => Finding::fail(subject, found, advice),
        free if free < DISK_WANTED => Finding::warn(subject, found, advice),
        _ => Finding::ok(subject, found),
    }
}

/// Burn's `cuda` feature links LLVM from a bundle that its build script fetches or finds here.
fn llvm() -> Finding {
    let subject = "LLVM bundle";
    let lock = fs::read_to_string(root().join("Cargo.lock")).unwrap_or_default();
    let Some(version) = locked_version(&lock, "tracel-llvm-bundler") else {
        return Finding::ok(subject, "not needed by this Cargo.lock");
    };
    let data = std::env::var_os("XDG_DATA_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".local/share")));
    let prefix = data
        .unwrap_or_default()
        .join(format!("tracel/tracel-llvm-{version}"));
    if prefix.join(".tracel-llvm-installed").exists() {
        return Finding::ok(subject, prefix.display().to_string());
    }
    Finding::warn(
        subject,
        format!("{version} is not there"),
        "only for `--gpus` on NVIDIA's: the build fetches it from the network",
    )
}

fn locked_version(lock: &str, package: &str) -> Option<String> {
    let name = format!("name = \"{package}\"");
    let after = lock.lines().skip_while(|line| *line != name).nth(1)?;
    Some(
        after
            .strip_prefix("version = \"")?
            .trim_end_matches('"')
            .to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert!(numbers("1.100.0") > numbers("1.95"));
        assert_eq!(numbers("1.96.0-nightly"), Some((1, 96)));
        assert_eq!(numbers("unknown"), None);
    }

    #[test]
    fn what_building_takes_can_be_examined_here() {
        for finding in [toolchain(), disk(), llvm()] {
            let is_ok = finding.verdict == Verdict::Ok;
            assert_eq!(finding.advice.is_empty(), is_ok, "{finding}");
        }
    }

    #[test]
    fn the_locked_version_is_found() {
        let lock = "[[package]]\nname = \"a\"\nversion = \"1.0.0\"\n\n[[package]]\nname = \"b\"\n\
                    version = \"2.0.0-4\"\n";
        assert_eq!(locked_version(lock, "b").as_deref(), Some("2.0.0-4"));
        assert_eq!(locked_version(lock, "c"), None);
    }
}
