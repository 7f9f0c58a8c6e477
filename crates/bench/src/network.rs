//! Several machines on this one: a network namespace a rank, joined by links of a wanted rate.
//!
//! ```text
//!   namespace of rank 0          namespace of the switch          namespace of rank 1
//!     link0  ----- veth -----  port0   bridge   port1  ----- veth -----  link0
//! ```
//!
//! Both ends of every veth pair have a token bucket (`tbf`): `link0` limits what a rank sends,
//! `port` what it receives, so a link is full duplex as a real one is. The delay is `netem`'s, on
//! the sending side.
//!
//! Each rank is bound to processors of its own where there are enough, as a machine has its own.
//!
//! The bridge has a namespace of its own, so that nothing is left once all namespaces are gone, and
//! no firewall of the machine sees the frames. They go with their value; when this process is killed,
//! a [`CleanupGuard`] that waits for its end deletes them; and when that is killed too, the next run does:
//! names carry the process's number and start time.

mod commands;
mod cores;

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use clap::Args;

use self::commands::{CleanupGuard, Netns, ip, tc};
use super::owner::Owner;
use super::quantity::{Rate, parse_delay};
use crate::failure::Failure;

/// As many as get an address; far more than a machine can run.
const MOST_RANKS: usize = 64;

/// What a token bucket may let through at once, in time at its rate: short against any
/// measurement, long against the kernel's timers.
const BURST: Duration = Duration::from_millis(1);

/// The smallest burst: a few frames, without which low rates are not reached.
const LEAST_BURST: u64 = 16 << 10;

/// How long a packet may wait in a link before it is dropped: deep enough for all ranks to send to
/// one without loss.
const QUEUE: &str = "50ms";

/// The interface of a rank, in its namespace.
const INTERFACE: &str = "link0";

/// How the ranks of a benchmark are joined.
#[derive(Debug, Clone, Copy, Args)]
pub(super) struct LinkOptions {
    /// Run each rank in a network namespace, joined by links of this rate, such as 1gbit (root).
    #[arg(long, value_name = "RATE")]
    pub(super) link: Option<Rate>,

    /// Delay each packet on its way through a link, such as 0.5ms, where the kernel can.
    #[arg(long, value_name = "TIME", requires = "link", value_parser = parse_delay)]
    pub(super) delay: Option<Duration>,
}

impl LinkOptions {
    /// The links that are asked for, between this many ranks.
    pub(crate) fn network(&self, ranks: usize) -> Result<Option<Network>, Failure> {
        let make = |rate| Network::create(ranks, rate, self.delay);
        self.link.map(make).transpose()
    }

    /// Refuses transports that would not use the links.
    pub(crate) fn check<'a>(
        &self,
        transports: impl IntoIterator<Item = &'a str>,
    ) -> Result<(), Failure> {
        let other = transports.into_iter().find(|transport| *transport != "tcp");
        match (self.link, other) {
            (Some(_), Some(other)) => Err(Failure::Usage(format!(
                "--transport {other} with --link: the namespaces share this machine's memory, so \
                 the links would not be used; take --transport tcp"
            ))),
            _ => Ok(()),
        }
    }
}

/// Namespaces and links; they go when this value goes.
#[derive(Debug)]
pub(super) struct Network {
    ranks: Vec<Netns>,
    switch: Netns,
    rate: Rate,
    delay: Delay,
    /// By rank: the processors that it is bound to; empty where there are too few.
    cores: Vec<String>,
    // Dropped last, when nothing is left to do for it.
    _cleanup: CleanupGuard,
}

/// What has become of the wanted delay.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Delay {
    None,
    Set(Duration),
    /// Why the kernel has not taken it.
    Refused(String),
}

impl Network {
    /// Makes `ranks` namespaces and their links, after removing what killed runs have left.
    fn create(ranks: usize, rate: Rate, delay: Option<Duration>) -> Result<Self, Failure> {
        if !rustix::process::geteuid().is_root() {
            return Err(Failure::Usage(
                "--link makes network namespaces, which only root may: run it with `sudo -E`, or \
                 leave --link out"
                    .into(),
            ));
        }
        if ranks > MOST_RANKS {
            let what = format!("--link: at most {MOST_RANKS} ranks, not {ranks}");
            return Err(Failure::Usage(what));
        }
        commands::remove_leftovers(Path::new(commands::FOLDER))?;
        let owner = Owner::this_process()?;
        let guard = CleanupGuard::start(&owner.name(""))?;
        let switch = Netns::add(owner.name("switch"))?;
        ip(&format!(
            "-n {} link add bridge0 type bridge",
            switch.name()
        ))?;
        ip(&format!("-n {} link set bridge0 up", switch.name()))?;
        let mut network = Self {
            ranks: Vec::new(),
            switch,
            rate,
            delay: Delay::None,
            cores: cores::of_each(ranks),
            _cleanup: guard,
        };
        for rank in 0..ranks {
            let netns = Netns::add(owner.name(&rank.to_string()))?;
            network.join(rank, &netns, delay)?;
            network.ranks.push(netns);
        }
        Ok(network)
    }

