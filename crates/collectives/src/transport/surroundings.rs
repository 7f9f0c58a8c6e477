//! Where a rank runs, as the other ranks need to know it.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};

use serde::{Deserialize, Serialize};

/// Where a rank runs: what decides how its data get to another rank.
///
/// ```
/// use everburn_collectives::transport::Surroundings;
///
/// let here = Surroundings::of_this_process();
/// assert_eq!(here.process, std::process::id());
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Surroundings {
    /// What tells this machine from others: ranks with equal hosts share memory if they can.
    pub host: String,
    /// The process: its peers find the memory that it shares under its number in `/proc`.
    pub process: u32,
    /// The address at which the other ranks reach this one.
    pub address: IpAddr,
}

impl Surroundings {
    /// Those of this process, for peers on the same machine.
    ///
    /// The host is the kernel's boot id and the network namespace: what is made to look like
    /// several machines (containers, or namespaces joined by slow links) is treated as such.
    #[must_use]
    pub fn of_this_process() -> Self {
        let boot = everburn_record::proc::boot_id();
        let network = fs::read_link("/proc/thread-self/ns/net").unwrap_or_default();
        let process = std::process::id();
        let host = match boot {
            // No two processes are known to share this machine.
            None => format!("process {process}"),
            Some(boot) => format!("{boot} {}", network.display()),
        };
        Self {
            host,
            process,
            address: Ipv4Addr::LOCALHOST.into(),
        }
    }
}
