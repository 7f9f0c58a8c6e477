//! What can go wrong with shared memory, and what that usually means.

use std::io;

/// Why memory could not be shared. Ranks are those of this machine.
#[derive(Debug, thiserror::Error)]
#[cfg_attr(
    not(all(target_os = "linux", not(loom))),
    allow(dead_code, reason = "elsewhere there is only `Unavailable`")
)]
pub(crate) enum SegmentError {
    /// Not Linux, or something that does not do all that Linux does.
    #[error("memory shared between processes needs Linux (memfd); use TCP here")]
    Unavailable,
    /// The numbers make no segment.
    #[error("there is no shared memory for {ranks} ranks with rings of {capacity} bytes: {limit}")]
    Layout {
        ranks: u64,
        capacity: u64,
        limit: &'static str,
    },
    /// The operating system refused to make it.
    #[error("shared memory of {bytes} bytes could not be {step}: {source}; {advice}")]
    Create {
        bytes: usize,
        /// What failed, as a participle.
        step: &'static str,
        advice: &'static str,
        source: io::Error,
    },
    /// Another process's memory could not be opened.
    #[error(
        "descriptor {descriptor} of process {pid}, announced as shared memory, could not be \
         {step}: {source}; {meaning}"
    )]
    Unreachable {
        pid: u32,
        descriptor: i32,
        /// What failed, as a participle.
        step: &'static str,
        meaning: &'static str,
        source: io::Error,
    },
    /// There is something, but not what was announced.
    #[error(
        "descriptor {descriptor} of process {pid} is not the shared memory that was announced: \
         {what}; usually the ranks are in different PID namespaces (containers), where the same \
         number is another process, or run different versions"
    )]
    Foreign {
        pid: u32,
        descriptor: i32,
        what: String,
    },
    /// No such ring or doorbell.
    #[error("there is no ring from rank {from} to rank {to} in shared memory of {ranks} ranks")]
    NoSuchRing {
        from: usize,
        to: usize,
        ranks: usize,
    },
    /// An end of a ring was asked for twice.
    #[error(
        "the {end} of the ring from rank {from} to rank {to} in shared memory is taken: two ranks \
         of this machine claim the same number"
    )]
    Taken {
        /// `sender` or `receiver`.
        end: &'static str,
        from: usize,
        to: usize,
    },
}

/// The other side of a ring has written nonsense. Ranks are those of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the ring from rank {from} to rank {to} in shared memory is broken: its position `{position}` \
     is {found} and must be between {lowest} and {highest}; the other rank's memory is damaged or \
     it runs another version"
)]
pub(crate) struct RingError {
    pub(crate) from: usize,
    pub(crate) to: usize,
    /// Which of the two positions: `written` or `consumed`.
    pub(crate) position: &'static str,
    pub(crate) found: u64,
    pub(crate) lowest: u64,
    pub(crate) highest: u64,
}
