//! How ranks find each other: `env://`, `tcp://host:port` and `file://path`.

use std::time::Duration;

use crate::store::SharedStore;

/// What a rank knows of itself before it joins; `None` is filled from the init method.
#[derive(Debug, Clone, Default)]
pub struct RendezvousRequest {
    /// This rank's number, 0 to world size - 1.
    pub rank: Option<usize>,
    /// How many ranks there are.
    pub world_size: Option<usize>,
    /// The deadline of the whole rendezvous.
    pub timeout: Option<Duration>,
    /// The secret that a store on an address other than loopback demands.
    pub job_token: Option<String>,
}

/// A rank that has reached the store: everything that a process group is built from.
#[derive(Debug, Clone)]
pub struct Rendezvous {
    /// The store that all ranks of the job share.
    pub store: SharedStore,
    /// This rank's number.
    pub rank: usize,
    /// How many ranks there are.
    pub world_size: usize,
    /// This rank's number on its own machine.
    pub local_rank: usize,
    /// The address on which this rank's listeners bind and which peers connect to.
    pub local_address: std::net::IpAddr,
    /// The deadline of operations that are given none.
    pub timeout: Duration,
}
