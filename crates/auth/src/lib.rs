//! The secret of a job, and how both sides of a connection prove to each other that they have it.
//!
//! Every connection of a job (store, mesh, channels, monitor) begins with the same mutual
//! challenge and response. Nothing secret is sent, and a recorded handshake cannot be replayed:
//!
//! ```text
//! dialer   -> acceptor   nonce d                                   32 bytes
//! acceptor -> dialer     nonce a, HMAC(key, "acceptor" d a context) 64 bytes
//! dialer   -> acceptor   HMAC(key, "dialer" d a context)            32 bytes
//! ```
//!
//! HMAC is HMAC-SHA-256 (RFC 2104). `key` is a [`Key`] derived from the [`JobToken`] for one
//! purpose, so a proof made for one protocol is no proof in another. `context` is what both sides
//! have sent in the clear before, such as their ranks. The two directions have different labels, so
//! a proof cannot be reflected.
//!
//! The handshake authenticates the peer when the connection begins. The data that follow are neither
//! encrypted nor authenticated: see SECURITY.md.
//!
//! A [`ChainLink`] is the end of a chain of entries, such as the lines of a record, of which none can be changed unseen.
//!
//! ```
//! use everburn_auth::{Acceptor, Dialer, JobToken};
//!
//! let token = JobToken::random()?;
//! let key = token.key("example");
//! let dialer = Dialer::new(&key, b"rank 1")?;
//! let (acceptor, challenge) = Acceptor::new(&key, b"rank 1", dialer.nonce())?;
//! let proof = dialer.answer(&challenge)?;
//! acceptor.verify(&proof)?;
//! # Ok::<(), everburn_auth::AuthError>(())
//! ```

mod chain;
mod handshake;
mod token;

pub use chain::ChainLink;
pub use handshake::{Acceptor, CHALLENGE_BYTES, Dialer, NONCE_BYTES, PROOF_BYTES};
pub use token::{CODE_BYTES, GivenToken, JobToken, Key, MAX_TOKEN_BYTES, MIN_TOKEN_BYTES};

/// Why a token is not taken or a handshake has failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AuthError {
    /// The token is too short to be a secret, or too long.
    #[error(
        "the job token has {bytes} bytes; {MIN_TOKEN_BYTES} to {MAX_TOKEN_BYTES} are needed; make \
         one with `openssl rand -hex 32`"
    )]
    TokenLength {
        /// The length of the token that was given.
        bytes: usize,
    },
    /// The token was not UTF-8 before it was read.
    #[error(
        "the job token has bytes that are not UTF-8; make one with `openssl rand -hex 32`, the same for \
         all ranks"
    )]
    TokenNotText,
    /// The other side has not proved that it knows the job's secret.
    #[error("the other side does not have the job's secret")]
    WrongSecret,
    /// The operating system gives no random bytes.
    #[error("the operating system gives no random bytes: {reason}")]
    NoRandomness {
        /// What the system said.
        reason: String,
    },
}

/// `N` bytes from the operating system that nobody can predict.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], AuthError> {
    use rand::TryRng;

    let mut bytes = [0; N];
    let filled = rand::rngs::SysRng.try_fill_bytes(&mut bytes);
    filled.map_err(|error| AuthError::NoRandomness {
        reason: error.to_string(),
    })?;
    Ok(bytes)
}
