//! The two ends of a ring of bytes, one producer and one consumer.
//!
//! Positions count bytes since the ring was made; they never wrap (at 100 GB/s, 2^64 bytes last
//! five years). The byte at position `p` is at `p % capacity`.

#![expect(
    unsafe_code,
    reason = "each end is handed its own part of the shared memory"
)]

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::RingError;
use super::layout::RingPlace;
use super::memory::Memory;

/// The bytes copied before they are published to the other end, so that both work at the same time:
/// without it, a sender that has as much to write as the ring holds and a receiver take turns, at
/// half the speed. Copying this takes some microseconds, far more than telling.
const PIECE: usize = if cfg!(loom) { 2 } else { 64 << 10 };

/// Both ends' view of a ring.
#[derive(Debug)]
pub(super) struct Ring {
    pub(super) memory: Arc<Memory>,
    pub(super) place: RingPlace,
    pub(super) capacity: usize,
    pub(super) from: usize,
    pub(super) to: usize,
}

impl Ring {
    /// Where the byte at `position` is, and how many follow before the ring's end.
    fn locate(&self, position: u64) -> (usize, usize) {
        // A power of two, so the conversion cuts off only what the remainder would.
        let offset = position as usize & (self.capacity - 1);
        (self.place.data + offset, self.capacity - offset)
    }

    /// Takes a position of the other end only if it is one: what comes from shared memory is never
    /// used unchecked.
    fn check(
        &self,
        position: &'static str,
        found: u64,
        lowest: u64,
        highest: u64,
    ) -> Result<u64, RingError> {
        if (lowest..=highest).contains(&found) {
            return Ok(found);
        }
        Err(RingError {
            from: self.from,
            to: self.to,
            position,
            found,
            lowest,
            highest,
        })
    }
}

/// The end that writes. What it has written is visible to the receiver at once; whether the
/// receiver sleeps is not its concern: ring its doorbell.
#[derive(Debug)]
pub(crate) struct RingSender {
    ring: Ring,
    /// Ours alone; the memory has a copy for the receiver, which is never read back.
    written: u64,
    /// The receiver's position when we last looked.
    consumed: u64,
}

impl RingSender {
    pub(super) fn new(ring: Ring) -> Self {
        Self {
            ring,
            written: 0,
            consumed: 0,
        }
    }

    /// How many bytes can be written now.
    ///
    /// # Errors
    /// [`RingError`] if the receiver's position is none; nothing is sensible on this ring then.
    pub(crate) fn free(&mut self) -> Result<usize, RingError> {
        // Acquire: what the receiver read before it moved on has been read; its place is ours.
        let memory = &self.ring.memory;
        let found = memory
            .position(self.ring.place.consumed)
            .load(Ordering::Acquire);
        self.consumed = self
            .ring
            .check("consumed", found, self.consumed, self.written)?;
        Ok(self.known_free())
    }

    fn known_free(&self) -> usize {
        // At most the capacity, as `consumed` is never ahead of `written` nor further after.
        self.ring.capacity - (self.written - self.consumed) as usize
    }

    /// How many of `wanted` bytes can be written; looks at the receiver only if the last look does
    /// not suffice.
    fn room(&mut self, wanted: usize) -> Result<usize, RingError> {
        let known = self.known_free();
        let free = if known < wanted { self.free()? } else { known };
        Ok(free.min(wanted))
    }

    /// Writes as many of `bytes` as there is room for, and says how many.
    ///
    /// # Errors
    /// As [`RingSender::free`].
    #[cfg(test)]
    pub(crate) fn try_write(&mut self, bytes: &[u8]) -> Result<usize, RingError> {
        self.try_write_parts(&[bytes])
    }

    /// Writes as much as there is room for of `parts`, one after the other, and says how much. The
    /// receiver sees it grow by at least a [`PIECE`] at a time, so what is less than that at once.
    ///
    /// # Errors
    /// As [`RingSender::free`].
    pub(crate) fn try_write_parts(&mut self, parts: &[&[u8]]) -> Result<usize, RingError> {
        let wanted = parts.iter().map(|part| part.len()).sum();
        let room = self.room(wanted)?;
        let mut end = self.written;
        let mut left = room;
        for part in parts {
            let part = &part[..part.len().min(left)];
            left -= part.len();
            for piece in part.chunks(PIECE) {
                self.copy_in(end, piece);
                end += piece.len() as u64;
                if end - self.written >= PIECE as u64 {
                    self.publish(end);
                }
            }
        }
        self.publish(end);
        Ok(room)
    }

