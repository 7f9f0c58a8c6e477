//! Tests that need a process of their own.
//!
//! Under `cargo test` all tests of this program run side by side in one process, which has one of some things: the
//! generator of random numbers of a back end, that any model draws its weights from and any checkpointed segment
//! seeds; the count of operations; the list of graphs, which a backward pass looks through for some to free and skips
//! those that another one holds. A lock would have to be taken by nearly every test, and by all that are still to come.

use std::any::type_name;
use std::env;
use std::process::Command;

/// Names the test that a process is there for.
const ALONE: &str = "EVERBURN_TEST_ALONE";

/// Runs `work`, which is all that a test does, in a process without other tests: in this program, started again for
/// that test only.
///
/// # Panics
/// Panics if the test fails there, or has not run.
#[track_caller]
pub fn alone<F: FnOnce()>(work: F) {
    // A closure's name is that of the function it is in: `nn::replay::a_test::{{closure}}`.
    let closure = type_name::<F>();
    let path = closure.split_once("::").map(|(_program, path)| path);
    let test = path.and_then(|path| path.strip_suffix("::{{closure}}"));
    let test = test.unwrap_or_else(|| panic!("`{closure}` is no closure of a test"));
    if env::var_os(ALONE).is_some_and(|alone| alone == test) {
        work();
        return;
    }
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", test])
        .env(ALONE, test)
        .output()
        .unwrap();
    let [said, complained] =
        [&output.stdout, &output.stderr].map(|said| String::from_utf8_lossy(said));
    // A name that fits no test is no failure to the harness.
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{test} in a process of its own: {}\n{said}\n{complained}",
        output.status
    );
}
