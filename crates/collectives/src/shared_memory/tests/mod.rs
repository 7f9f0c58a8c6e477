//! The segment, its rings and its doorbells.

#[cfg(not(loom))]
mod rings;
