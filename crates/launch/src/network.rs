//! Several machines on this one, each a network namespace, joined by links. No part of the API.
//!
//! ```text
//!   namespace of machine 0       namespace of the switch          namespace of machine 1
//!     link0  ----- veth -----  port0   bridge0   port1  ----- veth -----  link0
//! ```
//!
//! Where a link has a rate, both ends of its veth pair have a token bucket (`tbf`): `link0` limits what a machine sends,
//! `port` what it receives, so a link is full duplex as a real one is. A delay is `netem`'s, on the sending side. A link
//! is cut at the switch: the machine sees an interface without a carrier, as with a cable that is pulled.
//!
//! The bridge has a namespace of its own, so that nothing is left once all namespaces are gone, and no firewall of the
//! machine sees the frames. They go with their value; when this process is killed, a guard that waits for its end deletes
//! them; and when that is killed too, the next run does: names carry the process's number and start time.

mod commands;
mod rate;

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use everburn_record::Owner;

use self::commands::{CleanupGuard, Netns, ip, tc};
pub use self::rate::Rate;

/// As many as get an address; far more than a machine can run.
const MOST_MACHINES: usize = 64;

/// What a token bucket may let through at once, in time at its rate: short against any
/// measurement, long against the kernel's timers.
const BURST: Duration = Duration::from_millis(1);

/// The smallest burst: a few frames, without which low rates are not reached.
const LEAST_BURST: u64 = 16 << 10;

/// How long a packet may wait in a link before it is dropped: deep enough for all machines to send to
/// one without loss.
const QUEUE: &str = "50ms";

/// The interface of a machine, in its namespace.
pub const INTERFACE: &str = "link0";

/// The address of the switch, at which all machines reach what runs there.
pub const SWITCH: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 254);

/// Why there is no network.
#[doc(hidden)]
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// This process is not root's.
    #[error("only root may make network namespaces")]
    NotRoot,

    /// More machines than there are addresses.
    #[error("at most {most} machines can be joined, not {0}", most = MOST_MACHINES)]
    TooMany(usize),

    /// `ip` or `tc` is not installed.
    #[error("there is no `{0}`, which network namespaces need: install iproute2")]
    NoProgram(&'static str),

    /// A command has failed, or a process has no start time.
    #[error("{0}")]
    Failed(String),
}

/// Namespaces and links; they go when this value goes.
#[doc(hidden)]
#[derive(Debug)]
pub struct Network {
    machines: Vec<Netns>,
    switch: Netns,
    // Dropped last, when nothing is left to do for it.
    _cleanup: CleanupGuard,
}

impl Network {
    /// Makes this many namespaces and their links, after removing what killed processes have left.
    ///
    /// # Errors
    /// [`NetworkError`] that says what is missing.
    pub fn create(machines: usize) -> Result<Self, NetworkError> {
        if !rustix::process::geteuid().is_root() {
            return Err(NetworkError::NotRoot);
        }
        if machines > MOST_MACHINES {
            return Err(NetworkError::TooMany(machines));
        }
        commands::remove_leftovers(Path::new(commands::FOLDER))?;
        let owner = this_process()?;
        let guard = CleanupGuard::start(&owner.name(""))?;
        let switch = Netns::add(owner.name("switch"))?;
        let at = switch.name();
        ip(&format!("-n {at} link set lo up"))?;
        ip(&format!("-n {at} link add bridge0 type bridge"))?;
        ip(&format!("-n {at} addr add {SWITCH}/24 dev bridge0"))?;
        ip(&format!("-n {at} link set bridge0 up"))?;
        let mut network = Self {
            machines: Vec::new(),
            switch,
            _cleanup: guard,
        };
        for machine in 0..machines {
            let netns = Netns::add(owner.name(&machine.to_string()))?;
            network.join(machine, &netns)?;
            network.machines.push(netns);
        }
        Ok(network)
    }

    /// Joins the namespace of `machine` to the bridge.
    fn join(&self, machine: usize, netns: &Netns) -> Result<(), NetworkError> {
        let (inside, switch) = (netns.name(), self.switch.name());
        let (port, address) = (port(machine), Self::address(machine));
        ip(&format!("-n {inside} link set lo up"))?;
        ip(&format!(
            "-n {switch} link add {port} type veth peer name {INTERFACE} netns {inside}"
        ))?;
        ip(&format!("-n {switch} link set {port} master bridge0 up"))?;
        ip(&format!(
            "-n {inside} addr add {address}/24 dev {INTERFACE}"
        ))?;
        ip(&format!("-n {inside} link set {INTERFACE} up"))
    }

