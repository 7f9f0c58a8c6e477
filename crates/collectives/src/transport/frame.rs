//! What travels between two ranks: a header of fixed size and the elements.

use super::payload::Payload;
use crate::fields::field;
use crate::group::{DType, SIGNATURE_BYTES, Signature};

pub(crate) const HEADER_BYTES: usize = 64;

/// The first bytes of each header: a stream that has slipped is found at once.
const MAGIC: [u8; 4] = *b"EVF1";

/// The longest payload of a frame that is no data, and of a collective's where messages are shorter.
const MAX_CONTROL_BYTES: u64 = 64 << 10;

/// What a frame is for.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::transport::FrameKind;
///
/// assert_ne!(FrameKind::Message { tag: 1 }, FrameKind::Message { tag: 2 });
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameKind {
    /// A rank's part in a collective. `phase` 0 is the bootstrap, whose signatures reach every
    /// rank; later phases carry data only.
    Collective {
        /// The number of the collective in its group.
        sequence: u64,
        /// The step of the algorithm.
        phase: u8,
        /// What the sender called.
        signature: Signature,
    },
    /// A point-to-point message.
    Message {
        /// The label that the receiver asks for.
        tag: u64,
    },
    /// The sender has given the group up; the payload is the encoded reason.
    Abort,
    /// The sender has destroyed the group and will send nothing more for it.
    Leave,
    /// The sender closes the connection: the end of the stream that follows is no loss.
    Goodbye,
    /// Flow control: the sender's backlog is full, send it no data until [`FrameKind::Resume`]. Used
    /// between transports only.
    Pause,
    /// Flow control: ends [`FrameKind::Pause`].
    Resume,
}

impl FrameKind {
    /// Whether the frame carries data, which a peer may pause.
    pub(crate) const fn is_data(&self) -> bool {
        matches!(self, Self::Collective { .. } | Self::Message { .. })
    }
}

/// Where a frame belongs.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::transport::{FrameKind, Header};
///
/// let header = Header { group: 1, step: 40, kind: FrameKind::Leave };
/// assert_eq!(header.kind, FrameKind::Leave);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The process group.
    pub group: u64,
    /// The sender's step, for reports.
    pub step: u64,
    /// What the frame is for.
    pub kind: FrameKind,
}

type WrittenHook = Box<dyn FnOnce(Result<(), String>) + Send>;

/// One message between two ranks of a job.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::transport::{Frame, FrameKind, Header, Payload};
///
/// let header = Header { group: 1, step: 0, kind: FrameKind::Message { tag: 7 } };
/// let frame = Frame { header, payload: Payload::from_vec(vec![1u8]), written: None };
/// assert_eq!(frame.payload.len(), 1);
/// ```
pub struct Frame {
    /// Where it belongs.
    pub header: Header,
    /// The elements.
    pub payload: Payload,
    /// Called once when the frame has been handed to the network, or with the reason why it never will be.
    pub written: Option<WrittenHook>,
}

impl std::fmt::Debug for Frame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Frame")
            .field("header", &self.header)
            .field("payload", &self.payload)
            .finish_non_exhaustive()
    }
}

impl Frame {
    pub(crate) const fn new(header: Header, payload: Payload) -> Self {
        Self {
            header,
            payload,
            written: None,
        }
    }

    /// Tells the sender, if it wants to know, what became of the frame.
    pub(crate) fn report(&mut self, result: Result<(), String>) {
        if let Some(hook) = self.written.take() {
            hook(result);
        }
    }
}

/// A header as it comes off the wire, with the shape of the payload that follows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WireHeader {
    pub(crate) header: Header,
    pub(crate) dtype: DType,
    pub(crate) payload_bytes: u64,
}

impl WireHeader {
    pub(crate) fn of(frame: &Frame) -> Self {
        Self {
            header: frame.header,
            dtype: frame.payload.dtype(),
            payload_bytes: frame.payload.bytes().len() as u64,
        }
    }

