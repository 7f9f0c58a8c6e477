//! Tests that cannot be tried on this machine say so.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Names the file in which `cargo xtask test` gathers what was skipped.
const SKIPS: &str = "EVERBURN_TEST_SKIPS";

/// Says that a test or a part of it is skipped: on the test's real standard error, which the test runner
/// does not capture, and in the file that `cargo xtask test` counts.
///
/// # Panics
/// When that file cannot be written: a skip must be seen.
pub fn skip(what: &str, why: &str) {
    let line = format!("\nSKIPPED {what}: {why}\n");
    // Nobody is left to tell where standard error is closed.
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Some(file) = std::env::var_os(SKIPS).filter(|file| !file.is_empty()) {
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(file)
            .expect("the file of skipped tests");
        // One write a line: other tests append at the same time.
        file.write_all(format!("{what}: {why}\n").as_bytes())
            .expect("a note of a skipped test");
    }
}

/// [`skip`]s for lack of something that could have been installed or configured. In CI, where `CI` is
/// `true`, that is a failure.
///
/// # Panics
/// In CI.
pub fn skip_missing(what: &str, missing: &str) {
    assert!(
        std::env::var_os("CI").is_none_or(|value| value != "true"),
        "{what} cannot be tried: {missing}; in CI that is a failure, because it could have been installed"
    );
    skip(what, missing);
}

/// The folder `name` of real data (`mnist`, `tinyshakespeare`), by `EVERBURN_DATA_DIR`; `None`, visibly, where it
/// is not.
pub fn data_folder(name: &str, test: &str) -> Option<PathBuf> {
    let Some(parent) = std::env::var_os("EVERBURN_DATA_DIR").filter(|value| !value.is_empty())
    else {
        skip_missing(test, "EVERBURN_DATA_DIR is not set");
        return None;
    };
    // Cargo runs a test in its package's folder; the variable is written for the workspace's.
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folder = workspace.join(parent).join(name);
    let Ok(folder) = folder.canonicalize() else {
        skip_missing(test, &format!("there is no {}", folder.display()));
        return None;
    };
    Some(folder)
}
