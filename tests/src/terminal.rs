//! A shell in a terminal of tmux.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::everburn::{binary, surround};
use crate::processes::{Process, kill_marked, new_mark, processes_marked};
use crate::skip::skip_missing;
use crate::wait::{DEADLINE, holds_within};

/// A shell in a tmux server of its own, 120 columns by 35 lines. All of it is killed when this is
/// dropped.
pub struct Terminal {
    folder: PathBuf,
    mark: String,
}

impl Terminal {
    /// A shell in `folder`; `None`, visibly, where there is no tmux. `what` is what is skipped then.
    ///
    /// # Panics
    /// When tmux does not start.
    pub fn open_or_skip(folder: &Path, what: &str) -> Option<Self> {
        Self::open_sized_or_skip(folder, (120, 35), what)
    }

    /// The same with another size, in columns and lines.
    ///
    /// # Panics
    /// When tmux does not start.
    pub fn open_sized_or_skip(
        folder: &Path,
        (columns, lines): (u16, u16),
        what: &str,
    ) -> Option<Self> {
        let version = Command::new("tmux")
            .arg("-V")
            .stdout(Stdio::null())
            .status();
        if version.is_err() {
            skip_missing(what, "there is no tmux", "tmux");
            return None;
        }
        let this = Self {
            folder: folder.to_path_buf(),
            mark: new_mark(),
        };
        this.tmux(&[
            "new-session",
            "-d",
            "-x",
            &columns.to_string(),
            "-y",
            &lines.to_string(),
            "-s",
            "shell",
            "/bin/sh",
        ]);
        Some(this)
    }

    fn tmux(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("tmux");
        surround(&mut command, &self.folder, &self.mark);
        let output = command
            .args(["-u", "-f", "/dev/null", "-L", &self.mark])
            .args(arguments)
            .env("TMUX_TMPDIR", &self.folder)
            .output()
            .expect("tmux can be started");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "tmux {arguments:?}: {error}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Changes its size.
    pub fn resize(&self, (columns, lines): (u16, u16)) {
        let (columns, lines) = (columns.to_string(), lines.to_string());
        self.tmux(&["resize-window", "-t", "shell", "-x", &columns, "-y", &lines]);
    }

    /// Kills the programs that were started from this terminal with the argument `argument`.
    pub fn kill_programs(&self, argument: &str) {
        for process in processes_marked(&self.mark) {
            let line = process.file("cmdline");
            if line.split(' ').any(|word| word == argument) {
                process.signal(rustix::process::Signal::KILL);
            }
        }
    }

    /// Closes the terminal, as its window's button does, and waits until what was started in it has ended.
    ///
    /// # Panics
    /// When something runs on.
    pub fn close(&self) {
        self.tmux(&["kill-server"]);
        let ended = holds_within(DEADLINE, || processes_marked(&self.mark).is_empty());
        assert!(ended, "a program outlives its terminal");
    }

    /// Types `text` and presses return.
    pub fn enter(&self, text: &str) {
        self.tmux(&["send-keys", "-t", "shell", "-l", text]);
        self.press("Enter");
    }

    /// Types a command line of the binary, `everburn <arguments>`, after the first prompt.
    ///
    /// # Panics
    /// When there is no prompt, or no binary.
    pub fn enter_everburn(&self, arguments: &str) {
        self.wait_for("a prompt", |screen| !screen.trim().is_empty());
        let program = std::path::absolute(binary()).expect("a path that is not empty");
        self.enter(&format!("'{}' {arguments}", program.display()));
    }

    /// Presses a key by tmux's name for it, `C-c` say.
    pub fn press(&self, key: &str) {
        self.tmux(&["send-keys", "-t", "shell", key]);
    }

    /// What the screen shows.
    pub fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p", "-t", "shell"])
    }

    /// A property of the terminal, by tmux's name for it.
    pub fn property(&self, name: &str) -> String {
        let format = format!("#{{{name}}}");
        let answer = self.tmux(&["display-message", "-p", "-t", "shell", &format]);
        answer.trim().to_string()
    }

    /// Waits until the screen shows something, and returns it.
    ///
    /// # Panics
    /// With the screen, when it does not within the deadline.
    pub fn wait_for(&self, what: &str, mut shown: impl FnMut(&str) -> bool) -> String {
        let mut screen = String::new();
        let done = holds_within(DEADLINE, || {
            screen = self.screen();
            shown(&screen)
        });
        assert!(done, "the terminal never showed {what}:\n{screen}");
        screen
    }

    /// The ranks that live and were started from this terminal.
    pub fn ranks(&self) -> Vec<Process> {
        let mut processes = processes_marked(&self.mark);
        processes.retain(|process| process.rank.is_some());
        processes
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        kill_marked(&self.mark);
    }
}