    /// Layout, little-endian: magic 4, kind 1, type 1, phase 1, zero 1, group 8, number 8, step 8,
    /// payload bytes 8, signature 20, zero 4.
    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let (kind, number, phase, signature) = match self.header.kind {
            FrameKind::Collective {
                sequence,
                phase,
                signature,
            } => (0, sequence, phase, Some(signature)),
            FrameKind::Message { tag } => (1, tag, 0, None),
            FrameKind::Abort => (2, 0, 0, None),
            FrameKind::Leave => (3, 0, 0, None),
            FrameKind::Goodbye => (4, 0, 0, None),
            FrameKind::Pause => (5, 0, 0, None),
            FrameKind::Resume => (6, 0, 0, None),
        };
        bytes[0..4].copy_from_slice(&MAGIC);
        bytes[4] = kind;
        bytes[5] = self.dtype.code();
        bytes[6] = phase;
        bytes[8..16].copy_from_slice(&self.header.group.to_le_bytes());
        bytes[16..24].copy_from_slice(&number.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.header.step.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.payload_bytes.to_le_bytes());
        if let Some(signature) = signature {
            bytes[40..40 + SIGNATURE_BYTES].copy_from_slice(&signature.encode());
        }
        bytes
    }

    pub(crate) fn decode(
        bytes: &[u8; HEADER_BYTES],
        max_message_bytes: u64,
    ) -> Result<Self, String> {
        if bytes[0..4] != MAGIC {
            return Err("a frame that does not begin with the magic bytes".to_owned());
        }
        let dtype = DType::from_code(bytes[5])
            .ok_or_else(|| format!("a frame with the unknown type {}", bytes[5]))?;
        let number_at = |place| u64::from_le_bytes(field(bytes, place));
        let number = number_at(16);
        let payload_bytes = number_at(32);
        let kind = match bytes[4] {
            0 => {
                let signature = Signature::decode(&field(bytes, 40))?;
                FrameKind::Collective {
                    sequence: number,
                    phase: bytes[6],
                    signature,
                }
            }
            1 => FrameKind::Message { tag: number },
            2 => FrameKind::Abort,
            3 => FrameKind::Leave,
            4 => FrameKind::Goodbye,
            5 => FrameKind::Pause,
            6 => FrameKind::Resume,
            other => return Err(format!("a frame of the unknown kind {other}")),
        };
        let limit = match kind {
            FrameKind::Message { .. } => max_message_bytes,
            FrameKind::Collective { .. } => max_message_bytes.max(MAX_CONTROL_BYTES),
            _ => MAX_CONTROL_BYTES,
        };
        if payload_bytes > limit {
            return Err(format!(
                "a frame of {payload_bytes} bytes, more than the {limit} allowed \
                 (option `max_message_bytes`)"
            ));
        }
        if !payload_bytes.is_multiple_of(dtype.size() as u64) {
            return Err(format!(
                "a frame of {payload_bytes} bytes, not a whole number of {dtype}"
            ));
        }
        let header = Header {
            group: number_at(8),
            step: number_at(24),
            kind,
        };
        Ok(Self {
            header,
            dtype,
            payload_bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::Operation;

    fn header(kind: FrameKind) -> WireHeader {
        let header = Header {
            group: 7,
            step: 8,
            kind,
        };
        WireHeader {
            header,
            dtype: DType::F16,
            payload_bytes: 10,
        }
    }

    #[test]
    fn headers_survive_the_wire() {
        let signature = Signature::new(Operation::Barrier);
        let kinds = [
            FrameKind::Collective {
                sequence: 9,
                phase: 1,
                signature,
            },
            FrameKind::Message { tag: u64::MAX },
            FrameKind::Abort,
            FrameKind::Leave,
            FrameKind::Goodbye,
            FrameKind::Pause,
            FrameKind::Resume,
        ];
        for kind in kinds {
            assert_eq!(
                WireHeader::decode(&header(kind).encode(), 10),
                Ok(header(kind))
            );
        }
    }

    #[test]
    fn absurd_headers_are_refused() {
        let good = header(FrameKind::Message { tag: 0 });
        let error = WireHeader::decode(&good.encode(), 9).unwrap_err();
        assert!(error.contains("more than the 9 allowed"), "{error}");
        let odd = WireHeader {
            payload_bytes: 3,
            ..good
        };
        assert!(WireHeader::decode(&odd.encode(), 9).is_err());
        for (place, value) in [(0, 0), (4, 9), (5, 9)] {
            let mut bytes = good.encode();
            bytes[place] = value;
            assert!(WireHeader::decode(&bytes, 10).is_err());
        }
    }
}
