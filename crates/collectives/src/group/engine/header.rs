//! The header that each rank sends on each channel at the beginning of a collective.

use crate::fields::field;
use crate::group::signature::{SIGNATURE_BYTES, Signature};

pub(crate) const HEADER_BYTES: usize = 64;

/// The first bytes of each header, to detect a channel that is out of step.
const MAGIC: [u8; 4] = *b"EVL1";

/// Precedes a rank's data of one collective on a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChannelHeader {
    /// The sequence number of the collective in its group.
    pub(crate) sequence: u64,
    /// The bytes of elements that follow on this channel.
    pub(crate) bytes: u64,
    /// The operation that the sender called.
    pub(crate) signature: Signature,
}

impl ChannelHeader {
    /// Layout, little-endian: magic 4, zero 4, sequence 8, bytes 8, signature 20, zero 20.
    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..4].copy_from_slice(&MAGIC);
        bytes[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[24..24 + SIGNATURE_BYTES].copy_from_slice(&self.signature.encode());
        bytes
    }

    /// Decodes a header.
    ///
    /// # Errors
    /// A description of the invalid field.
    pub(crate) fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, String> {
        if bytes[0..4] != MAGIC {
            return Err("it sent a header that does not begin with the magic bytes".to_owned());
        }
        Ok(Self {
            sequence: u64::from_le_bytes(field(bytes, 8)),
            bytes: u64::from_le_bytes(field(bytes, 16)),
            signature: Signature::decode(&field(bytes, 24))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::Operation;

    #[test]
    fn a_header_survives_the_channel() {
        let header = ChannelHeader {
            sequence: 7,
            bytes: u64::MAX,
            signature: Signature::new(Operation::Barrier),
        };
        assert_eq!(ChannelHeader::decode(&header.encode()), Ok(header));
        let mut bad = header.encode();
        bad[0] = 0;
        assert!(ChannelHeader::decode(&bad).is_err());
    }
}
