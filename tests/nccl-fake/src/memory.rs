//! The GPUs' memory: pieces at addresses that no machine has, so that nothing is read by mistake.

#![expect(unsafe_code, reason = "memory of a GPU is known by its pointer")]

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;

use everburn_collectives::group::DType;
use everburn_nccl::DeviceBuffer;
use everburn_record::sync::lock;

const FIRST: u64 = 0x7fab_0000_0000;

/// Pieces begin at multiples of it, as cuMemAlloc has it.
const ALIGNMENT: u64 = 256;

#[derive(Default)]
pub(super) struct Memory {
    pieces: Mutex<BTreeMap<u64, Vec<u8>>>,
}

impl Memory {
    /// A new piece with these bytes.
    pub(super) fn allocate(&self, bytes: Vec<u8>) -> u64 {
        let mut pieces = lock(&self.pieces);
        let end = pieces
            .last_key_value()
            .map_or(FIRST, |(start, piece)| start + piece.len() as u64);
        let start = (end + 1).next_multiple_of(ALIGNMENT);
        pieces.insert(start, bytes);
        start
    }

    /// A new piece with these bytes, as a buffer that belongs to `owner`.
    pub(super) fn buffer(
        &self,
        bytes: Vec<u8>,
        dtype: DType,
        owner: impl Send + 'static,
    ) -> DeviceBuffer {
        let len = bytes.len() / dtype.size();
        let pointer = self.allocate(bytes);
        // SAFETY: a piece is never freed, and only this memory reads or writes at its address, under a
        // lock. No test gives such a buffer to a group on a real GPU.
        let buffer = unsafe { DeviceBuffer::new(pointer, len, dtype, owner) };
        buffer.expect("what was allocated has an address and a length")
    }

    pub(super) fn read(&self, range: Range<u64>) -> Vec<u8> {
        let pieces = lock(&self.pieces);
        let (start, piece) = pieces.range(..=range.start).next_back().unzip();
        let within = within(start.copied(), piece.map(Vec::len), &range);
        piece
            .expect("a piece begins before")
            .get(within)
            .expect("the address was allocated")
            .to_vec()
    }

    pub(super) fn write(&self, at: u64, bytes: &[u8]) {
        let mut pieces = lock(&self.pieces);
        let (start, piece) = pieces.range_mut(..=at).next_back().unzip();
        let within = within(
            start.copied(),
            piece.as_ref().map(|piece| piece.len()),
            &(at..at + bytes.len() as u64),
        );
        let piece = piece.expect("a piece begins before");
        piece[within].copy_from_slice(bytes);
    }
}

/// Where `range` is in the piece at `start`.
fn within(start: Option<u64>, len: Option<usize>, range: &Range<u64>) -> Range<usize> {
    let start = start.expect("a piece begins before");
    let [from, to] = [range.start - start, range.end - start]
        .map(|offset| usize::try_from(offset).expect("a machine of 64 bits"));
    assert!(Some(to) <= len, "{range:x?} was not allocated");
    from..to
}
