//! Scripts of this folder, run by the Python that has PyTorch, each with a deadline.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

/// Loading PyTorch alone takes seconds, and many times that on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(240);

/// Names the Python, as for the benchmarks.
const PYTHON: &str = "EVERBURN_PYTHON";

/// How often a process that should be ending is looked at.
const LOOK: Duration = Duration::from_millis(10);

fn python() -> OsString {
    let named = std::env::var_os(PYTHON).filter(|python| !python.is_empty());
    named.unwrap_or_else(|| {
        panic!(
            "this test needs PyTorch: run `cargo xtask test --with-torch`, or name a Python that \
             can import torch in {PYTHON}"
        )
    })
}

fn folder() -> PathBuf {
    std::path::absolute("tests/torch").unwrap()
}

/// A script under way; it is killed with its value.
pub struct Script {
    name: &'static str,
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Script {
    pub fn start(name: &'static str, arguments: &[&str]) -> Self {
        Self::start_with(name, arguments, &[])
    }

    pub fn start_with(
        name: &'static str,
        arguments: &[&str],
        variables: &[(&str, String)],
    ) -> Self {
        let mut child = Command::new(python())
            .arg(folder().join(name))
            .args(arguments)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            // Gloo looks up the host's own name otherwise, which not every machine can resolve.
            .env("GLOO_SOCKET_IFNAME", "lo")
            .envs(variables.iter().map(|(name, value)| (*name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self {
            name,
            child,
            input,
            lines,
        }
    }

    /// The next line that the script prints.
    pub fn line(&self) -> String {
        let line = self.lines.recv_timeout(PATIENCE);
        line.unwrap_or_else(|error| panic!("{} has said nothing: {error}", self.name))
    }

    /// Ends the script's input; it has to end by itself, without an error.
    pub fn finish(mut self) {
        drop(self.input.take());
        let start = Instant::now();
        let status = loop {
            match self.child.try_wait().unwrap() {
                Some(status) => break status,
                None if start.elapsed() < PATIENCE => thread::sleep(LOOK),
                None => panic!("{} has not ended within {PATIENCE:?}", self.name),
            }
        };
        assert!(status.success(), "{}: {status}", self.name);
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        // Nothing is left to end where the test has passed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
