//! One piece of memory for the ranks of one machine.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::SegmentError;
use super::doorbell::Doorbell;
use super::layout::{Layout, RingPlace};
use super::memfd::{self, Descriptor};
use super::memory::Memory;
use super::ring::{Ring, RingReceiver, RingSender};

/// The most ranks whose rings are mapped before they are used. With more, a collective goes through few of a rank's
/// rings, and the pages of the others would only count as its memory.
const MAPPED_EARLY: usize = 32;

/// Chosen at random by who creates a segment, so that nobody takes another for it.
pub(crate) type Nonce = [u8; 16];

/// Where a segment is found while its creator keeps its descriptor open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Address {
    /// The creator's process, as it sees itself.
    pub(crate) pid: u32,
    pub(crate) descriptor: i32,
}

/// Memory shared by the ranks of one machine, seen from one of them. Ranks are counted here from 0
/// to [`Layout::ranks`], by their place among those of this machine.
///
/// Only the creator has a descriptor: it drops its segment, and closes the descriptor, once all have
/// opened theirs. Rings and doorbells outlive the segment; when the last of them is dropped, the
/// memory is unmapped.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(super) memory: Arc<Memory>,
    pub(super) layout: Layout,
    descriptor: Option<Descriptor>,
}

impl Segment {
    /// Makes a segment. All its memory is there when this returns.
    ///
    /// # Errors
    /// [`SegmentError::Create`] if the operating system refuses, [`SegmentError::Unavailable`] if
    /// it is not Linux.
    pub(crate) fn create(layout: Layout, nonce: Nonce) -> Result<Self, SegmentError> {
        let (memory, descriptor) = memfd::create(&layout, &nonce)?;
        Ok(Self {
            memory: Arc::new(memory),
            layout,
            descriptor: Some(descriptor),
        })
    }

    /// Opens the segment at `address`, made by another process of this machine or by this one.
    ///
    /// # Errors
    /// [`SegmentError::Unreachable`] if it cannot be opened, [`SegmentError::Foreign`] if what was
    /// opened is not a sealed segment with this nonce, [`SegmentError::Unavailable`] if this is not
    /// Linux.
    pub(crate) fn open(address: Address, nonce: Nonce) -> Result<Self, SegmentError> {
        let (memory, layout) = memfd::open(address.pid, address.descriptor, &nonce)?;
        Ok(Self {
            memory: Arc::new(memory),
            layout,
            descriptor: None,
        })
    }

    /// A segment of this process alone, on the heap: for loom and ThreadSanitizer, which know
    /// nothing of mappings.
    #[cfg(test)]
    pub(crate) fn on_heap(layout: Layout) -> Self {
        Self {
            memory: Arc::new(Memory::on_heap(&layout)),
            layout,
            descriptor: None,
        }
    }

    /// How others find it as long as it is not dropped; `None` for who has opened it.
    pub(crate) fn address(&self) -> Option<Address> {
        let descriptor = self.descriptor.as_ref()?.number();
        let pid = std::process::id();
        Some(Address { pid, descriptor })
    }

    /// The sending end of the ring between two ranks. There is one: who asks again, here or in
    /// another process, is refused.
    ///
    /// # Errors
    /// [`SegmentError::NoSuchRing`], [`SegmentError::Taken`].
    pub(crate) fn sender(&self, from: usize, to: usize) -> Result<RingSender, SegmentError> {
        let place = self.place(from, to)?;
        let ring = self.claim(place, place.sender_claim, "sender", from, to)?;
        Ok(RingSender::new(ring))
    }

    /// The receiving end of the ring between two ranks. There is one: who asks again, here or in
    /// another process, is refused.
    ///
    /// # Errors
    /// [`SegmentError::NoSuchRing`], [`SegmentError::Taken`].
    pub(crate) fn receiver(&self, from: usize, to: usize) -> Result<RingReceiver, SegmentError> {
        let place = self.place(from, to)?;
        let ring = self.claim(place, place.receiver_claim, "receiver", from, to)?;
        Ok(RingReceiver::new(ring))
    }

    /// The doorbell on which `rank` sleeps; `None` if there is no such rank.
    pub(crate) fn doorbell(&self, rank: usize) -> Option<Doorbell> {
        let place = self.layout.doorbell(rank)?;
        Some(Doorbell::new(Arc::clone(&self.memory), place))
    }

    fn place(&self, from: usize, to: usize) -> Result<RingPlace, SegmentError> {
        let ranks = self.layout.ranks;
        let place = self.layout.ring(from, to);
        place.ok_or(SegmentError::NoSuchRing { from, to, ranks })
    }

    fn claim(
        &self,
        place: RingPlace,
        claim: usize,
        end: &'static str,
        from: usize,
        to: usize,
    ) -> Result<Ring, SegmentError> {
        if self.memory.word(claim).swap(1, Ordering::Relaxed) != 0 {
            return Err(SegmentError::Taken { end, from, to });
        }
        let capacity = self.layout.capacity;
        if self.layout.ranks <= MAPPED_EARLY {
            self.memory.populate(place.data, capacity);
        }
        Ok(Ring {
            memory: Arc::clone(&self.memory),
            place,
            capacity,
            from,
            to,
        })
    }
}
