//! What NCCL answers.

use std::ffi::c_int;
use std::fmt;

/// An answer of NCCL: `ncclResult_t`.
///
/// ```
/// # mod everburn { pub use everburn_nccl as nccl; }
/// use everburn::nccl::Status;
///
/// assert_eq!(Status::from_code(6), Status::RemoteError);
/// assert_eq!(Status::RemoteError.to_string(), "ncclRemoteError");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Status {
    /// All is well.
    Success,
    /// A call of CUDA has failed.
    UnhandledCudaError,
    /// A call of the operating system has failed.
    SystemError,
    /// A fault of NCCL, or damaged memory.
    InternalError,
    /// An argument that can never do.
    InvalidArgument,
    /// A call where it is not allowed.
    InvalidUsage,
    /// Another process has ended, or the network has failed.
    RemoteError,
    /// Under way: ask again.
    InProgress,
    /// NCCL's own deadline has passed (2.31 and later).
    Timeout,
    /// An answer that this version of Everburn does not know.
    Other(i32),
}

impl Status {
    /// The answer with NCCL's number for it.
    #[must_use]
    pub const fn from_code(code: c_int) -> Self {
        match code {
            0 => Self::Success,
            1 => Self::UnhandledCudaError,
            2 => Self::SystemError,
            3 => Self::InternalError,
            4 => Self::InvalidArgument,
            5 => Self::InvalidUsage,
            6 => Self::RemoteError,
            7 => Self::InProgress,
            8 => Self::Timeout,
            other => Self::Other(other),
        }
    }

    /// Whether nothing is wrong.
    #[must_use]
    pub const fn is_well(self) -> bool {
        matches!(self, Self::Success | Self::InProgress)
    }

    /// This answer, NCCL's own words about it, if there are any, and what to check.
    pub(crate) fn describe(self, detail: &str) -> String {
        let advice = self.advice();
        match detail {
            "" => format!("NCCL answered {self}; {advice}"),
            detail => format!("NCCL answered {self} ({detail}); {advice}"),
        }
    }

    /// What to check after it.
    #[must_use]
    pub const fn advice(self) -> &'static str {
        match self {
            Self::UnhandledCudaError => {
                "look for an earlier error of this GPU, and for Xid in `dmesg`; NCCL_DEBUG=INFO shows which call failed"
            }
            Self::SystemError => {
                "check shared memory (`df /dev/shm`, in a container --shm-size), `ulimit -l` and the \
                 network interfaces (NCCL_SOCKET_IFNAME); NCCL_DEBUG=INFO shows which call failed"
            }
            Self::RemoteError => {
                "look at the logs of the other ranks for the first error, and check the network \
                 between the machines"
            }
            Self::InvalidArgument | Self::InvalidUsage => {
                "check that all ranks make the same calls with the same arguments, and that no two \
                 share a GPU; NCCL_DEBUG=WARN names the argument"
            }
            _ => "run again with NCCL_DEBUG=INFO, which shows where it happens",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Success => "ncclSuccess",
            Self::UnhandledCudaError => "ncclUnhandledCudaError",
            Self::SystemError => "ncclSystemError",
            Self::InternalError => "ncclInternalError",
            Self::InvalidArgument => "ncclInvalidArgument",
            Self::InvalidUsage => "ncclInvalidUsage",
            Self::RemoteError => "ncclRemoteError",
            Self::InProgress => "ncclInProgress",
            Self::Timeout => "ncclTimeout",
            Self::Other(code) => return write!(f, "ncclResult_t {code}"),
        })
    }
}
