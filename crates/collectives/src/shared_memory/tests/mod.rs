//! The segment, its rings and its doorbells.

#[cfg(loom)]
mod models;
#[cfg(not(loom))]
mod rings;
#[cfg(all(target_os = "linux", not(loom)))]
mod segments;
