//! A namespace of mounts.

#![cfg_attr(
    target_os = "linux",
    expect(
        unsafe_code,
        reason = "threads may leave a table of files by the same call"
    )
)]

use std::io;

/// Moves this thread, and all processes that it starts from now on, to a mount namespace that ends with them. What is
/// mounted there is still seen elsewhere until mounts are made private.
#[cfg(target_os = "linux")]
pub(super) fn enter() -> io::Result<()> {
    use rustix::thread::{UnshareFlags, unshare_unsafe};

    // SAFETY: only with `FILES` would descriptors of other threads lose their meaning.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }?;
    Ok(())
}

#[cfg(not(target_os = "linux"))]
pub(super) fn enter() -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
