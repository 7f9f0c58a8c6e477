//! How a rank's process ended, in words.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use signal_hook::low_level::signal_name;

/// The exit code by which a rank says "I ended only because another rank did".
///
/// It is `EX_TEMPFAIL` of `sysexits.h`: the same command may work another time.
pub const EXIT_PEER_LOST: i32 = 75;

/// The exit code by which a rank says "I gave up because another one did not answer within the deadline".
///
/// It is `EX_PROTOCOL` of `sysexits.h`: what was to come did not.
pub const EXIT_STALLED: i32 = 76;

/// The exit code by which a rank of an elastic job says "too few others came, or the store did not answer, for as long as I
/// may wait", and a rank of any job "the store was lost while the ranks met". Its launcher does not start it again; the
/// same command may work another time.
///
/// It is `EX_UNAVAILABLE` of `sysexits.h`.
pub const EXIT_UNAVAILABLE: i32 = 69;

/// The exit code by which a rank says "the same run would fail again", so that an elastic launcher
/// does not try: replicas that have diverged, a loss that is not a number, ranks that do not fit together.
///
/// It is `EX_CONFIG` of `sysexits.h`.
pub const EXIT_FAILS_AGAIN: i32 = 78;

/// The exit code of a rank that panicked: that of Rust's own runtime.
pub const EXIT_PANIC: i32 = 101;

/// How a rank's process ended.
///
/// ```
/// # mod everburn { pub use everburn_launch as launch; }
/// use everburn::launch::RankExit;
///
/// assert_eq!(RankExit::Code(3).exit_code(), 3);
/// assert_eq!(RankExit::Signal(9).exit_code(), 137);
/// assert!(RankExit::Signal(11).to_string().contains("SIGSEGV"));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RankExit {
    /// It returned this code.
    Code(i32),
    /// It died of this signal.
    Signal(i32),
}

impl RankExit {
    pub(crate) fn from_status(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Code(code),
            (None, Some(signal)) => Self::Signal(signal),
            // Neither happens only for stopped or continued processes, which are not waited for.
            (None, None) => Self::Code(1),
        }
    }

    /// Whether this is exit code 0. It alone does not prove that the rank has finished.
    #[must_use]
    pub fn is_success(self) -> bool {
        self == Self::Code(0)
    }

    /// What a shell would show in `$?`: the code, or 128 + the signal.
    #[must_use]
    pub fn exit_code(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128 + signal,
        }
    }
}

impl fmt::Display for RankExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Code(0) => f.write_str("ended well"),
            Self::Code(EXIT_PEER_LOST) => {
                write!(
                    f,
                    "ended with exit code {EXIT_PEER_LOST} (it lost another rank)"
                )
            }
            Self::Code(EXIT_STALLED) => {
                write!(
                    f,
                    "ended with exit code {EXIT_STALLED} (a rank did not answer in time)"
                )
            }
            Self::Code(EXIT_PANIC) => write!(f, "ended with exit code {EXIT_PANIC} (a panic)"),
            Self::Code(code) => write!(f, "ended with exit code {code}"),
            Self::Signal(signal) => match signal_name(signal).zip(meaning(signal)) {
                Some((name, meaning)) => write!(f, "was ended by {name}: {meaning}"),
                None => write!(f, "was ended by signal {signal}"),
            },
        }
    }
}

/// What a signal means by which a rank has ended.
fn meaning(signal: i32) -> Option<&'static str> {
    use signal_hook::consts::signal as s;
    Some(match signal {
        s::SIGKILL => "killed by a user, or by the kernel (out of memory)",
        s::SIGSEGV => "it touched memory that is not its own, a bug in native code",
        s::SIGABRT => {
            "it gave up by itself: no memory was left, or a check in native code has failed"
        }
        s::SIGXFSZ => "a file grew beyond the limit of file sizes; raise `ulimit -f`",
        s::SIGBUS => "mapped memory went away; is /dev/shm or the disk full?",
        s::SIGILL => "an instruction that this processor lacks; built for another one?",
        s::SIGFPE => "an integer division by zero or overflow in native code",
        s::SIGTERM => "someone else asked it to end",
        s::SIGINT => "interrupted from the keyboard before it could stop cleanly",
        s::SIGQUIT => "quit from the keyboard",
        s::SIGHUP => "its terminal was closed",
        s::SIGPIPE => "it wrote to a pipe without a reader",
        s::SIGXCPU => "it used up its allotted processor time",
        s::SIGSYS => "a system call that this sandbox forbids",
        _ => return None,
    })
}
