//! The machine whose ranks a job has lost.

use std::collections::BTreeSet;
use std::fmt;

use everburn_record::ranks;

use crate::config::LaunchConfig;
use crate::outcome::EndedRank;

/// Another machine of the job, ranks of which were lost by those of this one, or its store with them.
///
/// ```
/// # mod everburn { pub use everburn_launch as launch; }
/// use everburn::launch::LostMachine;
///
/// let mut machine = LostMachine { number: 1, ranks: vec![2, 3], host: None };
/// assert_eq!(machine.to_string(), "machine 1");
/// machine.host = Some("node7".to_owned());
/// assert_eq!(machine.to_string(), "machine 1 (node7)");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostMachine {
    /// Its number, from 0: `--node-rank`.
    pub number: usize,
    /// The ranks that were lost, in order.
    pub ranks: Vec<usize>,
    /// Its name, where that is known.
    pub host: Option<String>,
}

impl LostMachine {
    /// The machine of the rank that `cause` has lost, if that is another one; `others` have failed too.
    pub(crate) fn of(
        config: &LaunchConfig,
        cause: &EndedRank,
        others: &[EndedRank],
    ) -> Option<Self> {
        let machine_of = |rank: usize| rank / config.ranks.max(1);
        let number = machine_of(cause.lost_rank()?);
        if number == config.node_rank || number >= config.nodes {
            return None;
        }
        let all = others
            .iter()
            .chain([cause])
            .filter_map(EndedRank::lost_rank);
        let mut ranks: BTreeSet<usize> = all.filter(|rank| machine_of(*rank) == number).collect();
        if is_silent_as_a_whole(cause, number) {
            ranks.extend(number * config.ranks..(number + 1) * config.ranks);
        }
        Some(Self {
            number,
            ranks: ranks.into_iter().collect(),
            host: None,
        })
    }

    /// The machine with its name and its ranks where none of them answered `cause`, which says so.
    pub(crate) fn silent_as_a_whole(&self, cause: &EndedRank) -> Option<String> {
        let host = self.host.as_ref();
        let host = host.map(|host| format!("{}; ", everburn_record::plain::line(host, 80)));
        let (number, host) = (self.number, host.unwrap_or_default());
        let is_whole = is_silent_as_a_whole(cause, number) && self.ranks.len() > 1;
        is_whole.then(|| format!("machine {number} ({host}{})", ranks(&self.ranks)))
    }

    /// Machine 0, if its launcher hosts the store and this is another one. Its host is that of the rendezvous.
    pub(crate) fn with_the_store(config: &LaunchConfig) -> Option<Self> {
        if config.node_rank == 0 || config.store.is_some() {
            return None;
        }
        Some(Self {
            number: 0,
            ranks: (0..config.ranks).collect(),
            host: Some(config.rendezvous_parts().ok()??.0),
        })
    }
}

fn is_silent_as_a_whole(cause: &EndedRank, machine: usize) -> bool {
    let failure = cause.failure();
    failure.is_some_and(|failure| failure.silent_machine == Some(machine))
}

impl fmt::Display for LostMachine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "machine {}", self.number)?;
        match &self.host {
            Some(host) => write!(f, " ({})", everburn_record::plain::line(host, 80)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::{EXIT_PEER_LOST, RankExit};
    use crate::failure::{RankReport, ReportKind};

    #[test]
    fn only_another_machine_of_the_job_is_lost_with_all_its_ranks_that_were_named() {
        let config = LaunchConfig {
            nodes: 3,
            node_rank: 0,
            ..LaunchConfig::new("program", 2, "logs")
        };
        let lost = |lost_rank: Option<usize>| EndedRank {
            report: Some(RankReport {
                lost_rank,
                ..RankReport::new(0, ReportKind::PeerLost, "lost")
            }),
            ..EndedRank::new(0, RankExit::Code(EXIT_PEER_LOST))
        };
        let of = |cause: Option<usize>, others: &[usize]| {
            let others: Vec<_> = others.iter().map(|rank| lost(Some(*rank))).collect();
            let machine = LostMachine::of(&config, &lost(cause), &others);
            machine.map(|machine| (machine.number, machine.ranks))
        };
        assert_eq!(of(Some(3), &[2, 3, 4, 0]), Some((1, vec![2, 3])));
        assert_eq!(of(Some(4), &[]), Some((2, vec![4])));
        let mut silent = lost(Some(4));
        silent.report.as_mut().unwrap().silent_machine = Some(2);
        let mut machine = LostMachine::of(&config, &silent, &[]).unwrap();
        assert_eq!((machine.number, &machine.ranks[..]), (2, &[4, 5][..]));
        let whole = machine.silent_as_a_whole(&silent);
        assert_eq!(whole.as_deref(), Some("machine 2 (ranks 4, 5)"));
        machine.host = Some("node7".to_owned());
        let whole = machine.silent_as_a_whole(&silent);
        assert_eq!(whole.as_deref(), Some("machine 2 (node7; ranks 4, 5)"));
        assert_eq!(machine.silent_as_a_whole(&lost(Some(4))), None);
        for nowhere in [Some(1), Some(6), None] {
            assert_eq!(of(nowhere, &[2]), None, "{nowhere:?}");
        }
    }

    #[test]
    fn with_a_store_that_a_launcher_hosts_machine_0_is_lost() {
        let mut config = LaunchConfig {
            nodes: 2,
            node_rank: 1,
            rendezvous: Some("node7:29500".to_owned()),
            ..LaunchConfig::new("program", 2, "logs")
        };
        let machine = LostMachine::with_the_store(&config).unwrap();
        assert_eq!(machine.to_string(), "machine 0 (node7)");
        assert_eq!(machine.ranks, [0, 1]);
        config.node_rank = 0;
        assert_eq!(LostMachine::with_the_store(&config), None);
        config.node_rank = 1;
        config.store = Some("etcd://node7:2379".parse().unwrap());
        assert_eq!(LostMachine::with_the_store(&config), None);
    }
}
