//! The messages of the handshake.

use everburn_auth::{CHALLENGE_BYTES, NONCE_BYTES};

use crate::fields::field;

pub(super) const HELLO_BYTES: usize = CLEAR_BYTES + NONCE_BYTES;

pub(super) const ANSWER_BYTES: usize = 8 + CHALLENGE_BYTES;

pub(super) const VERDICT_BYTES: usize = 4;

/// The cleartext fields before a dialer's nonce.
const CLEAR_BYTES: usize = 40;

const MAGIC: [u8; 8] = *b"EVERBURN";
const VERSION: u32 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The control plane of a job.
    Mesh,
    /// A channel: the data plane of one group.
    Channel,
}

/// The identity that a dialer claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) purpose: Purpose,
    /// The dialer's rank in the job (mesh) or the group (channel).
    pub(crate) rank: usize,
    /// The size of the job or the group.
    pub(crate) world_size: usize,
    /// The number of the mesh, or the id of the group.
    pub(crate) scope: u64,
    /// The index among the connections between two ranks.
    pub(crate) index: usize,
}

/// The identity of the acceptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Responder {
    pub(super) rank: usize,
    pub(super) world_size: usize,
}

/// The acceptor's verdict on an authenticated dialer; its place is its code on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Accepted,
    WorldSizeDiffers,
    /// The same rank is connected already.
    Taken,
    /// The acceptor expects no such connection (rank, index or purpose).
    NotExpected,
}

/// A little-endian number at `at`.
fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(field(bytes, at))
}

impl Hello {
    /// Layout, little-endian: magic 8, version 4, purpose 4, rank 4, world size 4, index 4, zero
    /// 4, scope 8, nonce 32.
    pub(super) fn encode(&self, nonce: &[u8; NONCE_BYTES]) -> [u8; HELLO_BYTES] {
        let purpose = match self.purpose {
            Purpose::Mesh => 1,
            Purpose::Channel => 2,
        };
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        let numbers = [
            VERSION,
            purpose,
            self.rank as u32,
            self.world_size as u32,
            self.index as u32,
        ];
        for (place, number) in bytes[8..28].chunks_exact_mut(4).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes[32..40].copy_from_slice(&self.scope.to_le_bytes());
        bytes[CLEAR_BYTES..].copy_from_slice(nonce);
        bytes
    }

    /// Decodes a hello and its nonce.
    ///
    /// # Errors
    /// The reason for which the connection must be closed.
    pub(super) fn decode(bytes: &[u8; HELLO_BYTES]) -> Result<(Self, [u8; NONCE_BYTES]), String> {
        if bytes[..8] != MAGIC {
            return Err("it does not speak the protocol of ranks".to_owned());
        }
        if number(bytes, 8) != VERSION {
            let version = number(bytes, 8);
            return Err(format!("it speaks version {version}, not {VERSION}"));
        }
        if number(bytes, 28) != 0 {
            return Err("it has a field that this version does not support".to_owned());
        }
        let purpose = match number(bytes, 12) {
            1 => Purpose::Mesh,
            2 => Purpose::Channel,
            other => return Err(format!("it asks for the unknown purpose {other}")),
        };
        let (rank, world_size) = (number(bytes, 16) as usize, number(bytes, 20) as usize);
        if rank >= world_size {
            return Err(format!("it claims to be rank {rank} of {world_size}"));
        }
        let hello = Self {
            purpose,
            rank,
            world_size,
            scope: u64::from_le_bytes(field(bytes, 32)),
            index: number(bytes, 24) as usize,
        };
        Ok((hello, field(bytes, CLEAR_BYTES)))
    }
}

impl Responder {
    pub(super) fn encode(self, challenge: &[u8; CHALLENGE_BYTES]) -> [u8; ANSWER_BYTES] {
        let mut bytes = [0; ANSWER_BYTES];
        bytes[..4].copy_from_slice(&(self.rank as u32).to_le_bytes());
        bytes[4..8].copy_from_slice(&(self.world_size as u32).to_le_bytes());
        bytes[8..].copy_from_slice(challenge);
        bytes
    }

    pub(super) fn decode(bytes: &[u8; ANSWER_BYTES]) -> (Self, [u8; CHALLENGE_BYTES]) {
        let responder = Self {
            rank: number(bytes, 0) as usize,
            world_size: number(bytes, 4) as usize,
        };
        (responder, field(bytes, 8))
    }
}

/// The cleartext fields of both sides, which their proofs cover.
pub(super) fn context(hello: &Hello, responder: Responder) -> Vec<u8> {
    let hello = hello.encode(&[0; NONCE_BYTES]);
    let responder = responder.encode(&[0; CHALLENGE_BYTES]);
    [&hello[..CLEAR_BYTES], &responder[..8]].concat()
}

impl Verdict {
    pub(super) const fn encode(self) -> [u8; VERDICT_BYTES] {
        (self as u32).to_le_bytes()
    }

    pub(super) fn decode(bytes: [u8; VERDICT_BYTES]) -> Result<Self, String> {
        use Verdict::{Accepted, NotExpected, Taken, WorldSizeDiffers};

        let all = [Accepted, WorldSizeDiffers, Taken, NotExpected];
        let known = all.into_iter().find(|known| known.encode() == bytes);
        known.ok_or_else(|| {
            let other = u32::from_le_bytes(bytes);
            format!("it answered with the unknown verdict {other}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELLO: Hello = Hello {
        purpose: Purpose::Channel,
        rank: 2,
        world_size: 3,
        scope: u64::MAX - 1,
        index: 1,
    };

    #[test]
    fn a_hello_survives_the_wire() {
        let nonce = [9; NONCE_BYTES];
        assert_eq!(Hello::decode(&HELLO.encode(&nonce)), Ok((HELLO, nonce)));
        let absurd = Hello { rank: 3, ..HELLO };
        assert!(Hello::decode(&absurd.encode(&nonce)).is_err());
    }

    #[test]
    fn every_number_of_both_sides_is_part_of_the_context() {
        let responder = Responder {
            rank: 1,
            world_size: 3,
        };
        let same = context(&HELLO, responder);
        let (purpose, rank, world_size) = (Purpose::Mesh, 0, 4);
        let hellos = [
            Hello { purpose, ..HELLO },
            Hello { rank, ..HELLO },
            Hello {
                world_size,
                ..HELLO
            },
            Hello { scope: 1, ..HELLO },
            Hello { index: 0, ..HELLO },
        ];
        let responders = [
            Responder { rank, ..responder },
            Responder {
                world_size,
                ..responder
            },
        ];
        assert_eq!(same, context(&HELLO, responder));
        assert!(hellos.iter().all(|it| context(it, responder) != same));
        assert!(responders.iter().all(|it| context(&HELLO, *it) != same));
    }
}
