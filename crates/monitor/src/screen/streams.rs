//! The process' own standard streams, and what stands in their place.

use std::fs::File;
use std::io::{self, PipeReader};
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard};

use super::pseudo_terminal::PseudoTerminal;

/// The terminal behind standard input and output, whatever stands in their place.
pub(super) struct OwnStreams {
    input: File,
    output: File,
    /// What a dashboard has said after its end.
    said: Mutex<Vec<u8>>,
}

impl OwnStreams {
    pub(super) fn duplicate() -> io::Result<Self> {
        let duplicate = |fd| rustix::io::fcntl_dupfd_cloexec(fd, 3).map(File::from);
        Ok(Self {
            input: duplicate(rustix::stdio::stdin())?,
            output: duplicate(rustix::stdio::stdout())?,
            said: Mutex::default(),
        })
    }

    pub(super) fn input(&self) -> &File {
        &self.input
    }

    pub(super) fn output(&self) -> &File {
        &self.output
    }

    pub(super) fn said(&self) -> MutexGuard<'_, Vec<u8>> {
        super::lock(&self.said)
    }
}

/// Standard input is a pseudo terminal and standard output a pipe, until this is dropped.
pub(super) struct Redirected {
    input: OwnedFd,
    output: OwnedFd,
}

impl Redirected {
    /// Puts them there; returns the end of the pipe from which to read.
    pub(super) fn to(terminal: &PseudoTerminal) -> io::Result<(Self, PipeReader)> {
        let (read, write) = io::pipe()?;
        let this = Self {
            input: rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?,
            output: rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?,
        };
        rustix::stdio::dup2_stdin(terminal.inner())?;
        rustix::stdio::dup2_stdout(&write)?;
        Ok((this, read))
    }
}

impl Drop for Redirected {
    fn drop(&mut self) {
        use std::io::Write;
        // What is not written through yet belongs to the pipe. Errors leave things as they are: nothing better is left to do.
        let _ = io::stdout().flush();
        let _ = rustix::stdio::dup2_stdin(&self.input);
        let _ = rustix::stdio::dup2_stdout(&self.output);
    }
}
