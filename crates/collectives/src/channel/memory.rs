//! Channels through shared memory: one ring buffer in each direction.

use rand::TryRng;
use rand::rngs::SysRng;
use serde::{Deserialize, Serialize};

use super::ChannelError;
use crate::shared_memory::{
    Address, Doorbell, Layout, Nonce, RingError, RingReceiver, RingSender, Segment,
};

/// The memory of all rings of one group on one machine. It is allocated up front, so it is small; a
/// ring only needs to buffer writes while its reader is busy.
const BUDGET: usize = 32 << 20;

/// The smallest and the largest ring: a few small messages; data that still fits the reader's cache.
const RINGS: std::ops::RangeInclusive<usize> = (4 << 10)..=(1 << 20);

/// The sender is notified after every `capacity / ROOM` bytes that were read.
const ROOM: usize = 8;

/// The bytes per ring between `ranks` ranks.
fn capacity(ranks: usize) -> usize {
    let rings = ranks * (ranks - 1);
    let share = (BUDGET / rings.max(1)).clamp(*RINGS.start(), *RINGS.end());
    // Rounded down to a power of two.
    1 << share.ilog2()
}

/// A channel through two ring buffers in shared memory.
#[derive(Debug)]
pub(crate) struct RingChannel {
    sender: RingSender,
    receiver: RingReceiver,
    /// Wakes the peer.
    bell: Doorbell,
    /// The bytes read since the peer was last notified of free space.
    taken: usize,
}

impl RingChannel {
    pub(super) fn try_send(&mut self, pieces: &[&[u8]]) -> Result<usize, ChannelError> {
        let bytes = self.sender.try_write_parts(pieces).map_err(broken)?;
        if bytes > 0 {
            self.bell.ring();
        }
        Ok(bytes)
    }

    pub(super) fn try_recv(&mut self, into: &mut [u8]) -> Result<usize, ChannelError> {
        let bytes = self.receiver.try_read(into).map_err(broken)?;
        self.release(bytes);
        Ok(bytes)
    }

    pub(super) fn peek(&self, most: usize) -> Result<&[u8], ChannelError> {
        self.receiver.peek(most).map_err(broken)
    }

    pub(super) fn consume(&mut self, bytes: usize) {
        self.receiver.consume(bytes);
        self.release(bytes);
    }

    /// Notifies the peer of free space in the ring, but not for each small message: a peer that waits
    /// for space has filled the ring, this many more bytes will be read.
    fn release(&mut self, bytes: usize) {
        self.taken += bytes;
        if self.taken >= self.receiver.capacity() / ROOM {
            self.taken = 0;
            self.bell.ring();
        }
    }
}

#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
fn broken(error: RingError) -> ChannelError {
    ChannelError::new(error.to_string())
}

/// The shared-memory segment that the lowest rank of a machine announces.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Offer {
    process: u32,
    descriptor: i32,
    nonce: Nonce,
    /// The reason, if there is no segment.
    refused: Option<String>,
}

/// The ranks of one machine while they set up their shared memory.
pub(super) struct LocalRanks {
    /// Their group ranks, in ascending order.
    ranks: Vec<usize>,
    rank: usize,
    segment: Option<Segment>,
}

/// The shared-memory channels of one rank.
pub(super) struct LocalChannels {
    /// With the group rank of the peer.
    pub(super) channels: Vec<(usize, RingChannel)>,
    /// Wakes this rank.
    pub(super) bell: Option<Doorbell>,
}

impl LocalRanks {
    /// The group ranks `ranks` of this machine, seen from group rank `rank`.
    pub(super) const fn new(ranks: Vec<usize>, rank: usize) -> Self {
        Self {
            ranks,
            rank,
            segment: None,
        }
    }

    /// Creates the segment, if this is the lowest of several ranks. Other ranks open it through
    /// `/proc/{process}`.
    pub(super) fn offer(&mut self, process: u32) -> Offer {
        let mut offer = Offer {
            process,
            descriptor: -1,
            nonce: Nonce::default(),
            refused: None,
        };
        if self.ranks.len() == 1 || self.ranks[0] != self.rank {
            return offer;
        }
        match self.create(&mut offer.nonce) {
            Ok(descriptor) => offer.descriptor = descriptor,
            Err(reason) => offer.refused = Some(reason),
        }
        offer
    }

    fn create(&mut self, nonce: &mut Nonce) -> Result<i32, String> {
        SysRng
            .try_fill_bytes(nonce)
            .map_err(|error| format!("no random numbers: {error}"))?;
        let layout = Layout::new(self.ranks.len(), capacity(self.ranks.len()));
        let segment = layout.and_then(|layout| Segment::create(layout, *nonce));
        let segment = segment.map_err(|error| error.to_string())?;
        let descriptor = segment.address().map_or(-1, |address| address.descriptor);
        self.segment = Some(segment);
        Ok(descriptor)
    }

    /// Opens the announced segment and makes this rank's channels.
    pub(super) fn join(&mut self, offer: &Offer) -> Result<LocalChannels, String> {
        if self.ranks.len() == 1 {
            return Ok(LocalChannels {
                channels: Vec::new(),
                bell: None,
            });
        }
        if let Some(reason) = &offer.refused {
            return Err(reason.clone());
        }
        self.open(offer).map_err(|error| error.to_string())
    }

    fn open(&mut self, offer: &Offer) -> Result<LocalChannels, crate::shared_memory::SegmentError> {
        let address = Address {
            pid: offer.process,
            descriptor: offer.descriptor,
        };
        let segment = match self.segment.take() {
            Some(own) => own,
            None => Segment::open(address, offer.nonce)?,
        };
        let own = self.place_of(self.rank);
        let mut channels = Vec::with_capacity(self.ranks.len());
        for (place, peer) in self.ranks.iter().enumerate() {
            let Some(bell) = segment.doorbell(place).filter(|_| place != own) else {
                continue;
            };
            let channel = RingChannel {
                sender: segment.sender(own, place)?,
                receiver: segment.receiver(place, own)?,
                bell,
                taken: 0,
            };
            channels.push((*peer, channel));
        }
        let bell = segment.doorbell(own);
        self.segment = Some(segment);
        Ok(LocalChannels { channels, bell })
    }

    fn place_of(&self, rank: usize) -> usize {
        let place = self.ranks.iter().position(|other| *other == rank);
        place.unwrap_or_default()
    }

    /// Closes the descriptor, once all ranks have opened the segment or failed.
    pub(super) fn close(&mut self) {
        self.segment = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_shrink_with_the_number_of_ranks() {
        assert_eq!(capacity(2), *RINGS.end());
        for ranks in [2, 3, 4, 7, 8, 16, 32, 64] {
            let capacity = capacity(ranks);
            assert!(capacity.is_power_of_two() && RINGS.contains(&capacity));
            let all = capacity * ranks * (ranks - 1);
            assert!(all <= BUDGET || capacity == *RINGS.start());
        }
    }
}
