//! What the ranks found, shown and judged.

use std::fmt::Write;
use std::net::IpAddr;

use everburn_record::{Finding, table, units};

use super::rank::{ClockReport, PairReport, RankFindings, ReachReport, Way};

/// Clocks further apart than this make times of different machines useless to compare, and mix up
/// files by their times.
const CLOCKS_APART_US: f64 = 1e6;

/// The subject of what ranks have found.
pub(super) const RANKS: &str = "ranks";

/// What all ranks found, in their order.
pub(super) struct Report<'a>(pub(super) &'a [RankFindings]);

impl<'a> Report<'a> {
    /// The name of a rank's machine.
    fn machine(&self, rank: usize) -> &'a str {
        self.0.get(rank).map_or("?", |of| &of.about.name)
    }

    /// Which ranks are where, and the table of pairs.
    pub(super) fn table(&self) -> String {
        let mut text = String::new();
        for RankFindings { about, clock, .. } in self.0 {
            let clock = clock.as_ref().map(|clock| {
                let [ahead, error] = [clock.ahead_us, clock.error_us].map(time);
                format!(", clock {ahead} +- {error} from rank 0's")
            });
            // Writing to a string does not fail.
            let _ = writeln!(
                text,
                "rank {} on {}, binds and publishes {}{}",
                about.rank,
                about.name,
                about.address,
                clock.unwrap_or_default(),
            );
        }
        let cell = |value: Option<f64>, scale: f64, digits: usize| {
            value.map_or("-".to_owned(), |value| {
                format!("{:.digits$}", value / scale)
            })
        };
        let rows = self.pairs().into_iter().map(|pair| {
            let (a, b) = pair.ranks;
            // The slower of the two has waited for the other: both times are of the same exchange.
            let rates = pair.told.iter().filter_map(|told| told.bytes_per_second);
            let trips = pair.told.iter().filter_map(|told| told.round_trip_us);
            vec![
                format!("{a} - {b}"),
                pair.way.name().to_owned(),
                cell(rates.reduce(f64::min), 1e9, 2),
                cell(trips.reduce(f64::max), 1.0, 1),
                pair.verdict().to_owned(),
            ]
        });
        let header = ["pair", "over", "GB/s", "round trip us", "result"];
        let rows: Vec<_> = rows.collect();
        let _ = writeln!(text, "\n{}", table::aligned(&header, &rows, &[1, 4]));
        text
    }

    /// The ranks that others do not reach, and why.
    fn unreached(&self) -> impl Iterator<Item = (&'a ReachReport, &'a str)> {
        let all = self.0.iter().flat_map(|of| &of.reach);
        all.filter_map(|reach| Some((reach, reach.error.as_deref()?)))
    }

    fn pairs(&self) -> Vec<Pair<'a>> {
        let mut pairs: Vec<Pair<'a>> = Vec::new();
        for told in self.0.iter().flat_map(|of| &of.pairs) {
            let (ranks, way) = (told.ranks, told.way);
            let known = pairs
                .iter_mut()
                .find(|it| (it.ranks, it.way) == (ranks, way));
            match known {
                Some(pair) => pair.told.push(told),
                None => pairs.push(Pair {
                    ranks,
                    way,
                    told: vec![told],
                }),
            }
        }
        for (ReachReport { from, to, .. }, _) in self.unreached() {
            let ranks = (*from.min(to), *from.max(to));
            if pairs.iter().all(|pair| pair.ranks != ranks) {
                pairs.push(Pair {
                    ranks,
                    way: Way::Tcp,
                    told: Vec::new(),
                });
            }
        }
        pairs.sort_by_key(|pair| (pair.ranks, pair.way.name()));
        pairs
    }

    pub(super) fn problems(&self) -> Vec<Finding> {
        let mut problems = self.addresses();
        problems.extend(self.unreached().map(|(reach, error)| {
            Finding::fail(
                RANKS,
                format!(
                    "rank {} ({}) does not reach rank {} at {}: {error}",
                    reach.from,
                    self.machine(reach.from),
                    reach.to,
                    reach.address,
                ),
                "ranks listen on free ports: let the firewalls of these machines pass all \
                 TCP ports between them, and see that the address is one they share",
            )
        }));
        problems.extend(self.pairs().iter().filter_map(Pair::problem));
        let clocks = self.0.iter().filter_map(|of| of.clock.as_ref());
        problems.extend(clocks.filter_map(clock_problem));
        problems
    }

    /// Ranks on several machines that tell each other an address which means another machine
    /// everywhere.
    fn addresses(&self) -> Vec<Finding> {
        let mut hosts = self.0.iter().map(|of| &of.about.host);
        let first = hosts.next();
        if hosts.all(|host| Some(host) == first) {
            return Vec::new();
        }
        let loops = |of: &&RankFindings| {
            let address = of.about.address.parse::<IpAddr>();
            address.is_ok_and(|address| address.is_loopback())
        };
        let trapped = self.0.iter().filter(loops);
        let trapped = trapped.map(|RankFindings { about, .. }| {
            Finding::fail(
                RANKS,
                format!(
                    "rank {} on {} publishes the loopback address {}, where each peer finds its own machine",
                    about.rank, about.name, about.address,
                ),
                "give --rendezvous an address that all machines can reach, not a name that \
                 /etc/hosts maps to 127.0.0.1 or 127.0.1.1",
            )
        });
        trapped.collect()
    }
}

