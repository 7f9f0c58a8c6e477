//! Puts a terminal back in order after a dashboard that could not do so itself.

use std::io::{IsTerminal, Write};

use rustix::process::getpgrp;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr};

/// Leave the alternate screen, stop reporting the mouse and pasted text, show the cursor, forget
/// colours: what any terminal interface may have switched on.
const LEAVE_DASHBOARD: &[u8] = b"\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?1015l\
    \x1b[?2004l\x1b[?1049l\x1b[?25h\x1b[0m";

/// Whether a dashboard can be drawn: a terminal on both sides, and this process in its foreground
/// (from the background the first read would stop it).
pub(crate) fn can_show_dashboard() -> bool {
    let stdin = std::io::stdin();
    stdin.is_terminal()
        && std::io::stdout().is_terminal()
        && tcgetpgrp(&stdin).is_ok_and(|foreground| foreground == getpgrp())
}

/// The terminal's settings at the time this was made.
pub(crate) struct SavedTerminal {
    settings: Termios,
}

impl SavedTerminal {
    /// `None` when standard input is no terminal.
    pub(crate) fn of_stdin() -> Option<Self> {
        tcgetattr(std::io::stdin())
            .ok()
            .map(|settings| Self { settings })
    }

    /// Restores the settings. What the screen shows is put in order only where the settings tell
    /// that a dashboard was left behind, or `left_behind` does: on a screen that is in order,
    /// leaving the alternate screen would move the cursor.
    ///
    /// Errors are of no use to anyone here: the terminal may have been closed.
    pub(crate) fn restore(&self, left_behind: bool) {
        let stdin = std::io::stdin();
        let raw = tcgetattr(&stdin).is_ok_and(|now| now.local_modes != self.settings.local_modes);
        if !raw && !left_behind {
            return;
        }
        let _ = tcsetattr(&stdin, OptionalActions::Drain, &self.settings);
        let mut stdout = std::io::stdout().lock();
        let _ = stdout
            .write_all(LEAVE_DASHBOARD)
            .and_then(|()| stdout.flush());
    }
}
