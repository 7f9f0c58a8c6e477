//! The machine, process and address of a rank, as other ranks need them.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};

use serde::{Deserialize, Serialize};

/// The machine, process and address of a rank. They decide between shared memory and TCP.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::transport::HostInfo;
///
/// let here = HostInfo::of_this_process();
/// assert_eq!(here.process, std::process::id());
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostInfo {
    /// Identifies the machine: ranks with equal hosts share memory if possible.
    pub host: String,
    /// The process id; peers open its shared memory through `/proc`.
    pub process: u32,
    /// The address on which this rank listens.
    pub address: IpAddr,
}

impl HostInfo {
    /// The host information of this process, with the loopback address.
    ///
    /// The host is the kernel's boot id and the network namespace: containers or namespaces with separate
    /// networks count as separate machines.
    #[must_use]
    pub fn of_this_process() -> Self {
        let boot = everburn_record::proc::boot_id();
        let network = fs::read_link("/proc/thread-self/ns/net").unwrap_or_default();
        let process = std::process::id();
        let host = match boot {
            // Without a boot id each process counts as a machine of its own.
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
