//! The command line of `bench collectives`, and the cases that it asks for.

use std::path::PathBuf;

use clap::Parser;

use super::rank::Operation;
use crate::bench::{at_least_1, check_place};
use crate::failure::Failure;
use crate::network::LinkOptions;
use crate::peers::{Peer, one_of};
use crate::quantity::Bytes;

/// Algorithms that are compared over links unless others are named: those for large messages.
const OVER_LINKS: [&str; 3] = ["ring", "direct", "halving-doubling"];

/// Who is measured too.
pub(super) const PEERS: [Peer; 2] = [Peer::Gloo, Peer::Mpi];

/// The peers' programs measure this alone.
pub(super) const PEERS_OPERATION: Operation = Operation::AllReduce;

/// Measures collectives between real processes, by size, ranks and transport.
///
/// Blocking calls in place on 32-bit floats, by rank 0's clock, after a warm-up and a barrier. All
/// lines of a size are measured in turn, and that some rounds long, so that a slow minute of the
/// machine falls on all. A peer that is missing is refused at the start.
#[derive(Debug, Parser)]
pub(crate) struct CollectivesBench {
    /// How many ranks exchange [default: 2,4; over links 4].
    #[arg(long, value_delimiter = ',')]
    ranks: Vec<usize>,

    /// Lengths of messages, K, M and G being powers of 1024 [default: 1K,64K,1M,25M,100M; over
    /// links 64K,1M,25M].
    #[arg(long, value_delimiter = ',')]
    bytes: Vec<Bytes>,

    /// auto, shm, tcp [default: shm,tcp; over links tcp].
    #[arg(long, value_delimiter = ',', value_parser = ["auto", "shm", "tcp"])]
    transport: Vec<String>,

    /// The collectives.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [PEERS_OPERATION])]
    operation: Vec<Operation>,

    /// One algorithm for all messages, as in ring,direct,halving-doubling,recursive-doubling,flat;
    /// `auto` is the one that is chosen by size and ranks [default: auto; over links also ring,
    /// direct and halving-doubling].
    #[arg(long, value_delimiter = ',')]
    algorithm: Vec<String>,

    /// How many rounds.
    #[arg(long, default_value_t = 5, value_parser = at_least_1)]
    pub(super) rounds: usize,

    /// Measure these peers in the same rounds, and print the ratio to each and to the fastest.
    #[arg(long, value_name = "PEERS", value_delimiter = ',', value_parser = one_of(PEERS))]
    pub(super) against: Vec<Peer>,

    #[command(flatten)]
    pub(super) link: LinkOptions,

    /// Draw GB/s by size.
    #[arg(long, value_name = "FILE.svg")]
    pub(super) plot: Option<PathBuf>,
}

/// Ranks that exchange in one way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Way {
    pub(super) ranks: usize,
    pub(super) transport: String,
    /// `None`: chosen by size and ranks.
    pub(super) algorithm: Option<String>,
}

/// What the ranks do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Task {
    pub(super) operation: Operation,
    pub(super) bytes: Bytes,
}

impl CollectivesBench {
    pub(super) fn over_links(&self) -> bool {
        self.link.link.is_some()
    }

    pub(super) fn ranks(&self) -> Vec<usize> {
        let usual: &[usize] = if self.over_links() { &[4] } else { &[2, 4] };
        given_or(&self.ranks, usual)
    }

    /// All ways of `ranks` ranks.
    pub(super) fn ways(&self, ranks: usize) -> Vec<Way> {
        let links = self.over_links();
        let transports: &[&str] = if links { &["tcp"] } else { &["shm", "tcp"] };
        let transports = given_or(
            &self.transport,
            &transports
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>(),
        );
        let usual = ["auto"]
            .into_iter()
            .chain(OVER_LINKS.into_iter().filter(|_| links));
        let algorithms = given_or(
            &self.algorithm,
            &usual.map(str::to_owned).collect::<Vec<_>>(),
        );
        let mut ways = Vec::new();
        for transport in &transports {
            for algorithm in &algorithms {
                ways.push(Way {
                    ranks,
                    transport: transport.clone(),
                    algorithm: Some(algorithm.clone()).filter(|name| name != "auto"),
                });
            }
        }
        ways
    }

