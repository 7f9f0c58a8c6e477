//! Tests that cannot be tried on this machine say so.

use std::io::Write;
use std::path::{Path, PathBuf};

/// Says on the test's real standard error, which the test runner does not capture, that a test or
/// a part of it is skipped.
pub fn skip(what: &str, why: &str) {
    let line = format!("\nSKIPPED {what}: {why}\n");
    // Nobody is left to tell where standard error is closed.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// The folder of the real MNIST files, by `EVERBURN_DATA_DIR`; `None`, visibly, where it is not.
pub fn mnist_folder(test: &str) -> Option<PathBuf> {
    let Some(parent) = std::env::var_os("EVERBURN_DATA_DIR").filter(|value| !value.is_empty())
    else {
        skip(test, "EVERBURN_DATA_DIR is not set");
        return None;
    };
    // Cargo runs a test in its package's folder; the variable is written for the workspace's.
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folder = workspace.join(parent).join("mnist");
    let Ok(folder) = folder.canonicalize() else {
        skip(test, &format!("there is no {}", folder.display()));
        return None;
    };
    Some(folder)
}
