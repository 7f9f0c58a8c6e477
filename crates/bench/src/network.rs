//! The machines of a benchmark: a network namespace a rank, joined by links of a wanted rate.
//!
//! Each rank is bound to processors of its own where there are enough, as a machine has its own.

mod cores;

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use clap::Args;
use everburn::launch::network::{INTERFACE, Network as Namespaces, NetworkError, Rate};

use super::quantity::parse_delay;
use crate::failure::Failure;

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
    /// One per rank.
    namespaces: Namespaces,
    ranks: usize,
    rate: Rate,
    delay: Delay,
    /// By rank: the processors that it is bound to; empty where there are too few.
    cores: Vec<String>,
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
    /// Makes `ranks` namespaces and their links.
    fn create(ranks: usize, rate: Rate, delay: Option<Duration>) -> Result<Self, Failure> {
        let namespaces = Namespaces::create(ranks).map_err(|error| match error {
            NetworkError::NotRoot => Failure::usage(
                "--link makes network namespaces, which only root may: run it with `sudo -E`, or \
                 leave --link out",
            ),
            NetworkError::TooMany(_) => Failure::usage(format!("--link: {error}")),
            error => error.into(),
        })?;
        let mut set = Delay::None;
        for rank in 0..ranks {
            namespaces.limit(rank, rate)?;
            if let Some(delay) = delay {
                set = match namespaces.delay(rank, delay) {
                    Ok(()) => Delay::Set(delay),
                    Err(why) => Delay::Refused(why.to_string()),
                };
            }
        }
        Ok(Self {
            namespaces,
            ranks,
            rate,
            delay: set,
            cores: cores::of_each(ranks),
        })
    }

    /// The address of `rank`.
    pub(super) fn address(rank: usize) -> Ipv4Addr {
        Namespaces::address(rank)
    }

    /// A call of `program` as `rank`, in its namespace.
    pub(super) fn command(&self, rank: usize, program: &Path) -> Command {
        let mut command = match self.cores.get(rank) {
            Some(cores) => {
                let [taskset, flag, cores] = cores::bind(cores);
                let mut command = self.namespaces.command(rank, Path::new(taskset));
                command.args([flag, cores]).arg(program);
                command
            }
            None => self.namespaces.command(rank, program),
        };
        // The peer: gloo takes the interface of the host's name unless it is told another.
        command.env("GLOO_SOCKET_IFNAME", INTERFACE);
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
        Ok(self.namespaces.sent_bytes()?)
    }

    /// What one has to know to judge what was measured over it.
    pub(super) fn describe(&self) -> String {
        let link = format!(
            "link:    {} each way between {} namespaces, veth and a bridge, tbf; TCP with {}; {}",
            self.rate,
            self.ranks,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_in_namespaces_with_links_of_the_wanted_rate() {
        let rate = "100mbit".parse().unwrap();
        let network = match Network::create(2, rate, Some(Duration::from_millis(1))) {
            Ok(network) => network,
            Err(why) => {
                everburn_tests::skip("links of a rate", &why.to_string());
                return;
            }
        };
        let described = network.describe();
        assert!(
            described.starts_with("link:    100mbit each way between 2 namespaces"),
            "{described}"
        );
        assert_ne!(network.delay().is_some(), described.contains("NO DELAY"));
        let mut listing = network.command(0, Path::new("ip"));
        let listing = listing.args(["-o", "addr", "show", "dev", INTERFACE]);
        let listing = listing.output().unwrap();
        let listing = String::from_utf8_lossy(&listing.stdout).into_owned();
        assert!(listing.contains("10.77.0.1/24"), "{listing}");
    }
}