    /// Copies to a position at which there is room.
    fn copy_in(&self, position: u64, bytes: &[u8]) {
        let (place, straight) = self.ring.locate(position);
        let (first, second) = bytes.split_at(bytes.len().min(straight));
        for (place, part) in [(place, first), (self.ring.place.data, second)] {
            // SAFETY: between `written` and `consumed + capacity`, as `room` has made sure: the
            // receiver reads there only after `publish`, and there is no other sender (`Taken`).
            let room = unsafe { self.ring.memory.view_mut(place, part.len()) };
            room.copy_from_slice(part);
        }
    }

    fn publish(&mut self, end: u64) {
        if end == self.written {
            return;
        }
        self.written = end;
        // Release: the bytes are there before the position says so.
        let memory = &self.ring.memory;
        let position = memory.position(self.ring.place.written);
        position.store(end, Ordering::Release);
    }
}

/// The end that reads.
#[derive(Debug)]
pub(crate) struct RingReceiver {
    ring: Ring,
    /// Ours alone; the memory has a copy for the sender, which is never read back.
    consumed: u64,
    /// The sender's position when we last looked.
    written: Cell<u64>,
}

impl RingReceiver {
    pub(super) fn new(ring: Ring) -> Self {
        Self {
            ring,
            consumed: 0,
            written: Cell::new(0),
        }
    }

    /// Bytes of the ring.
    pub(crate) fn capacity(&self) -> usize {
        self.ring.capacity
    }

    /// How many bytes can be read now.
    ///
    /// # Errors
    /// [`RingError`] if the sender's position is none; nothing is sensible on this ring then.
    pub(crate) fn readable(&self) -> Result<usize, RingError> {
        // Acquire: the bytes that the position promises are there.
        let memory = &self.ring.memory;
        let found = memory
            .position(self.ring.place.written)
            .load(Ordering::Acquire);
        let highest = self.consumed + self.ring.capacity as u64;
        let written = self
            .ring
            .check("written", found, self.written.get(), highest)?;
        self.written.set(written);
        Ok(self.known_readable())
    }

    fn known_readable(&self) -> usize {
        // At most the capacity, as `readable` has checked.
        (self.written.get() - self.consumed) as usize
    }

    /// How many of `wanted` bytes can be read; looks at the sender only if the last look does not
    /// suffice.
    fn arrived(&self, wanted: usize) -> Result<usize, RingError> {
        let known = self.known_readable();
        let arrived = if known < wanted {
            self.readable()?
        } else {
            known
        };
        Ok(arrived.min(wanted))
    }

    /// Copies what has arrived, at most as much as fits, and says how much.
    ///
    /// # Errors
    /// As [`RingReceiver::readable`].
    pub(crate) fn try_read(&mut self, into: &mut [u8]) -> Result<usize, RingError> {
        let arrived = self.arrived(into.len())?;
        for piece in into[..arrived].chunks_mut(PIECE) {
            self.copy_out(piece);
            self.release(piece.len());
        }
        Ok(arrived)
    }

    /// Copies what has arrived.
    fn copy_out(&self, into: &mut [u8]) {
        let (place, straight) = self.ring.locate(self.consumed);
        let (first, second) = into.split_at_mut(into.len().min(straight));
        for (place, part) in [(place, first), (self.ring.place.data, second)] {
            // SAFETY: between `consumed` and `written`, as `arrived` has made sure: the sender
            // writes there only after `release`, and there is no other (`Taken`).
            let bytes = unsafe { self.ring.memory.view(place, part.len()) };
            part.copy_from_slice(bytes);
        }
    }

    /// What has arrived, in place, at most `at_most` bytes and not across the ring's end. It stays
    /// until [`RingReceiver::consume`].
    ///
    /// # Errors
    /// As [`RingReceiver::readable`].
    pub(crate) fn peek(&self, at_most: usize) -> Result<&[u8], RingError> {
        let (place, straight) = self.ring.locate(self.consumed);
        let arrived = self.arrived(at_most.min(straight))?;
        // SAFETY: as in `copy_out`; the view borrows this receiver, so it ends before `consume`.
        Ok(unsafe { self.ring.memory.view(place, arrived) })
    }

    /// Gives the first `bytes` of what has arrived back to the sender.
    ///
    /// # Panics
    /// If fewer have been seen by [`RingReceiver::peek`] or [`RingReceiver::readable`].
    pub(crate) fn consume(&mut self, bytes: usize) {
        let known = self.known_readable();
        assert!(bytes <= known, "{bytes} bytes consumed, {known} seen");
        let (place, straight) = self.ring.locate(self.consumed);
        self.ring.memory.viewed(place, bytes.min(straight));
        self.release(bytes);
    }

    fn release(&mut self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        self.consumed += bytes as u64;
        // Release: we have read the bytes before the sender may write over them.
        let memory = &self.ring.memory;
        let position = memory.position(self.ring.place.consumed);
        position.store(self.consumed, Ordering::Release);
    }
}
