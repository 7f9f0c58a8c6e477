//! A process that a test talks to, line by line.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::Value;

/// A process that reads lines of JSON and writes lines. It is killed when this is dropped.
pub struct Talker {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Talker {
    /// Starts it.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn start(command: &mut Command) -> Self {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the process starts");
        let output = child.stdout.take().expect("its output is a pipe");
        Self {
            input: child.stdin.take(),
            output: BufReader::new(output),
            child,
        }
    }

    /// Writes a line.
    ///
    /// # Panics
    /// When it does not read any more.
    pub fn tell(&mut self, order: &Value) {
        let input = self.input.as_mut().expect("its input is a pipe");
        writeln!(input, "{order}").expect("it reads");
    }

    /// The next line that it writes.
    ///
    /// # Panics
    /// When its output cannot be read.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("its output");
        line
    }

    /// The next line that it writes, which is JSON.
    ///
    /// # Panics
    /// With the line, when it is none.
    pub fn answer(&mut self) -> Value {
        let line = self.line();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: `{line}`"))
    }

    /// Ends its input; it ends by itself, with success.
    ///
    /// # Panics
    /// When it fails.
    pub fn finish(mut self) {
        drop(self.input.take());
        let status = self.child.wait().expect("a child can be waited for");
        assert!(status.success(), "{status}");
    }
}

impl Drop for Talker {
    fn drop(&mut self) {
        // Nothing is left to end where the test has passed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
