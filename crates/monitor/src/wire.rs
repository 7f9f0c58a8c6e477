//! How a run is told over a connection.
//!
//! The server begins: a line that says what it is, then 32 random bytes. The monitor answers with 32 bytes,
//! HMAC-SHA256 (RFC 2104) of those under the job token, so that the token itself is not sent; without a token its key is
//! empty. The server answers one byte. From then on the server alone speaks: frames of a length (4 bytes, little
//! endian) and an [`Update`] as JSON. What is told is not encrypted, as nothing of a job is.

use std::io::{self, Read, Write};

use sha2::{Digest, Sha256};

use crate::update::Update;

/// What a server says first; the number is that of the protocol.
pub(crate) const GREETING: &[u8; 19] = b"everburn-monitor 1\n";

/// The server lets the monitor in.
pub(crate) const WELCOME: u8 = 1;

/// The longest frame: a line of `ranks.jsonl` of as many ranks as are told apart.
pub(crate) const LONGEST_FRAME: usize = 8 << 20;

/// The size of what HMAC-SHA256 works on at a time.
const BLOCK: usize = 64;

pub(crate) type Proof = [u8; 32];

/// HMAC-SHA256 of what the server has drawn.
pub(crate) fn proof(token: Option<&str>, drawn: &[u8; 32]) -> Proof {
    let token = token.unwrap_or_default().as_bytes();
    let mut key = [0; BLOCK];
    match token.len() <= BLOCK {
        true => key[..token.len()].copy_from_slice(token),
        false => key[..32].copy_from_slice(&Sha256::digest(token)),
    }
    let inner = Sha256::new()
        .chain_update(key.map(|byte| byte ^ 0x36))
        .chain_update(drawn)
        .finalize();
    let outer = Sha256::new()
        .chain_update(key.map(|byte| byte ^ 0x5c))
        .chain_update(inner)
        .finalize();
    outer.into()
}

/// Whether two proofs are the same, in a time that does not tell where they differ.
pub(crate) fn same(left: &Proof, right: &Proof) -> bool {
    let difference = left.iter().zip(right).fold(0, |all, (a, b)| all | (a ^ b));
    std::hint::black_box(difference) == 0
}

/// 32 bytes that nobody can foretell.
pub(crate) fn draw() -> io::Result<[u8; 32]> {
    let mut drawn = [0; 32];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut drawn)?;
    Ok(drawn)
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

/// Reads the next update; `None` is one of a later version, which is passed over.
pub(crate) fn take(connection: &mut impl Read) -> io::Result<Option<Update>> {
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
    Ok(serde_json::from_slice(&text).ok())
}

/// Says to a monitor whether it is let in.
pub(crate) fn answer(connection: &mut impl Write, welcome: bool) -> io::Result<()> {
    connection.write_all(&[if welcome { WELCOME } else { 0 }])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn the_proof_is_hmac_sha_256() {
        // From Python: hmac.new(key, bytes(range(32)), "sha256").hexdigest()
        let drawn = std::array::from_fn(|index| index as u8);
        let long = "k".repeat(65);
        for (token, expected) in [
            (
                Some("secret"),
                "47860bcbb991426bea828dbf6097dff33339b093e3b9f61d9aef8a052f93e402",
            ),
            (
                None,
                "46bd320605c5a6b6163ab70bc6345b92a5f908e79fe58979c23ebb47d1a5e307",
            ),
            (
                Some(long.as_str()),
                "7c2893b0a52c611422846301feeda9be62060e172739a066dac4150c2b468f49",
            ),
        ] {
            assert_eq!(hex(&proof(token, &drawn)), expected);
        }
    }

    #[test]
    fn proofs_that_differ_in_one_bit_are_not_the_same() {
        let one = [7; 32];
        let mut other = one;
        assert!(same(&one, &other));
        other[31] ^= 1;
        assert!(!same(&one, &other));
    }

    #[test]
    fn frames_are_read_as_they_were_written() {
        let mut frames = Vec::new();
        put(&Update::Running(true), &mut frames);
        frames.extend([2, 0, 0, 0]);
        frames.extend(b"{}");
        put(&Update::Reset, &mut frames);
        let mut rest = &frames[..];
        assert_eq!(take(&mut rest).unwrap(), Some(Update::Running(true)));
        assert_eq!(take(&mut rest).unwrap(), None);
        assert_eq!(take(&mut rest).unwrap(), Some(Update::Reset));
        assert!(take(&mut rest).is_err());
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_bytes_are_an_error_at_most(bytes: Vec<u8>) {
            let mut rest = &bytes[..];
            while take(&mut rest).is_ok() {}
        }
    }
}
