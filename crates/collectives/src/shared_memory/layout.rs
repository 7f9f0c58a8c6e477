//! Where everything is in a segment.
//!
//! ```text
//! 0                 header, one page: magic, version, ranks, capacity, bytes, nonce
//! PAGE              doorbells, one LINE for each rank
//! ..                for each ring one LINE that its receiver reads: written, the receiver's claim
//! ..                for each ring one LINE that its sender reads: consumed, the sender's claim
//! a multiple of     data of each ring, `capacity` bytes
//! PAGE
//! ```
//!
//! A rank has no ring to itself. What a rank reads of all its rings is in one piece: rings are numbered by receiver, then
//! sender, but for what their senders read. Otherwise each of 256 ranks would map most of the segment, by the pages that
//! the kernel maps around each one that is read.

use super::SegmentError;

/// What data are aligned to; a multiple of every element's size and of the cache line, and the
/// page of most machines (larger pages only cost the kernel a split).
pub(super) const PAGE: usize = 4096;

/// Two cache lines: processors fetch lines in pairs, and what two cores write must not share one.
pub(super) const LINE: usize = 128;

/// More ranks than any machine has; bounds the arithmetic below.
const MAX_RANKS: u64 = 1024;

/// Models are checked by trying every interleaving, which allows for a few bytes only.
const MIN_CAPACITY: u64 = if cfg!(loom) { 4 } else { PAGE as u64 };

/// Far above any useful ring; bounds the arithmetic below.
const MAX_CAPACITY: u64 = 1 << 30;

/// More than machines have, and still a number that the kernel takes as a file's length.
const MAX_BYTES: u64 = 1 << 40;

/// The number of ranks and the size of their rings, checked, and all places that follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Ranks of this machine.
    pub(super) ranks: usize,
    /// Bytes of each ring.
    pub(super) capacity: usize,
    /// Where data begin; before it are only the header and words that are used atomically.
    pub(super) data_start: usize,
    /// Bytes of all, a multiple of the page.
    pub(super) bytes: usize,
}

/// The places of one ring, in bytes from the start of the segment.
#[derive(Debug, Clone, Copy)]
pub(super) struct RingPlace {
    pub(super) written: usize,
    pub(super) consumed: usize,
    pub(super) sender_claim: usize,
    pub(super) receiver_claim: usize,
    pub(super) data: usize,
}

impl Layout {
    /// Rings of `capacity` bytes, a power of two of at least a page, between each two of `ranks`
    /// ranks.
    ///
    /// # Errors
    /// [`SegmentError::Layout`] for other numbers, or if they make more memory than there can be.
    pub(crate) fn new(ranks: usize, capacity: usize) -> Result<Self, SegmentError> {
        Self::checked(ranks as u64, capacity as u64)
    }

    /// The same from numbers that may come from elsewhere.
    pub(super) fn checked(ranks: u64, capacity: u64) -> Result<Self, SegmentError> {
        let refuse = |limit| SegmentError::Layout {
            ranks,
            capacity,
            limit,
        };
        if !(1..=MAX_RANKS).contains(&ranks) {
            return Err(refuse("the ranks must be 1 to 1024"));
        }
        if !capacity.is_power_of_two() || !(MIN_CAPACITY..=MAX_CAPACITY).contains(&capacity) {
            return Err(refuse(
                "the size of a ring must be a power of two from 4096 to 1073741824",
            ));
        }
        let rings = ranks * (ranks - 1);
        let control = PAGE as u64 + ranks * LINE as u64 + rings * 2 * LINE as u64;
        let data_start = control.next_multiple_of(PAGE as u64);
        let bytes = (data_start + rings * capacity).next_multiple_of(PAGE as u64);
        if bytes > MAX_BYTES {
            return Err(refuse("together they are larger than 1 TiB"));
        }
        let number = |value: u64| {
            usize::try_from(value).map_err(|_| refuse("they are larger than the address space"))
        };
        Ok(Self {
            ranks: number(ranks)?,
            capacity: number(capacity)?,
            data_start: number(data_start)?,
            bytes: number(bytes)?,
        })
    }

    pub(super) fn doorbell(&self, rank: usize) -> Option<usize> {
        (rank < self.ranks).then_some(PAGE + rank * LINE)
    }

    /// The places of the ring that leads from one rank to another.
    pub(super) fn ring(&self, from: usize, to: usize) -> Option<RingPlace> {
        if from >= self.ranks || to >= self.ranks || from == to {
            return None;
        }
        // Of `rank` and its `peer`, among all pairs.
        let number = |rank, peer| rank * (self.ranks - 1) + peer - usize::from(peer > rank);
        let (of_receiver, of_sender) = (number(to, from), number(from, to));
        let rings = self.ranks * (self.ranks - 1);
        let control = PAGE + self.ranks * LINE;
        let written = control + of_receiver * LINE;
        let consumed = control + (rings + of_sender) * LINE;
        Some(RingPlace {
            written,
            consumed,
            sender_claim: consumed + size_of::<u64>(),
            receiver_claim: written + size_of::<u64>(),
            data: self.data_start + of_receiver * self.capacity,
        })
    }
}