    /// Both ends of the link of `machine`: namespace and device.
    fn ends(&self, machine: usize) -> [(&str, String); 2] {
        [
            (self.machines[machine].name(), INTERFACE.to_owned()),
            (self.switch.name(), port(machine)),
        ]
    }

    /// Gives the link of `machine` this rate, both ways.
    ///
    /// # Errors
    /// [`NetworkError`] if the kernel refuses it.
    pub fn limit(&self, machine: usize, rate: Rate) -> Result<(), NetworkError> {
        let (bits, burst) = (rate.bits_per_second, burst(rate));
        for (namespace, device) in self.ends(machine) {
            tc(&format!(
                "-n {namespace} qdisc replace dev {device} root handle 1: tbf rate {bits}bit burst {burst} latency {QUEUE}"
            ))?;
        }
        Ok(())
    }

    /// Takes the rate of the link of `machine` away again.
    ///
    /// # Errors
    /// [`NetworkError`] if it has none.
    pub fn lift_limit(&self, machine: usize) -> Result<(), NetworkError> {
        for (namespace, device) in self.ends(machine) {
            tc(&format!("-n {namespace} qdisc del dev {device} root"))?;
        }
        Ok(())
    }

    /// Delays each packet that `machine` sends over its link, which has a rate.
    ///
    /// # Errors
    /// [`NetworkError`] if the kernel has no `netem`.
    pub fn delay(&self, machine: usize, delay: Duration) -> Result<(), NetworkError> {
        let (inside, micros) = (self.machines[machine].name(), delay.as_micros());
        tc(&format!(
            "-n {inside} qdisc add dev {INTERFACE} parent 1: handle 10: netem delay {micros}us limit 100000"
        ))
    }

    /// Cuts the link of `machine`.
    ///
    /// # Errors
    /// [`NetworkError`] if `ip` fails.
    pub fn cut(&self, machine: usize) -> Result<(), NetworkError> {
        self.set_port(machine, "down")
    }

    /// Joins the link of `machine` again.
    ///
    /// # Errors
    /// [`NetworkError`] if `ip` fails.
    pub fn restore(&self, machine: usize) -> Result<(), NetworkError> {
        self.set_port(machine, "up")
    }

    fn set_port(&self, machine: usize, state: &str) -> Result<(), NetworkError> {
        let (switch, port) = (self.switch.name(), port(machine));
        ip(&format!("-n {switch} link set {port} {state}"))
    }

    /// The address of `machine`.
    #[must_use]
    pub fn address(machine: usize) -> Ipv4Addr {
        // At most `MOST_MACHINES`.
        Ipv4Addr::new(10, 77, 0, machine as u8 + 1)
    }

    /// A call of `program` on `machine`, in its namespace.
    #[must_use]
    pub fn command(&self, machine: usize, program: &Path) -> Command {
        self.machines[machine].command(program)
    }

    /// A call of `program` in the namespace of the switch.
    #[must_use]
    pub fn command_at_switch(&self, program: &Path) -> Command {
        self.switch.command(program)
    }

    /// How many bytes all machines have sent, with headers and all that is sent again.
    ///
    /// # Errors
    /// [`NetworkError`] if `ip` does not report it.
    pub fn sent_bytes(&self) -> Result<u64, NetworkError> {
        let sent = self.machines.iter();
        sent.map(|machine| commands::sent_bytes(machine, INTERFACE))
            .sum()
    }

    /// The namespaces of this process that are there.
    ///
    /// # Errors
    /// [`NetworkError`] if the start of this process is not known.
    pub fn namespaces() -> Result<Vec<String>, NetworkError> {
        let own = this_process()?.name("");
        let mut names = commands::names(Path::new(commands::FOLDER));
        names.retain(|name| name.starts_with(&own));
        Ok(names)
    }
}

fn this_process() -> Result<Owner, NetworkError> {
    Owner::this_process().map_err(|error| NetworkError::Failed(error.to_string()))
}

/// The switch's end of the link of `machine`.
fn port(machine: usize) -> String {
    format!("port{machine}")
}

/// The bytes that a token bucket of `rate` may let through at once.
fn burst(rate: Rate) -> u64 {
    let bytes = rate.bytes_per_second() * BURST.as_secs_f64();
    (bytes as u64).max(LEAST_BURST)
}

#[cfg(test)]
mod tests;