    /// Joins the namespace of `rank` to the bridge.
    fn join(&mut self, rank: usize, netns: &Netns, delay: Option<Duration>) -> Result<(), Failure> {
        let (inside, switch) = (netns.name(), self.switch.name());
        let port = format!("port{rank}");
        let address = Self::address(rank);
        ip(&format!("-n {inside} link set lo up"))?;
        ip(&format!(
            "-n {switch} link add {port} type veth peer name {INTERFACE} netns {inside}"
        ))?;
        ip(&format!("-n {switch} link set {port} master bridge0 up"))?;
        ip(&format!(
            "-n {inside} addr add {address}/24 dev {INTERFACE}"
        ))?;
        ip(&format!("-n {inside} link set {INTERFACE} up"))?;
        let (rate, burst) = (self.rate.bits_per_second, burst(self.rate));
        for (namespace, device) in [(inside, INTERFACE), (switch, port.as_str())] {
            tc(&format!(
                "-n {namespace} qdisc add dev {device} root handle 1: tbf rate {rate}bit burst {burst} latency {QUEUE}"
            ))?;
        }
        if let Some(delay) = delay {
            let micros = delay.as_micros();
            let set = tc(&format!(
                "-n {inside} qdisc add dev {INTERFACE} parent 1: handle 10: netem delay {micros}us limit 100000"
            ));
            self.delay = match set {
                Ok(()) => Delay::Set(delay),
                Err(why) => Delay::Refused(why.to_string()),
            };
        }
        Ok(())
    }

    /// The address of `rank`.
    pub(super) fn address(rank: usize) -> Ipv4Addr {
        // At most `MOST_RANKS`.
        Ipv4Addr::new(10, 77, 0, rank as u8 + 1)
    }

    /// A call of `program` as `rank`, in its namespace.
    pub(super) fn command(&self, rank: usize, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", self.ranks[rank].name()]);
        if let Some(cores) = self.cores.get(rank) {
            command.args(cores::bind(cores));
        }
        // The peer: gloo takes the interface of the host's name unless it is told another.
        command.arg(program).env("GLOO_SOCKET_IFNAME", INTERFACE);
        command
    }

    pub(super) fn rate(&self) -> Rate {
        self.rate
    }

    /// The delay that packets really have.
    pub(super) fn delay(&self) -> Option<Duration> {
        match self.delay {
            Delay::Set(delay) => Some(delay),
            Delay::None | Delay::Refused(_) => None,
        }
    }

    /// How many bytes all ranks have sent, with headers and all that is sent again.
    pub(super) fn sent_bytes(&self) -> Result<u64, Failure> {
        let sent = self
            .ranks
            .iter()
            .map(|rank| commands::sent_bytes(rank, INTERFACE));
        sent.sum()
    }

    /// What one has to know to judge what was measured over it.
    pub(super) fn describe(&self) -> String {
        let link = format!(
            "link:    {} each way between {} namespaces, veth and a bridge, tbf; TCP with {}; {}",
            self.rate,
            self.ranks.len(),
            congestion_control(),
            match self.cores.as_slice() {
                [] => "ranks share the processors",
                _ => "processors of each rank's own",
            }
        );
        match &self.delay {
            Delay::None => link,
            Delay::Set(delay) => format!("{link}; {delay:?} of delay by netem"),
            Delay::Refused(why) => format!(
                "{link}\n         NO DELAY: this kernel does not take netem, so --delay has no \
                 effect ({why})"
            ),
        }
    }
}

/// What TCP paces itself by; namespaces have the machine's. How well several senders share the link
/// to one receiver depends on it.
fn congestion_control() -> String {
    let name = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control");
    name.map_or_else(
        |_| "an unknown congestion control".into(),
        |name| name.trim().to_owned(),
    )
}

/// The bytes that a token bucket of `rate` may let through at once.
fn burst(rate: Rate) -> u64 {
    let bytes = rate.bytes_per_second() * BURST.as_secs_f64();
    (bytes as u64).max(LEAST_BURST)
}

#[cfg(test)]
mod tests;
