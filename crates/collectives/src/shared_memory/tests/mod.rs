//! The segment, its rings and its doorbells.
//!
//! `cargo xtask races` runs two of these modules again, each where it sees more:
//!
//! - `models`, with loom in place of the machine. It fails if any one of the four orderings of the
//!   positions, either of the two fences or the wake-up of the doorbell is taken away or weakened.
//! - `streams`, under ThreadSanitizer. It fails if any one of the four orderings of the positions is
//!   weakened. It does not see fences and futexes. What it reports of the test harness, which
//!   is not built for it, is suppressed (`thread_sanitizer.txt`); no report about Everburn is.

#[cfg(loom)]
mod models;
#[cfg(not(loom))]
mod rings;
#[cfg(all(target_os = "linux", not(loom)))]
mod segments;
#[cfg(not(loom))]
mod streams;

/// Longer than anything here takes, so that a hang fails instead of hanging the suite.
#[cfg(not(loom))]
const GENEROUS: std::time::Duration = std::time::Duration::from_secs(60);
