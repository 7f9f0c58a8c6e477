//! Mutual challenge and response, without sockets: both sides as values that a blocking or an
//! event-driven protocol drives.

use hmac::Mac;

use crate::{AuthError, Key, random};

/// The size of a nonce, which is a dialer's first message, in bytes.
pub const NONCE_BYTES: usize = 32;

/// The size of a proof, which is a dialer's second message, in bytes.
pub const PROOF_BYTES: usize = 32;

/// The size of an acceptor's message: its nonce and its proof, in bytes.
pub const CHALLENGE_BYTES: usize = NONCE_BYTES + PROOF_BYTES;

/// The labels of the proofs of the two sides.
const DIALER: &[u8] = b"dialer  ";
const ACCEPTOR: &[u8] = b"acceptor";

/// The side that has made the connection and speaks first.
#[derive(Debug)]
pub struct Dialer {
    key: Key,
    context: Vec<u8>,
    nonce: [u8; NONCE_BYTES],
}

impl Dialer {
    /// Draws a nonce. Both sides must give the same `context`.
    ///
    /// # Errors
    /// [`AuthError::NoRandomness`] when the operating system gives none.
    pub fn new(key: &Key, context: &[u8]) -> Result<Self, AuthError> {
        Ok(Self {
            key: key.clone(),
            context: context.to_vec(),
            nonce: random()?,
        })
    }

    /// What to send first.
    #[must_use]
    pub fn nonce(&self) -> &[u8; NONCE_BYTES] {
        &self.nonce
    }

    /// Gives another context, where the acceptor says part of it in its answer.
    #[must_use]
    pub fn with_context(mut self, context: &[u8]) -> Self {
        self.context = context.to_vec();
        self
    }

    /// Checks the acceptor's proof, and answers with this side's.
    ///
    /// # Errors
    /// [`AuthError::WrongSecret`] when the acceptor does not know the secret or the context
    /// differs. Nothing must be sent to it then.
    pub fn answer(self, challenge: &[u8; CHALLENGE_BYTES]) -> Result<[u8; PROOF_BYTES], AuthError> {
        let (theirs, proof) = challenge.split_at(NONCE_BYTES);
        let proof_of = |label| transcript(&self.key, label, &self.nonce, theirs, &self.context);
        proof_of(ACCEPTOR)
            .verify_slice(proof)
            .map_err(|_| AuthError::WrongSecret)?;
        Ok(proof_of(DIALER).finalize().into_bytes().into())
    }
}

/// The side that has accepted the connection.
#[derive(Debug)]
pub struct Acceptor {
    key: Key,
    context: Vec<u8>,
    theirs: [u8; NONCE_BYTES],
    nonce: [u8; NONCE_BYTES],
}

impl Acceptor {
    /// Draws a nonce and makes the message that answers a dialer's nonce. Both sides must give the
    /// same `context`.
    ///
    /// # Errors
    /// [`AuthError::NoRandomness`] when the operating system gives none.
    pub fn new(
        key: &Key,
        context: &[u8],
        theirs: &[u8; NONCE_BYTES],
    ) -> Result<(Self, [u8; CHALLENGE_BYTES]), AuthError> {
        let nonce = random()?;
        let mut challenge = [0; CHALLENGE_BYTES];
        challenge[..NONCE_BYTES].copy_from_slice(&nonce);
        let proof = transcript(key, ACCEPTOR, theirs, &nonce, context).finalize();
        challenge[NONCE_BYTES..].copy_from_slice(&proof.into_bytes());
        let acceptor = Self {
            key: key.clone(),
            context: context.to_vec(),
            theirs: *theirs,
            nonce,
        };
        Ok((acceptor, challenge))
    }

    /// Checks the dialer's proof, in a time that does not tell where it differs.
    ///
    /// # Errors
    /// [`AuthError::WrongSecret`] when the dialer does not know the secret or the context differs.
    pub fn verify(self, proof: &[u8; PROOF_BYTES]) -> Result<(), AuthError> {
        transcript(&self.key, DIALER, &self.theirs, &self.nonce, &self.context)
            .verify_slice(proof)
            .map_err(|_| AuthError::WrongSecret)
    }
}

/// What one side proves: its label, both nonces (of fixed length) and the context, under the key.
fn transcript(
    key: &Key,
    label: &[u8],
    dialer: &[u8],
    acceptor: &[u8],
    context: &[u8],
) -> hmac::Hmac<sha2::Sha256> {
    let mut mac = key.mac();
    for part in [label, dialer, acceptor, context] {
        mac.update(part);
    }
    mac
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(secret: u8) -> Key {
        Key::from_secret(&[secret; 32], "test")
    }

    /// Runs the handshake: how it ended on the dialer's and on the acceptor's side.
    fn run(
        dialers: (&Key, &[u8]),
        acceptors: (&Key, &[u8]),
    ) -> (Result<(), AuthError>, Result<(), AuthError>) {
        let dialer = Dialer::new(dialers.0, dialers.1).unwrap();
        let (acceptor, challenge) =
            Acceptor::new(acceptors.0, acceptors.1, dialer.nonce()).unwrap();
        match dialer.answer(&challenge) {
            Ok(proof) => (Ok(()), acceptor.verify(&proof)),
            // An acceptor that gets anything else refuses it.
            Err(error) => (Err(error), acceptor.verify(&[7; PROOF_BYTES])),
        }
    }

    #[test]
    fn both_sides_agree_only_on_one_key_and_one_context() {
        assert_eq!(run((&key(1), b"x"), (&key(1), b"x")), (Ok(()), Ok(())));
        let refused = (Err(AuthError::WrongSecret), Err(AuthError::WrongSecret));
        assert_eq!(run((&key(1), b"x"), (&key(2), b"x")), refused);
        assert_eq!(run((&key(1), b"x"), (&key(1), b"y")), refused);
    }

    #[test]
    fn a_proof_cannot_be_reflected_or_replayed() {
        let dialer = Dialer::new(&key(1), b"").unwrap();
        let (acceptor, challenge) = Acceptor::new(&key(1), b"", dialer.nonce()).unwrap();
        let theirs: [u8; PROOF_BYTES] = challenge[NONCE_BYTES..].try_into().unwrap();
        assert_eq!(acceptor.verify(&theirs), Err(AuthError::WrongSecret));
        let proof = dialer.answer(&challenge).unwrap();
        let again = Dialer::new(&key(1), b"").unwrap();
        let (acceptor, _) = Acceptor::new(&key(1), b"", again.nonce()).unwrap();
        assert_eq!(acceptor.verify(&proof), Err(AuthError::WrongSecret));
    }

    proptest::proptest! {
        #[test]
        fn any_altered_bit_of_a_message_is_refused(place in 0..CHALLENGE_BYTES, bit in 0..8) {
            let dialer = Dialer::new(&key(1), b"").unwrap();
            let (_, mut challenge) = Acceptor::new(&key(1), b"", dialer.nonce()).unwrap();
            challenge[place] ^= 1_u8 << bit;
            proptest::prop_assert_eq!(dialer.answer(&challenge), Err(AuthError::WrongSecret));
        }
    }
}
