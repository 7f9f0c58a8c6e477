//! What can go wrong with shared memory, and what that usually means.

use std::io;

/// Why memory could not be shared.
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
        /// Ranks of this machine.
        ranks: u64,
        /// Bytes of each ring.
        capacity: u64,
        /// What they break.
        limit: &'static str,
    },
    /// The operating system refused to make it.
    #[error("shared memory of {bytes} bytes could not be {step}: {source}; {advice}")]
    Create {
        /// How large it was to be.
        bytes: usize,
        /// What failed, as a participle.
        step: &'static str,
        /// What to check.
        advice: &'static str,
        /// What the operating system said.
        source: io::Error,
    },
    /// Another process's memory could not be opened.
    #[error(
        "descriptor {descriptor} of process {pid}, announced as shared memory, could not be \
         {step}: {source}; {meaning}"
    )]
    Unreachable {
        /// The process that made the memory.
        pid: u32,
        descriptor: i32,
        /// What failed, as a participle.
        step: &'static str,
        meaning: &'static str,
        /// What the operating system said.
        source: io::Error,
    },
    /// There is something, but not what was announced.
    #[error(
        "descriptor {descriptor} of process {pid} is not the shared memory that was announced: \
         {what}; usually the ranks are in different PID namespaces (containers), where the same \
         number is another process, or run different versions"
    )]
    Foreign {
        /// The process number that was announced.
        pid: u32,
        descriptor: i32,
        /// What is wrong with it.
        what: String,
    },
    /// No such ring or doorbell.
    #[error("there is no ring from rank {from} to rank {to} in shared memory of {ranks} ranks")]
    NoSuchRing {
        /// The sending rank of this machine.
        from: usize,
        /// The receiving rank of this machine.
        to: usize,
        /// Ranks of this machine.
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
        /// The sending rank of this machine.
        from: usize,
        /// The receiving rank of this machine.
        to: usize,
    },
}

/// The other side of a ring has written nonsense.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the ring from rank {from} to rank {to} in shared memory is broken: its position `{position}` \
     is {found} and must be between {lowest} and {highest}; the other rank's memory is damaged or \
     it runs another version"
)]
pub(crate) struct RingError {
    /// The sending rank of this machine.
    pub(crate) from: usize,
    /// The receiving rank of this machine.
    pub(crate) to: usize,
    /// Which of the two positions: `written` or `consumed`.
    pub(crate) position: &'static str,
    /// What it was.
    pub(crate) found: u64,
    /// The least that it can be.
    pub(crate) lowest: u64,
    /// The most that it can be.
    pub(crate) highest: u64,
}
