//! The start of a segment, by which a process that opens it recognises it.

use super::Layout;
use super::segment::Nonce;
use crate::fields::field;

/// Bytes at the start of the header page that mean something.
pub(super) const HEADER_BYTES: usize = 48;

const MAGIC: [u8; 8] = *b"everburn";

/// Changes with the place or the meaning of anything in a segment.
const VERSION: u32 = 2;

impl Layout {
    /// What is at the start of a segment.
    pub(super) fn header(&self, nonce: &Nonce) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        header[..8].copy_from_slice(&MAGIC);
        header[8..12].copy_from_slice(&VERSION.to_le_bytes());
        header[12..16].copy_from_slice(&(self.ranks as u32).to_le_bytes());
        header[16..24].copy_from_slice(&(self.capacity as u64).to_le_bytes());
        header[24..32].copy_from_slice(&(self.bytes as u64).to_le_bytes());
        header[32..].copy_from_slice(nonce);
        header
    }

    /// The layout that a header describes; else what is wrong with it.
    pub(super) fn from_header(header: &[u8; HEADER_BYTES], nonce: &Nonce) -> Result<Self, String> {
        if header[..8] != MAGIC {
            return Err("it does not begin as one".to_owned());
        }
        let version = u32::from_le_bytes(field(header, 8));
        if version != VERSION {
            return Err(format!("it has version {version} and not {VERSION}"));
        }
        if header[32..] != *nonce {
            return Err("it belongs to another job or group (its nonce differs)".to_owned());
        }
        let ranks = u32::from_le_bytes(field(header, 12));
        let capacity = u64::from_le_bytes(field(header, 16));
        let bytes = u64::from_le_bytes(field(header, 24));
        let layout =
            Self::checked(u64::from(ranks), capacity).map_err(|error| error.to_string())?;
        if layout.bytes as u64 != bytes {
            return Err(format!(
                "its header says {bytes} bytes, its numbers make {}",
                layout.bytes
            ));
        }
        Ok(layout)
    }
}
