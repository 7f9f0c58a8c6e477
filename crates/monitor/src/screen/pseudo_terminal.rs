//! A pseudo terminal, pty(7): what a dashboard takes for its keyboard.

#![expect(
    unsafe_code,
    reason = "rustix has pseudo terminals only with a feature that would build Burn anew"
)]

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

use rustix::fs::OFlags;
use rustix::ioctl::{Getter, Setter, ioctl, opcode};

/// `TIOCSPTLCK` of ioctl_tty(2): takes the address of a number; 0 lets the inner end be opened.
const LOCK: rustix::ioctl::Opcode = opcode::write::<i32>(b'T', 0x31);

/// `TIOCGPTN`: gives the number of the inner end in `/dev/pts`.
const NUMBER: rustix::ioctl::Opcode = opcode::read::<u32>(b'T', 0x30);

/// Both ends of a pseudo terminal.
pub(super) struct PseudoTerminal {
    outer: File,
    inner: File,
}

impl PseudoTerminal {
    pub(super) fn open() -> io::Result<Self> {
        let flags = OFlags::NOCTTY | OFlags::CLOEXEC;
        let open = |path: &str, flags: OFlags| {
            let mut options = OpenOptions::new();
            options.read(true).write(true);
            options.custom_flags(flags.bits() as i32).open(path)
        };
        // A dashboard that does not read its keys must not hold up the screen.
        let outer = open("/dev/ptmx", flags | OFlags::NONBLOCK)?;
        // SAFETY: the kernel reads one `int` at the address that `Setter` gives it.
        unsafe { ioctl(&outer, Setter::<LOCK, i32>::new(0)) }?;
        // SAFETY: the kernel writes one `unsigned int` to the address that `Getter` gives it.
        let number = unsafe { ioctl(&outer, Getter::<NUMBER, u32>::new()) }?;
        let inner = open(&format!("/dev/pts/{number}"), flags)?;
        Ok(Self { outer, inner })
    }

    /// The end that looks like a terminal.
    pub(super) fn inner(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }

    /// Types something. Keys that nobody reads are lost, as on any keyboard.
    pub(super) fn type_in(&mut self, bytes: &[u8]) {
        if let Err(error) = self.outer.write_all(bytes) {
            tracing::debug!("a key is lost: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use rustix::termios::{OptionalActions, isatty, tcgetattr, tcsetattr};

    use super::*;

    #[test]
    fn what_is_typed_is_read_by_what_takes_it_for_a_terminal() {
        let mut terminal = PseudoTerminal::open().unwrap();
        assert!(isatty(terminal.inner()));
        let mut modes = tcgetattr(terminal.inner()).unwrap();
        modes.make_raw();
        tcsetattr(terminal.inner(), OptionalActions::Now, &modes).unwrap();
        terminal.type_in(b"q\x1b[A");
        let mut bytes = [0; 4];
        terminal.inner.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"q\x1b[A");
        // More than the kernel keeps does not wait for a reader.
        terminal.type_in(&[b'x'; 1 << 16]);
    }
}
