//! The process' own standard streams, and what is in their place.

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard};

use super::pseudo_terminal::PseudoTerminal;

/// The terminal after standard input and output, whatever is in their place.
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
        everburn_record::sync::lock(&self.said)
    }
}

/// How fast a dashboard may paint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pace {
    /// As it likes.
    Free,
    /// As fast as its picture is read: else it paints ten times per second for nobody.
    OfTheReader,
}

impl Pace {
    fn pipe(self) -> io::Result<(PipeReader, PipeWriter)> {
        #[cfg(target_os = "linux")]
        if self == Self::OfTheReader {
            use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

            // A page holds one write in packet mode, and a pipe of one page no second one before that is read.
            let (read, write) = pipe_with(PipeFlags::DIRECT | PipeFlags::CLOEXEC)?;
            fcntl_setpipe_size(&write, 1)?;
            return Ok((read.into(), write.into()));
        }
        io::pipe()
    }
}

/// Standard input is a pseudo terminal and standard output a pipe, until this is dropped.
pub(super) struct Redirected {
    input: OwnedFd,
    output: OwnedFd,
}

impl Redirected {
    /// Puts them there; returns the end of the pipe from which to read.
    pub(super) fn to(terminal: &PseudoTerminal, pace: Pace) -> io::Result<(Self, PipeReader)> {
        let (read, write) = pace.pipe()?;
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

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io::{Read, Write};

    use rustix::io::Errno;

    use super::*;

    #[test]
    fn who_paints_at_the_readers_pace_waits_for_it() {
        let (mut read, mut write) = Pace::OfTheReader.pipe().unwrap();
        rustix::io::ioctl_fionbio(&write, true).unwrap();
        write.write_all(b"one").unwrap();
        let full = rustix::io::write(&write, b"two").unwrap_err();
        assert_eq!(full, Errno::AGAIN);
        let mut bytes = [0; 64];
        assert_eq!(read.read(&mut bytes).unwrap(), 3);
        write.write_all(b"two").unwrap();
        assert_eq!(read.read(&mut bytes).unwrap(), 3);
        assert_eq!(&bytes[..3], b"two");
    }
}
