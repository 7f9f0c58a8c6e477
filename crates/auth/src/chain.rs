//! A chain of entries, of which none can be changed without changing all links after it.

use std::fmt;

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};

use crate::{AuthError, CODE_BYTES, Key};

/// The size of a link, in bytes: that of SHA-256.
const LINK_BYTES: usize = 32;

/// The end of a chain of entries: SHA-256 of the link before it and of the newest entry. It depends on all entries and
/// their order. Its text is hexadecimal; the default is the link before the first entry.
///
/// ```
/// use everburn_auth::{ChainLink, JobToken};
///
/// let link = ChainLink::default().then(b"one").then(b"two");
/// assert_ne!(link, ChainLink::default().then(b"two").then(b"one"));
/// assert_eq!(ChainLink::from_hexadecimal(&link.to_string()), Some(link));
///
/// let key = JobToken::random()?.key("example");
/// assert_eq!(link.verify(&link.sign(&key), &key), Ok(()));
/// # Ok::<(), everburn_auth::AuthError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ChainLink([u8; LINK_BYTES]);

impl ChainLink {
    /// The link that `text` is; `None` if it is none.
    #[must_use]
    pub fn from_hexadecimal(text: &str) -> Option<Self> {
        let bytes = HEXLOWER.decode(text.as_bytes()).ok()?;
        Some(Self(bytes.try_into().ok()?))
    }

    /// The link after one more entry.
    #[must_use]
    pub fn then(self, entry: &[u8]) -> Self {
        let mut hash = Sha256::new();
        // Of one length, so that it cannot pass for a part of the entry.
        hash.update(self.0);
        hash.update(entry);
        Self(hash.finalize().into())
    }

    /// The signature of all entries up to this link, in hexadecimal: who does not have the key cannot make it.
    #[must_use]
    pub fn sign(self, key: &Key) -> String {
        HEXLOWER.encode(&key.code(&[&self.0[..]]))
    }

    /// Checks a [signature](Self::sign).
    ///
    /// # Errors
    /// [`AuthError::WrongSecret`] if it was made with another key or of another link, or is no signature.
    pub fn verify(self, signature: &str, key: &Key) -> Result<(), AuthError> {
        let code = HEXLOWER.decode(signature.as_bytes());
        let code = code.map_err(|_| AuthError::WrongSecret)?;
        let code = <[u8; CODE_BYTES]>::try_from(code).map_err(|_| AuthError::WrongSecret)?;
        key.verify(&[&self.0[..]], &code)
    }
}

impl fmt::Display for ChainLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&HEXLOWER.encode(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(entries: &[&str]) -> ChainLink {
        let start = ChainLink::default();
        entries
            .iter()
            .fold(start, |link, entry| link.then(entry.as_bytes()))
    }

    #[test]
    fn a_link_is_sha_256_of_the_link_before_and_the_entry() {
        // From Python: hashlib.sha256(bytes(32) + b"one").hexdigest()
        let expected = "4e233ba6ac7032d3894ecea5974fd96176e564b024af45747eb46357af8d2401";
        assert_eq!(chain(&["one"]).to_string(), expected);
        for none in ["", "00", &expected[1..], &"g".repeat(64)] {
            assert_eq!(ChainLink::from_hexadecimal(none), None, "{none}");
        }
    }

    #[test]
    fn an_entry_that_is_changed_added_left_out_or_moved_changes_the_chain() {
        let whole = chain(&["a", "b", "c"]);
        let others: [&[&str]; 6] = [
            &["a", "x", "c"],
            &["a", "b", "b", "c"],
            &["a", "c"],
            &["b", "a", "c"],
            &["ab", "c"],
            &["a", "b"],
        ];
        for other in others {
            assert_ne!(chain(other), whole, "{other:?}");
        }
    }

    #[test]
    fn signatures_are_of_one_link_and_one_key() {
        let (key, other) = (Key::random().unwrap(), Key::random().unwrap());
        let (link, signature) = (chain(&["a"]), chain(&["a"]).sign(&key));
        assert_eq!(link.verify(&signature, &key), Ok(()));
        let wrong = Err(AuthError::WrongSecret);
        assert_eq!(link.verify(&signature, &other), wrong);
        assert_eq!(chain(&["b"]).verify(&signature, &key), wrong);
        for none in ["", "00", &signature[2..], "not hexadecimal"] {
            assert_eq!(link.verify(none, &key), wrong, "{none}");
        }
    }
}
