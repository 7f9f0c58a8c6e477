//! The first bytes of a connection: who is there, and proof that it belongs to the job.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// The size of a hello and of its answer, in bytes.
pub(super) const HELLO_BYTES: usize = 56;

/// The size of a session key, in bytes.
pub(super) const KEY_BYTES: usize = 32;

/// The secret of one mesh: whoever presents it has been able to read the job's store.
pub(super) type SessionKey = [u8; KEY_BYTES];

const MAGIC: [u8; 8] = *b"EVERMESH";
const VERSION: u32 = 1;

/// What the answerer thinks of the hello.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    /// Welcome (also what every hello carries).
    Accepted,
    /// The ranks were started with different world sizes.
    WorldSizeDiffers,
}

/// One side's introduction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) status: Status,
    pub(super) rank: usize,
    pub(super) world_size: usize,
}

impl Hello {
    /// Layout, little-endian: magic 8, version 4, status 4, rank 4, world size 4, session key 32.
    pub(super) fn encode(&self, key: &SessionKey) -> [u8; HELLO_BYTES] {
        let status: u32 = match self.status {
            Status::Accepted => 0,
            Status::WorldSizeDiffers => 1,
        };
        let mut bytes = [0; HELLO_BYTES];
        bytes[0..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&status.to_le_bytes());
        bytes[16..20].copy_from_slice(&(self.rank as u32).to_le_bytes());
        bytes[20..24].copy_from_slice(&(self.world_size as u32).to_le_bytes());
        bytes[24..].copy_from_slice(key);
        bytes
    }

    /// The hello of `bytes` if it presents `key`; else why the connection must be closed.
    pub(super) fn decode(bytes: &[u8; HELLO_BYTES], key: &SessionKey) -> Result<Self, String> {
        if bytes[0..8] != MAGIC {
            return Err("it does not speak the protocol of a mesh".to_owned());
        }
        // Every byte is looked at, so that the time taken tells nothing about the key.
        let differing = bytes[24..]
            .iter()
            .zip(key)
            .fold(0, |all, (a, b)| all | (a ^ b));
        if differing != 0 {
            return Err("it presented another session key".to_owned());
        }
        let number = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        if number(8) != VERSION {
            return Err(format!("it speaks version {}, not {VERSION}", number(8)));
        }
        let status = match number(12) {
            0 => Status::Accepted,
            1 => Status::WorldSizeDiffers,
            other => return Err(format!("it answered with the unknown status {other}")),
        };
        let (rank, world_size) = (number(16) as usize, number(20) as usize);
        if rank >= world_size {
            return Err(format!("it claims to be rank {rank} of {world_size}"));
        }
        Ok(Self {
            status,
            rank,
            world_size,
        })
    }
}

/// Writes a hello; `deadline` holds for the whole of it.
pub(super) fn write_hello(
    stream: &mut TcpStream,
    hello: &[u8; HELLO_BYTES],
    deadline: Instant,
) -> io::Result<()> {
    stream.set_write_timeout(Some(left(deadline)?))?;
    stream.write_all(hello)
}

/// Reads a hello; `deadline` holds for the whole of it, however slowly the bytes come.
pub(super) fn read_hello(
    stream: &mut TcpStream,
    deadline: Instant,
) -> io::Result<[u8; HELLO_BYTES]> {
    let mut bytes = [0; HELLO_BYTES];
    let mut filled = 0;
    while filled < HELLO_BYTES {
        stream.set_read_timeout(Some(left(deadline)?))?;
        match stream.read(&mut bytes[filled..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => filled += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(bytes)
}

/// The time until `deadline`; an error when there is none left.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        Err(ErrorKind::TimedOut.into())
    } else {
        Ok(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: SessionKey = [7; KEY_BYTES];
    const HELLO: Hello = Hello {
        status: Status::Accepted,
        rank: 2,
        world_size: 3,
    };

    #[test]
    fn a_hello_survives_the_wire() {
        assert_eq!(Hello::decode(&HELLO.encode(&KEY), &KEY), Ok(HELLO));
    }

    #[test]
    fn any_altered_byte_but_the_numbers_is_refused() {
        for place in (0..12).chain(24..HELLO_BYTES) {
            let mut bytes = HELLO.encode(&KEY);
            bytes[place] ^= 1;
            assert!(Hello::decode(&bytes, &KEY).is_err(), "byte {place}");
        }
        let absurd = Hello { rank: 3, ..HELLO };
        assert!(Hello::decode(&absurd.encode(&KEY), &KEY).is_err());
    }
}
