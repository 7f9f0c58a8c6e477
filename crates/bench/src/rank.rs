//! This process as one of the ranks that a benchmark has started.

use std::net::IpAddr;

use everburn::collectives::group::{GroupOptions, ProcessGroup};
use everburn::collectives::rendezvous::{RendezvousRequest, rendezvous};
use everburn::launch::RankEnvironment;

use crate::failure::Failure;

/// Meets the other ranks; from then on this process ends with the benchmark. Also where the others reach this rank.
pub(crate) fn join(options: GroupOptions) -> Result<(ProcessGroup, IpAddr), Failure> {
    RankEnvironment::from_env()?.guard_against_orphaning()?;
    let joined = rendezvous("env://", RendezvousRequest::default())?;
    let address = joined.local_address;
    Ok((ProcessGroup::connect(joined, options)?, address))
}
