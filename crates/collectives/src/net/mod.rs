//! Connections between ranks: one listener and one handshake for the mesh and for channels.
//!
//! The higher rank of a pair dials the lower one. Both prove that they know the job's secret
//! ([`everburn_auth`]) before either believes what the other says:
//!
//! | from | message | bytes |
//! |---|---|---|
//! | dialer | magic, version, [`Hello`], nonce | 72 |
//! | acceptor | its rank and world size, nonce and proof | 72 |
//! | dialer | proof | 32 |
//! | acceptor | [`Verdict`] | 4 |
//!
//! The proofs cover everything that was said in the clear. A dialer that knows the secret always
//! learns the verdict, so a connection that the acceptor does not want is never taken for one.

mod acceptor;
mod dialer;
mod hello;
mod pending;
mod pending_quota;
mod refusals;

pub(crate) use acceptor::{Acceptor, Expected};
pub(crate) use dialer::{DialError, introduce};
pub(crate) use hello::{Hello, Purpose};
pub(crate) use pending_quota::PendingQuota;
pub(crate) use refusals::Refusals;

#[cfg(any(test, fuzzing))]
pub(crate) mod hostile;
#[cfg(test)]
mod tests;