    /// What each way does, in the order of the sizes.
    pub(super) fn tasks(&self) -> Vec<Task> {
        let usual: &[u64] = match self.over_links() {
            true => &[64 << 10, 1 << 20, 25 << 20],
            false => &[1 << 10, 64 << 10, 1 << 20, 25 << 20, 100 << 20],
        };
        let usual: Vec<_> = usual.iter().map(|&bytes| Bytes(bytes)).collect();
        let mut sizes = given_or(&self.bytes, &usual);
        sizes.sort();
        let mut tasks = Vec::new();
        for &operation in &self.operation {
            let of = |&bytes: &Bytes| Task { operation, bytes };
            tasks.extend(sizes.iter().map(of));
        }
        tasks
    }

    /// What is wrong with the options, before anything runs.
    pub(super) fn check_options(&self) -> Result<(), Failure> {
        let wrong = |what: String| Err(Failure::Usage(what));
        if let Some(few) = self.ranks.iter().find(|&&ranks| ranks < 2) {
            return wrong(format!("--ranks {few}: an exchange needs 2 ranks or more"));
        }
        if self.over_links() && self.against.contains(&Peer::Mpi) {
            return wrong(
                "--against mpi with --link: ranks of `mpirun` exchange through this machine's \
                 memory, so the links would not be used; take --against gloo"
                    .into(),
            );
        }
        self.link.check(self.transport.iter().map(String::as_str))?;
        check_place("--plot", self.plot.as_deref())
    }
}

fn given_or<T: Clone>(given: &[T], usual: &[T]) -> Vec<T> {
    let chosen = if given.is_empty() { usual } else { given };
    chosen.to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(line: &str) -> CollectivesBench {
        let words = std::iter::once("bench collectives").chain(line.split_whitespace());
        CollectivesBench::try_parse_from(words).unwrap()
    }

    fn ways(line: &str) -> Vec<String> {
        let ways = options(line).ways(2);
        let name = |way: &Way| {
            let algorithm = way.algorithm.as_deref().unwrap_or("auto");
            format!("{} {algorithm}", way.transport)
        };
        ways.iter().map(name).collect()
    }

    #[test]
    fn everything_is_swept_that_is_not_named() {
        let usual = options("");
        assert_eq!(usual.ranks(), [2, 4]);
        assert_eq!(ways(""), ["shm auto", "tcp auto"]);
        let sizes: Vec<_> = usual
            .tasks()
            .iter()
            .map(|task| task.bytes.to_string())
            .collect();
        assert_eq!(sizes, ["1K", "64K", "1M", "25M", "100M"]);
        let named = options("--bytes 1M,4K --operation broadcast,reduce --ranks 3");
        assert_eq!(named.ranks(), [3]);
        let tasks = named.tasks();
        assert_eq!(tasks.len(), 4);
        assert_eq!(
            (tasks[0].operation, tasks[0].bytes.0),
            (Operation::Broadcast, 4096)
        );
        assert_eq!(
            ways("--transport auto --algorithm ring,auto"),
            ["auto ring", "auto auto"]
        );
    }

    #[test]
    fn links_are_crossed_by_tcp_with_the_algorithms_for_large_messages() {
        assert_eq!(options("--link 1gbit").ranks(), [4]);
        assert_eq!(
            ways("--link 1gbit"),
            ["tcp auto", "tcp ring", "tcp direct", "tcp halving-doubling"]
        );
    }

    #[test]
    fn what_cannot_work_is_said_first() {
        let wrong = |line| options(line).check_options().unwrap_err().to_string();
        assert!(wrong("--ranks 1").contains("--ranks 1"));
        assert!(wrong("--link 1gbit --transport shm").contains("--transport tcp"));
        assert!(wrong("--plot /does/not/exist/a.svg").contains("--plot /does/not/exist/a.svg"));
        assert!(options("--plot a.svg --link 1gbit").check_options().is_ok());
        let refused = |line: &str| {
            let words = std::iter::once("x").chain(line.split_whitespace());
            CollectivesBench::try_parse_from(words).is_err()
        };
        assert!(refused("--transport udp"));
        assert!(refused("--bytes 1Q"));
        assert!(refused("--delay 1ms"));
        assert!(refused("--against pytorch"));
        assert!(wrong("--against gloo,mpi --link 1gbit").contains("take --against gloo"));
        let both = options("--against gloo,mpi");
        assert_eq!((&*both.against, both.check_options()), (&PEERS[..], Ok(())));
    }
}
