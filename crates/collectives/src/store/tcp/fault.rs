//! Why a connection to a store failed.

use std::io;

use everburn_auth::AuthError;

/// Why a connection failed; it is of no use afterwards, except after a `Timeout` while waiting.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    #[error("no answer came in time")]
    Timeout,
    #[error("the server closed the connection")]
    Closed,
    #[error("{0}")]
    Io(io::Error),
    #[error("{0}")]
    Protocol(String),
    /// The host's name has no address.
    #[error("{0}")]
    UnknownName(String),
    #[error(
        "the store requires a job token and this process has none; set the same EVERBURN_JOB_TOKEN on \
         every machine (or use `StoreAccess::Token`)"
    )]
    NeedsToken,
    #[error(
        "the job token of the store does not match that of this process; set the same \
         EVERBURN_JOB_TOKEN on every machine, and check that the address is that of this job's store"
    )]
    WrongSecret,
    #[error(
        "the store is open (like PyTorch's) and has no job token, and this process expects one of it; set \
         EVERBURN_OPEN_STORE=1 here too (`LaunchConfig::open_store` for Everburn's launcher), or correct the address"
    )]
    OpenStore,
}

impl From<AuthError> for Fault {
    fn from(error: AuthError) -> Self {
        match error {
            AuthError::WrongSecret => Self::WrongSecret,
            error => Self::Io(io::Error::other(error)),
        }
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Self::Timeout,
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe => Self::Closed,
            _ => Self::Io(error),
        }
    }
}
