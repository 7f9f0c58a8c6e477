//! The protocol between a server of a run and a monitor.
//!
//! The server begins with a line that names the protocol. Then both sides prove to each other that they know
//! the job's token: the monitor is the dialer of [`everburn_auth`]'s challenge and response. It sends a nonce,
//! and its own proof only after the server has proved itself. From then on the server alone speaks, in frames:
//! a length (4 bytes, little endian) and an [`Update`] as JSON. Nothing secret is sent. The updates are neither
//! encrypted nor authenticated one by one.

mod paced;

use std::io::{self, Read, Write};

use everburn_auth::{
    Acceptor, AuthError, CHALLENGE_BYTES, Dialer, JobToken, Key, NONCE_BYTES, PROOF_BYTES,
};

pub(crate) use self::paced::Paced;
use crate::update::Update;

/// The first bytes of a server; the number is the version of the protocol.
pub(crate) const GREETING: &[u8; 19] = b"everburn-monitor 2\n";

/// The longest frame: a line of `ranks.jsonl` of as many ranks as are told apart.
pub(crate) const LONGEST_FRAME: usize = 8 << 20;

/// Why a handshake has failed.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The connection broke, or the other side was too slow.
    Io(io::Error),
    /// The other side does not speak this protocol; its first bytes.
    Protocol(Vec<u8>),
    /// The other side does not know the token, or there are no random bytes.
    Auth(AuthError),
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<AuthError> for Refusal {
    fn from(error: AuthError) -> Self {
        Self::Auth(error)
    }
}

/// The key of this protocol.
pub(crate) fn key(token: &JobToken) -> Key {
    token.key("monitor")
}

/// The server's side of the handshake.
pub(crate) fn accept(connection: &mut (impl Read + Write), key: &Key) -> Result<(), Refusal> {
    connection.write_all(GREETING)?;
    let (mut nonce, mut proof) = ([0; NONCE_BYTES], [0; PROOF_BYTES]);
    connection.read_exact(&mut nonce)?;
    let (acceptor, challenge) = Acceptor::new(key, GREETING, &nonce)?;
    connection.write_all(&challenge)?;
    connection.read_exact(&mut proof)?;
    Ok(acceptor.verify(&proof)?)
}

/// The monitor's side of the handshake. Nothing but a nonce is sent to a server that does not know the token.
pub(crate) fn enter(connection: &mut (impl Read + Write), key: &Key) -> Result<(), Refusal> {
    let mut greeting = [0; GREETING.len()];
    connection.read_exact(&mut greeting)?;
    if &greeting != GREETING {
        return Err(Refusal::Protocol(greeting.to_vec()));
    }
    let dialer = Dialer::new(key, GREETING)?;
    connection.write_all(dialer.nonce())?;
    let mut challenge = [0; CHALLENGE_BYTES];
    connection.read_exact(&mut challenge)?;
    let proof = dialer.answer(&challenge)?;
    Ok(connection.write_all(&proof)?)
}

/// Appends an update to `frames`; one that is too long is left out.
pub(crate) fn put(update: &Update, frames: &mut Vec<u8>) {
    let Ok(text) = serde_json::to_vec(update) else {
        return;
    };
    let length = u32::try_from(text.len()).ok();
    if let Some(length) = length.filter(|length| *length as usize <= LONGEST_FRAME) {
        frames.extend(length.to_le_bytes());
        frames.extend(text);
    }
}

/// Reads the next update and the length of its frame; the update of a later version is `None`.
pub(crate) fn take(connection: &mut impl Read) -> io::Result<(Option<Update>, usize)> {
    let mut length = [0; 4];
    connection.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > LONGEST_FRAME {
        let text = format!("a frame of {length} bytes, and {LONGEST_FRAME} are the most");
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    // Not as much memory as the length asks for, but as much as comes.
    let mut text = Vec::new();
    connection.take(length as u64).read_to_end(&mut text)?;
    if text.len() < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok((serde_json::from_slice(&text).ok(), length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_as_they_were_written() {
        let mut frames = Vec::new();
        put(&Update::Running(true), &mut frames);
        frames.extend([2, 0, 0, 0]);
        frames.extend(b"{}");
        put(&Update::Reset, &mut frames);
        let mut rest = &frames[..];
        assert_eq!(take(&mut rest).unwrap(), (Some(Update::Running(true)), 16));
        assert_eq!(take(&mut rest).unwrap(), (None, 2));
        assert_eq!(take(&mut rest).unwrap(), (Some(Update::Reset), 7));
        assert!(take(&mut rest).is_err());
    }

    #[test]
    fn a_frame_that_is_too_long_is_refused_by_its_length() {
        let length = (LONGEST_FRAME as u32 + 1).to_le_bytes();
        let error = take(&mut &length[..]).unwrap_err().to_string();
        assert!(error.contains("8388609 bytes"), "{error}");
    }
}
