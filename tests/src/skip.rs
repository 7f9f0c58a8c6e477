//! Tests that cannot be tried on this machine say so.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;

/// Names the file in which `cargo xtask test` gathers what was skipped.
const SKIPS: &str = "EVERBURN_TEST_SKIPS";

/// Where data comes from, which CI has to bring.
const DATA: &str = "data";

/// Says that a test or a part of it is skipped: on the test's real standard error, which the test runner
/// does not capture, and in the file that `cargo xtask test` counts.
///
/// # Panics
/// When that file cannot be written: a skip must be seen.
pub fn skip(what: &str, why: &str) {
    note(what, why, "");
}

/// [`skip`]s for lack of `debian_package`, which `apt-get` could have installed. Where `CI` is `true`, `cargo xtask test`
/// fails for that at its end, if `apt-get` offers the package then.
///
/// # Panics
/// As [`skip`] does.
pub fn skip_missing(what: &str, why: &str, debian_package: &str) {
    note(what, why, &format!("apt-get {debian_package}"));
}

/// Notes a skip: `what: why`, and after a tab where the missing could have come from.
fn note(what: &str, why: &str, source: &str) {
    let line = format!("\nSKIPPED {what}: {why}\n");
    // Nobody is left to tell where standard error is closed.
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Some(file) = std::env::var_os(SKIPS).filter(|file| !file.is_empty()) {
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(file)
            .expect("the file of skipped tests");
        let what = format!("{what}: {why}").replace(['\n', '\t'], " ");
        let line = match source {
            "" => format!("{what}\n"),
            source => format!("{what}\t{source}\n"),
        };
        // One write a line: other tests append at the same time.
        file.write_all(line.as_bytes())
            .expect("a note of a skipped test");
    }
}

/// The folder `name` of real data (`mnist`, `tinyshakespeare`), by `EVERBURN_DATA_DIR`; `None`, visibly, where it
/// is not. Where `CI` is `true`, `cargo xtask test` fails for that at its end.
pub fn data_folder(name: &str, test: &str) -> Option<PathBuf> {
    let Some(parent) = std::env::var_os("EVERBURN_DATA_DIR").filter(|value| !value.is_empty())
    else {
        note(test, "EVERBURN_DATA_DIR is not set", DATA);
        return None;
    };
    // Cargo runs a test in its package's folder; the variable is written for the workspace's.
    let here = std::env::current_dir().expect("a test runs in a folder");
    let mut above = here.ancestors();
    let workspace = above.find(|folder| folder.join("Cargo.lock").is_file());
    let workspace = workspace.expect("a test runs in its package's folder");
    let folder = workspace.join(parent).join(name);
    let Ok(folder) = folder.canonicalize() else {
        note(test, &format!("there is no {}", folder.display()), DATA);
        return None;
    };
    Some(folder)
}
