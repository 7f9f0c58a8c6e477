//! Connections between ranks: listener and handshake of the mesh and of channels.
//!
//! The higher rank of a pair dials the lower one. Both prove that they have the job's secret
//! ([`everburn_auth`]) before either uses any other data of the peer:
//!
//! | from | message | bytes |
//! |---|---|---|
//! | dialer | magic, version, [`Hello`], nonce | 72 |
//! | acceptor | rank and world size, nonce, proof | 72 |
//! | dialer | proof | 32 |
//! | acceptor | [`Verdict`] | 4 |
//!
//! The proofs cover all cleartext fields. A dialer with the secret always receives the verdict, so
//! it never uses a connection that the acceptor has refused.

mod acceptor;
mod connector;
mod dialer;
mod hello;
mod pending;
mod pending_quota;
mod refusals;

pub(crate) use acceptor::{Acceptor, Expected, Listening};
pub(crate) use connector::{Connector, FailedDial};
pub(crate) use dialer::DialError;
use dialer::dial;
#[cfg(any(test, fuzzing))]
pub(crate) use dialer::introduce;
pub(crate) use hello::{Hello, Purpose};
pub(crate) use pending_quota::PendingQuota;
pub(crate) use refusals::Refusals;

#[cfg(any(test, fuzzing))]
pub(crate) mod hostile;
#[cfg(test)]
mod tests;
