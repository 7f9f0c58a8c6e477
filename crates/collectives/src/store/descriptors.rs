//! How many files and sockets this process may have open.

use std::io;

use rustix::process::{Resource, getrlimit, setrlimit};

/// Raises the process's limit of open descriptors (`RLIMIT_NOFILE`) to what the system allows it: the
/// usual 1,024 are fewer than a job of a thousand ranks needs connections. Processes started
/// afterwards inherit the limit.
///
/// A [`TcpStoreServer`](super::TcpStoreServer) does this when it starts.
///
/// # Errors
/// What the system says; the limit is as it was then.
pub fn raise_descriptor_limit() -> io::Result<()> {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return Ok(());
    }
    limit.current = limit.maximum;
    Ok(setrlimit(Resource::Nofile, limit)?)
}
