//! A process whose lines a test reads.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use serde_json::Value;

use crate::wait::{DEADLINE, holds_within};

/// A process that writes lines until its input ends. It is killed when this is dropped.
pub struct Talker {
    child: Child,
    input: Option<ChildStdin>,
    /// Its lines.
    output: Receiver<String>,
}

impl Talker {
    /// Starts it.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn start(command: &mut Command) -> Self {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the process starts");
        let lines = child.stdout.take().expect("its output is a pipe");
        let lines = BufReader::new(lines).lines();
        let (read, output) = channel();
        thread::spawn(move || {
            let mut lines = lines.map_while(Result::ok);
            lines.try_for_each(|line| read.send(line))
        });
        Self {
            input: child.stdin.take(),
            child,
            output,
        }
    }

    /// The next line that it writes.
    ///
    /// # Panics
    /// When none comes within [`DEADLINE`].
    pub fn line(&mut self) -> String {
        self.output.recv_timeout(DEADLINE).expect("a line")
    }

    /// The next line that it writes, which is JSON.
    ///
    /// # Panics
    /// With the line, when it is none; as [`line`](Self::line).
    pub fn answer(&mut self) -> Value {
        let line = self.line();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: `{line}`"))
    }

    /// Ends its input; it ends by itself, with success.
    ///
    /// # Panics
    /// When it fails, or does not end within [`DEADLINE`].
    pub fn finish(mut self) {
        drop(self.input.take());
        let mut ended = None;
        holds_within(DEADLINE, || {
            ended = self.child.try_wait().expect("a child can be waited for");
            ended.is_some()
        });
        assert!(ended.is_some_and(|status| status.success()), "{ended:?}");
    }
}

impl Drop for Talker {
    fn drop(&mut self) {
        // Nothing is left to end where the test has passed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
