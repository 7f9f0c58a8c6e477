//! Values that etcd keeps, authenticated under the secret of the job.
//!
//! etcd itself has no notion of a job's secret: everybody who can reach it can write. So each value begins with a
//! code (HMAC-SHA-256) of its key and itself, and a value without the right one is refused. Who does not have the
//! secret cannot join, nor put a value of their own under a key. They can still read, delete keys, and put an
//! earlier value of a key back: who can reach etcd is for its operator to decide.

use everburn_auth::{CODE_BYTES, Key};

use crate::store::StoreAccess;

/// The first byte of a value without a code.
const OPEN: u8 = 0;

/// The first byte of a value with a code.
const CODED: u8 = 1;

/// How many bytes more than its value an entry has.
pub(super) const SEAL_BYTES: usize = 1 + CODE_BYTES;

/// How the job's values are sealed.
#[derive(Debug)]
pub(super) struct Seal(Option<Key>);

/// A value that is not of this job.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Foreign;

impl Seal {
    pub(super) fn new(access: &StoreAccess) -> Self {
        Self(match access {
            StoreAccess::Token(token) => Some(token.key("etcd")),
            StoreAccess::Open => None,
        })
    }

    /// The entry that keeps `value` under `key`.
    pub(super) fn seal(&self, key: &[u8], value: &[u8]) -> Vec<u8> {
        let mut entry = Vec::with_capacity(SEAL_BYTES + value.len());
        match &self.0 {
            None => entry.push(OPEN),
            Some(secret) => {
                entry.push(CODED);
                entry.extend_from_slice(&secret.code(&[key, value]));
            }
        }
        entry.extend_from_slice(value);
        entry
    }

    /// The value of the `entry` under `key`.
    pub(super) fn open<'a>(&self, key: &[u8], entry: &'a [u8]) -> Result<&'a [u8], Foreign> {
        match (&self.0, entry.split_first()) {
            (None, Some((&OPEN, value))) => Ok(value),
            (Some(secret), Some((&CODED, rest))) => {
                let (code, value) = rest.split_first_chunk().ok_or(Foreign)?;
                secret
                    .verify(&[key, value], code)
                    .map_err(|_| Foreign)
                    .map(|()| value)
            }
            _ => Err(Foreign),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(token: &str) -> Seal {
        Seal::new(&StoreAccess::Token(token.parse().unwrap()))
    }

    #[test]
    fn only_who_has_the_secret_makes_values_and_only_for_their_key() {
        let (ours, theirs) = (secret("the secret of ours"), secret("a secret of theirs"));
        let open = Seal::new(&StoreAccess::Open);
        let entry = ours.seal(b"k", b"value");
        assert_eq!(entry.len(), SEAL_BYTES + 5);
        assert_eq!(ours.open(b"k", &entry), Ok(&b"value"[..]));
        assert_eq!(ours.open(b"other", &entry), Err(Foreign));
        assert_eq!(theirs.open(b"k", &entry), Err(Foreign));
        assert_eq!(open.open(b"k", &entry), Err(Foreign));
        let plain = open.seal(b"k", b"value");
        assert_eq!(open.open(b"k", &plain), Ok(&b"value"[..]));
        assert_eq!(ours.open(b"k", &plain), Err(Foreign));
    }

    proptest::proptest! {
        #[test]
        fn no_other_bytes_are_a_value(entry: Vec<u8>) {
            proptest::prop_assert_eq!(secret("the secret of ours").open(b"k", &entry), Err(Foreign));
        }

        #[test]
        fn any_altered_bit_is_found(place in 0_usize..38, bit in 0..8) {
            let seal = secret("the secret of ours");
            let mut entry = seal.seal(b"k", b"value");
            entry[place] ^= 1_u8 << bit;
            proptest::prop_assert_eq!(seal.open(b"k", &entry), Err(Foreign));
        }
    }
}
