//! Scripts of this folder, run by the Python that has PyTorch.

use std::process::Command;

use everburn_tests::Talker;

/// Names the Python, as for the benchmarks.
const PYTHON: &str = "EVERBURN_PYTHON";

/// Starts a script.
pub fn start(name: &str, arguments: &[&str]) -> Talker {
    start_with(name, arguments, &[])
}

pub fn start_with(name: &str, arguments: &[&str], variables: &[(&str, String)]) -> Talker {
    let named = std::env::var_os(PYTHON).filter(|python| !python.is_empty());
    let python = named.unwrap_or_else(|| {
        panic!(
            "this test needs PyTorch: run `cargo xtask test --with-torch`, or name a Python that \
             can import torch in {PYTHON}"
        )
    });
    let script = std::path::absolute("tests/torch").unwrap().join(name);
    Talker::start(
        Command::new(python)
            .arg(script)
            .args(arguments)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            // Gloo looks up the host's own name otherwise, which not every machine can resolve.
            .env("GLOO_SOCKET_IFNAME", "lo")
            .envs(variables.iter().map(|(name, value)| (*name, value))),
    )
}