fn clock_problem(clock: &ClockReport) -> Option<Finding> {
    let (rank, ahead) = (clock.rank, clock.ahead_us);
    if ahead.abs() <= CLOCKS_APART_US + clock.error_us {
        return None;
    }
    let by = time(ahead.abs());
    let direction = if ahead > 0.0 { "ahead of" } else { "behind" };
    Some(Finding::fail(
        RANKS,
        format!("the clock of rank {rank} is {by} {direction} rank 0's"),
        "start a time service on both machines (chrony, systemd-timesyncd)",
    ))
}

/// Two ranks over one way.
struct Pair<'a> {
    ranks: (usize, usize),
    way: Way,
    /// What both have told; nothing where one does not reach the other.
    told: Vec<&'a PairReport>,
}

impl Pair<'_> {
    fn wrong(&self) -> usize {
        self.told.iter().map(|told| told.wrong).sum()
    }

    fn errors(&self) -> Vec<String> {
        let errors = self.told.iter().filter_map(|told| {
            let error = told.error.as_ref()?;
            Some(format!("on rank {}: {error}", told.by))
        });
        errors.collect()
    }

    fn verdict(&self) -> &'static str {
        match (self.wrong(), self.errors().is_empty()) {
            _ if self.told.is_empty() => "not reached",
            (1.., _) => "WRONG",
            (0, false) => "failed",
            (0, true) => "ok",
        }
    }

    fn problem(&self) -> Option<Finding> {
        let ((a, b), way) = (self.ranks, self.way.name());
        let (wrong, errors) = (self.wrong(), self.errors());
        if wrong > 0 {
            return Some(Finding::fail(
                RANKS,
                format!(
                    "{wrong} numbers that rank {a} and rank {b} exchanged over {way} came wrong"
                ),
                "do not train on these machines: test their memory (memtester) and, for \
                 TCP, the network cards' offloading (`ethtool -K`)",
            ));
        }
        if errors.is_empty() {
            return None;
        }
        let advice = match self.way {
            Way::SharedMemory => {
                "see memfd above; in containers share one PID namespace \
                 (`--pid=host`), or train with --transport tcp"
            }
            Way::Tcp => "see the ports above; look at the machine of the rank that is waited for",
        };
        let found = format!(
            "rank {a} and rank {b} cannot exchange numbers over {way} (rank {a} is called 0 \
             and rank {b} 1 here): {}",
            errors.join("; ")
        );
        Some(Finding::fail(RANKS, found, advice))
    }
}

/// A time in microseconds as people say it.
fn time(us: f64) -> String {
    units::seconds(us / 1e6)
}

#[cfg(test)]
mod tests;
