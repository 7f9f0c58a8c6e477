//! All ranks' payloads on every rank in n log n frames: how large groups set up their channels.
//!
//! Dissemination (Bruck et al., 1997). In each step a rank sends what it has, `d` payloads, to the rank `d` above
//! it, and receives as many from the rank `d` below. That doubles what it has: log2 n steps of one frame each, and
//! n - 1 payloads received, where each rank sending to each other one takes n - 1 frames of a rank. The price: a rank
//! that waits can name only the rank that it hears from, which may itself wait for another. Small groups send
//! directly, and name all that are missing.

use super::collective::Collective;
use super::error::CollectiveError;
use super::signature::{SIGNATURE_BYTES, Signature};
use crate::transport::{Interruption, Payload};

/// The bytes of a payload's length in a frame.
const LENGTH_BYTES: usize = 4;

/// What one rank has called, and its payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) signature: Signature,
    pub(super) payload: Vec<u8>,
}

/// Why not all payloads have come.
pub(super) enum Incomplete {
    /// The deadline has passed. What those that are known have called, by group rank.
    Late {
        signatures: Vec<Option<Signature>>,
        missing: Vec<usize>,
    },
    Failed(CollectiveError),
}

impl Collective<'_> {
    /// The blocks of all ranks, by group rank.
    pub(super) fn disseminate(&self, phase: u8, own: &[u8]) -> Result<Vec<Block>, Incomplete> {
        let (rank, size) = (self.rank(), self.size());
        // The block at `i` is of the rank `i` below this one.
        let mut blocks = vec![Block {
            signature: self.signature,
            payload: own.to_vec(),
        }];
        while blocks.len() < size {
            let distance = blocks.len();
            let count = distance.min(size - distance);
            let frame = encode(&blocks[..count]);
            self.send((rank + distance) % size, phase, Payload::from_vec(frame));
            let from = (rank + size - distance) % size;
            let payload = match self.part_of(phase, from) {
                Ok(payload) => payload,
                Err(Interruption::Deadline { missing }) => {
                    return Err(Incomplete::Late {
                        signatures: by_rank(blocks, rank, size, |block| block.signature),
                        missing,
                    });
                }
                Err(interruption) => {
                    let error = self.core.interrupted(&self.context, interruption);
                    return Err(Incomplete::Failed(error));
                }
            };
            let bytes = payload.as_slice::<u8>().unwrap_or_default();
            let received = decode(bytes, count);
            blocks.extend(received.map_err(|reason| {
                Incomplete::Failed(
                    self.protocol(from, format!("its payloads of a group's setup: {reason}")),
                )
            })?);
        }
        self.core.set_waiting_for(&[]);
        Ok(by_rank(blocks, rank, size, |block| block)
            .into_iter()
            .flatten()
            .collect())
    }

    fn part_of(&self, phase: u8, from: usize) -> Result<Payload, Interruption> {
        let from = self.core.members[from];
        let key = (self.context.sequence, phase);
        self.core.set_waiting_for(&[from]);
        let mailbox = &self.core.mailbox;
        let part = mailbox.take_part(key, from, &[from], self.deadline)?;
        Ok(part.payload)
    }
}

/// What `of` makes of each block, by group rank; `None` where there is no block yet.
fn by_rank<T: Clone>(
    blocks: Vec<Block>,
    rank: usize,
    size: usize,
    of: impl Fn(Block) -> T,
) -> Vec<Option<T>> {
    let mut sorted = vec![None; size];
    for (below, block) in blocks.into_iter().enumerate() {
        sorted[(rank + size - below) % size] = Some(of(block));
    }
    sorted
}

/// Per block: the signature, the payload's length (little-endian), the payload.
fn encode(blocks: &[Block]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for block in blocks {
        bytes.extend_from_slice(&block.signature.encode());
        bytes.extend_from_slice(&(block.payload.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&block.payload);
    }
    bytes
}

fn decode(mut bytes: &[u8], count: usize) -> Result<Vec<Block>, String> {
    let mut blocks = Vec::new();
    for _ in 0..count {
        let ends = || format!("the frame ends after {} of {count}", blocks.len());
        let (signature, rest) = bytes
            .split_first_chunk::<SIGNATURE_BYTES>()
            .ok_or_else(ends)?;
        let (length, rest) = rest.split_first_chunk::<LENGTH_BYTES>().ok_or_else(ends)?;
        let length = u32::from_le_bytes(*length) as usize;
        let (payload, rest) = rest.split_at_checked(length).ok_or_else(ends)?;
        bytes = rest;
        blocks.push(Block {
            signature: Signature::decode(signature)?,
            payload: payload.to_vec(),
        });
    }
    match bytes.len() {
        0 => Ok(blocks),
        more => Err(format!("{more} bytes follow the last of {count}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::Operation;

    #[test]
    fn blocks_survive_the_wire_and_damaged_ones_are_refused() {
        let block = |payload: &[u8]| Block {
            signature: Signature::new(Operation::Barrier).length(payload.len()),
            payload: payload.to_vec(),
        };
        let blocks = [block(b"one"), block(b""), block(b"three")];
        let bytes = encode(&blocks);
        assert_eq!(decode(&bytes, 3).unwrap(), blocks);
        assert!(decode(&bytes, 2).unwrap_err().contains("bytes follow"));
        assert!(decode(&bytes, 4).unwrap_err().contains("ends after 3 of 4"));
        for end in 0..bytes.len() {
            assert!(decode(&bytes[..end], 3).is_err(), "{end} bytes");
        }
        let mut endless = bytes;
        endless[SIGNATURE_BYTES..][..LENGTH_BYTES].fill(0xFF);
        assert!(decode(&endless, 3).unwrap_err().contains("ends after 0"));
    }
}
