//! What could have been installed. In CI a skip for lack of it is a failure.

use std::fmt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A package that a skipped step or test needs.
///
/// It could have been installed if its installer is there and the installer's source offers the package now: a mirror that
/// is away, or a user who may not install, leaves the skip as it is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Package {
    Apt(String),
    Cargo(String),
    Pip(String),
    /// Data of the tests, which CI has to bring: no installer is asked.
    Data,
}

/// An answer of a source of packages takes seconds. A source that is silent for longer is away.
const PATIENCE: Duration = Duration::from_secs(60);

const LOOK_EVERY: Duration = Duration::from_millis(20);

impl Package {
    /// Reads what a test has written: an installer and a package, as in `apt-get tmux`, or `data`.
    pub(super) fn read(words: &str) -> Option<Self> {
        let (installer, name) = words.split_once(' ').unwrap_or((words, ""));
        match (installer, name) {
            ("data", "") => Some(Self::Data),
            (_, "") => None,
            ("apt-get", name) => Some(Self::Apt(name.to_owned())),
            ("cargo", name) => Some(Self::Cargo(name.to_owned())),
            ("pip", name) => Some(Self::Pip(name.to_owned())),
            _ => None,
        }
    }

    /// Whether it could be installed now. Nothing is installed, but `apt-get` renews its lists.
    pub(super) fn is_offered(&self) -> bool {
        let mut questions = self.questions();
        questions.iter_mut().all(|one| ends_well(one, PATIENCE))
    }

    /// The commands that end well if it could be installed. Data has none.
    fn questions(&self) -> Vec<Command> {
        let command = |program, words: &[&str], name: &[&str]| {
            let mut command = Command::new(program);
            // Outside of the workspace, whose lock file would answer.
            command
                .args(words)
                .args(name)
                .current_dir(std::env::temp_dir());
            command
        };
        match self {
            Self::Data => Vec::new(),
            Self::Apt(name) => {
                // It fails for a user who may not install.
                let lists = ["-qq", "-o", "APT::Update::Error-Mode=any", "update"];
                let install = ["-qq", "--simulate", "install"];
                vec![
                    command("apt-get", &lists, &[]),
                    command("apt-get", &install, &[name]),
                ]
            }
            Self::Cargo(name) => {
                let mut question = command("cargo", &["info", "--quiet"], &[name]);
                question.env("CARGO_NET_RETRY", "1");
                vec![question]
            }
            Self::Pip(name) => {
                let words = ["-m", "pip", "index", "versions", "--retries", "1"];
                vec![command("python3", &words, &[name])]
            }
        }
    }
}

impl fmt::Display for Package {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Apt(name) => write!(f, "`apt-get install {name}`"),
            Self::Cargo(name) => write!(f, "`cargo install {name}`"),
            Self::Pip(name) => write!(f, "`pip install {name}`"),
            Self::Data => write!(f, "EVERBURN_DATA_DIR names the data of the tests"),
        }
    }
}

/// Whether `command` can be started and ends within `patience` without a failure. What it prints is not shown.
pub(super) fn ends_well(command: &mut Command, patience: Duration) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let Ok(mut child) = command.spawn() else {
        return false;
    };
    let end = Instant::now() + patience;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return status.success(),
            Ok(None) if Instant::now() < end => std::thread::sleep(LOOK_EVERY),
            // It has no answer in time; nobody is interested in one that comes later.
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                return false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_tests_write_is_read() {
        let read = |words| Package::read(words).map(|package| package.to_string());
        assert_eq!(
            read("apt-get tmux").as_deref(),
            Some("`apt-get install tmux`")
        );
        assert_eq!(
            read("cargo mdbook").as_deref(),
            Some("`cargo install mdbook`")
        );
        assert_eq!(read("pip typos").as_deref(), Some("`pip install typos`"));
        assert_eq!(Package::read("data"), Some(Package::Data));
        for words in ["", "apt-get", "apt-get ", "tmux", "brew tmux"] {
            assert_eq!(Package::read(words), None, "{words:?}");
        }
    }

    #[test]
    fn the_sources_are_asked_and_nothing_is_installed() {
        let asked = |words| -> Vec<String> {
            let package = Package::read(words).unwrap();
            let line = |command: &Command| {
                let words = command.get_args().map(|word| word.to_string_lossy());
                let words: Vec<_> = std::iter::once(command.get_program().to_string_lossy())
                    .chain(words)
                    .collect();
                words.join(" ")
            };
            package.questions().iter().map(line).collect()
        };
        assert_eq!(
            asked("apt-get tmux"),
            [
                "apt-get -qq -o APT::Update::Error-Mode=any update",
                "apt-get -qq --simulate install tmux"
            ]
        );
        assert_eq!(asked("cargo mdbook"), ["cargo info --quiet mdbook"]);
        assert_eq!(
            asked("pip typos"),
            ["python3 -m pip index versions --retries 1 typos"]
        );
        // CI has to bring it.
        assert!(Package::Data.is_offered());
    }

    #[test]
    fn a_command_ends_well_or_fails_or_is_ended() {
        let shell =
            |script: &str, patience| ends_well(Command::new("sh").args(["-c", script]), patience);
        assert!(shell("exit 0", PATIENCE));
        assert!(!shell("exit 1", PATIENCE));
        assert!(!shell("exec sleep 1000", LOOK_EVERY));
        assert!(!ends_well(
            &mut Command::new("everburn-no-such-program"),
            PATIENCE
        ));
    }
}
