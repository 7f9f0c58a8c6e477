//! Ranks exchange bytes: stores, rendezvous and process groups, without Burn.

pub mod rendezvous;
pub mod store;
