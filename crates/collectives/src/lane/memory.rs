//! A lane through shared memory: a ring in each direction.

use rand::TryRng;
use rand::rngs::SysRng;
use serde::{Deserialize, Serialize};

use super::LaneError;
use crate::shared_memory::{
    Address, Doorbell, Layout, Nonce, RingError, RingReceiver, RingSender, Segment,
};

/// How much memory all rings of one group on one machine may take together. Locked up front, so
/// it is kept small; a ring need only hold what is written while its reader does something else.
const BUDGET: usize = 32 << 20;

/// The largest and the smallest ring: what a sender can write ahead and the reader still finds in
/// the cache; and a few small messages.
const RINGS: std::ops::RangeInclusive<usize> = (16 << 10)..=(1 << 20);

/// The part of a ring that must be taken before its sender is told.
const ROOM: usize = 8;

/// How many bytes a ring has between `ranks` ranks.
fn capacity(ranks: usize) -> usize {
    let rings = ranks * (ranks - 1);
    let share = (BUDGET / rings.max(1)).clamp(*RINGS.start(), *RINGS.end());
    // Rounded down to a power of two.
    1 << share.ilog2()
}

/// A lane through shared memory.
#[derive(Debug)]
pub(crate) struct RingLane {
    sender: RingSender,
    receiver: RingReceiver,
    /// Where the peer sleeps.
    bell: Doorbell,
    /// How many bytes have been taken since it was last rung for room in its ring.
    taken: usize,
}

impl RingLane {
    pub(super) fn try_send(&mut self, pieces: &[&[u8]]) -> Result<usize, LaneError> {
        let bytes = self.sender.try_write_parts(pieces).map_err(broken)?;
        if bytes > 0 {
            self.bell.ring();
        }
        Ok(bytes)
    }

    pub(super) fn try_recv(&mut self, into: &mut [u8]) -> Result<usize, LaneError> {
        let bytes = self.receiver.try_read(into).map_err(broken)?;
        self.let_go(bytes);
        Ok(bytes)
    }

    pub(super) fn peek(&self, most: usize) -> Result<&[u8], LaneError> {
        self.receiver.peek(most).map_err(broken)
    }

    pub(super) fn consume(&mut self, bytes: usize) {
        self.receiver.consume(bytes);
        self.let_go(bytes);
    }

    /// Tells the peer of room in the ring. Not at each small message: if it waits for room at all,
    /// the ring was full, and much more will be taken.
    fn let_go(&mut self, bytes: usize) {
        self.taken += bytes;
        if self.taken >= self.receiver.capacity() / ROOM {
            self.taken = 0;
            self.bell.ring();
        }
    }
}

#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
fn broken(error: RingError) -> LaneError {
    LaneError::new(error.to_string())
}

/// What the lowest rank of a machine offers to the others.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Offer {
    process: u32,
    descriptor: i32,
    nonce: Nonce,
    /// Why there is nothing to offer.
    refused: Option<String>,
}

/// The ranks of one machine on the way to their memory.
pub(super) struct Table {
    /// Their group ranks, the lowest first.
    mates: Vec<usize>,
    rank: usize,
    segment: Option<Segment>,
}

/// One rank's end of the memory.
pub(super) struct Found {
    /// By group rank of the peer.
    pub(super) lanes: Vec<(usize, RingLane)>,
    pub(super) bell: Option<Doorbell>,
}

impl Table {
    /// The group rank `rank` among its `mates`, all ranks of the machine.
    pub(super) const fn new(mates: Vec<usize>, rank: usize) -> Self {
        Self {
            mates,
            rank,
            segment: None,
        }
    }

    /// Makes the memory, if this is the lowest rank of several. `process` is what others find it
    /// under.
    pub(super) fn offer(&mut self, process: u32) -> Offer {
        let mut offer = Offer {
            process,
            descriptor: -1,
            nonce: Nonce::default(),
            refused: None,
        };
        if self.mates.len() == 1 || self.mates[0] != self.rank {
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
        let layout = Layout::new(self.mates.len(), capacity(self.mates.len()));
        let segment = layout.and_then(|layout| Segment::create(layout, *nonce));
        let segment = segment.map_err(|error| error.to_string())?;
        let descriptor = segment.address().map_or(-1, |address| address.descriptor);
        self.segment = Some(segment);
        Ok(descriptor)
    }

    /// Takes this rank's end of the memory that is offered.
    pub(super) fn join(&mut self, offer: &Offer) -> Result<Found, String> {
        if self.mates.len() == 1 {
            return Ok(Found {
                lanes: Vec::new(),
                bell: None,
            });
        }
        if let Some(reason) = &offer.refused {
            return Err(reason.clone());
        }
        self.take_ends(offer).map_err(|error| error.to_string())
    }

    fn take_ends(&mut self, offer: &Offer) -> Result<Found, crate::shared_memory::SegmentError> {
        let address = Address {
            pid: offer.process,
            descriptor: offer.descriptor,
        };
        let segment = match self.segment.take() {
            Some(own) => own,
            None => Segment::open(address, offer.nonce)?,
        };
        let own = self.place_of(self.rank);
        let mut lanes = Vec::with_capacity(self.mates.len());
        for (place, peer) in self.mates.iter().enumerate() {
            let Some(bell) = segment.doorbell(place).filter(|_| place != own) else {
                continue;
            };
            let lane = RingLane {
                sender: segment.sender(own, place)?,
                receiver: segment.receiver(place, own)?,
                bell,
                taken: 0,
            };
            lanes.push((*peer, lane));
        }
        let bell = segment.doorbell(own);
        self.segment = Some(segment);
        Ok(Found { lanes, bell })
    }

    fn place_of(&self, rank: usize) -> usize {
        let place = self.mates.iter().position(|mate| *mate == rank);
        place.unwrap_or_default()
    }

    /// Closes the descriptor, once all have opened the memory or given up.
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
