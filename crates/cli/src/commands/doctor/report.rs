//! What the ranks found, read, shown and judged.

use std::fmt::Write;

use serde_json::Value;

/// Clocks further apart than this make times of different machines useless to compare, and mix up
/// files by their times.
const CLOCKS_APART_US: f64 = 1e6;

/// What is wrong, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Problem {
    pub(super) what: String,
    pub(super) advice: String,
}

/// What all ranks found: the objects of `found` in the order of ranks.
pub(super) struct Report<'a> {
    found: &'a [Value],
}

impl<'a> Report<'a> {
    /// The report in one rank's answer; `None` where it has none.
    pub(super) fn of(answer: &'a Value) -> Option<Self> {
        let found = answer["found"].as_array()?;
        Some(Self { found })
    }

    fn about(&self, rank: u64) -> &Value {
        let index = usize::try_from(rank).unwrap_or(usize::MAX);
        self.found
            .get(index)
            .map_or(&Value::Null, |of| &of["about"])
    }

    fn lists(&self, name: &'static str) -> impl Iterator<Item = &'a Value> {
        let lists = self.found.iter().filter_map(move |of| of[name].as_array());
        lists.flatten()
    }

    /// Which ranks are where, and the table of pairs.
    pub(super) fn table(&self) -> String {
        let mut text = String::new();
        for of in self.found {
            let about = &of["about"];
            let clock = of["clock"]["ahead_us"]
                .as_f64()
                .map_or_else(String::new, |ahead| {
                    let error = of["clock"]["error_us"].as_f64().unwrap_or_default();
                    format!(", clock {} +- {} from rank 0's", time(ahead), time(error))
                });
            // Writing to a string does not fail.
            let _ = writeln!(
                text,
                "rank {} on {}, binds and publishes {}{clock}",
                about["rank"],
                words(&about["name"]),
                words(&about["address"]),
            );
        }
        let _ = writeln!(
            text,
            "\n{:<10} {:<14} {:>8} {:>15}",
            "pair", "over", "GB/s", "round trip us"
        );
        for pair in self.pairs() {
            let cell = |value: Option<f64>, scale: f64, digits: usize| {
                value.map_or("-".to_owned(), |value| {
                    format!("{:.digits$}", value / scale)
                })
            };
            let _ = writeln!(
                text,
                "{:<10} {:<14} {:>8} {:>15}  {}",
                format!("{} - {}", pair.a, pair.b),
                pair.way,
                cell(pair.bytes_per_second, 1e9, 2),
                cell(pair.round_trip_us, 1.0, 1),
                pair.verdict(),
            );
        }
        text
    }

    /// The pairs: what both ranks of each have told.
    fn pairs(&self) -> Vec<Pair> {
        let mut pairs: Vec<Pair> = Vec::new();
        for told in self.lists("pairs") {
            let (Some(a), Some(b)) = (told["ranks"][0].as_u64(), told["ranks"][1].as_u64()) else {
                continue;
            };
            let way = match told["way"].as_str() {
                Some("shared_memory") => "shared memory",
                _ => "TCP",
            };
            let known = pairs
                .iter()
                .position(|pair| (pair.a, pair.b, pair.way) == (a, b, way));
            let index = known.unwrap_or(pairs.len());
            if known.is_none() {
                pairs.push(Pair::new(a, b, way));
            }
            pairs[index].hear(told);
        }
        for unreached in self
            .lists("reach")
            .filter(|reach| !reach["error"].is_null())
        {
            let ends = (unreached["from"].as_u64(), unreached["to"].as_u64());
            let (Some(from), Some(to)) = ends else {
                continue;
            };
            let (a, b) = (from.min(to), from.max(to));
            if !pairs.iter().any(|pair| (pair.a, pair.b) == (a, b)) {
                let mut pair = Pair::new(a, b, "TCP");
                pair.unreached = true;
                pairs.push(pair);
            }
        }
        pairs.sort_by_key(|pair| (pair.a, pair.b, pair.way));
        pairs
    }

    pub(super) fn problems(&self) -> Vec<Problem> {
        let mut problems = self.addresses();
        for reach in self.lists("reach") {
            let Some(error) = reach["error"].as_str() else {
                continue;
            };
            problems.push(Problem {
                what: format!(
                    "rank {} ({}) does not reach rank {} at {}: {error}",
                    reach["from"],
                    words(&self.about(reach["from"].as_u64().unwrap_or(u64::MAX))["name"]),
                    reach["to"],
                    words(&reach["address"]),
                ),
                advice: "ranks listen on free ports: let the firewalls of these machines pass all \
                         TCP ports between them, and see that the address is one they share"
                    .to_owned(),
            });
        }
        for pair in self.pairs() {
            problems.extend(pair.problem());
        }
        for of in self.found {
            problems.extend(clock_problem(&of["clock"]));
        }
        problems
    }

    /// Ranks on several machines that tell each other an address which means another machine
    /// everywhere.
    fn addresses(&self) -> Vec<Problem> {
        let host = |of: &Value| of["about"]["host"].clone();
        let several = self.found.iter().any(|of| host(of) != host(&self.found[0]));
        let loops = |of: &&Value| {
            let address = words(&of["about"]["address"]);
            let address: Result<std::net::IpAddr, _> = address.parse();
            address.is_ok_and(|address| address.is_loopback())
        };
        if !several {
            return Vec::new();
        }
        let trapped = self.found.iter().filter(loops).map(|of| Problem {
            what: format!(
                "rank {} on {} publishes the loopback address {}, where each peer finds its own machine",
                of["about"]["rank"],
                words(&of["about"]["name"]),
                words(&of["about"]["address"]),
            ),
            advice: "give --rendezvous an address that all machines can reach, not a name that \
                     /etc/hosts maps to 127.0.0.1 or 127.0.1.1"
                .to_owned(),
        });
        trapped.collect()
    }
}

fn clock_problem(clock: &Value) -> Option<Problem> {
    let (ahead, error) = (clock["ahead_us"].as_f64()?, clock["error_us"].as_f64()?);
    if ahead.abs() <= CLOCKS_APART_US + error {
        return None;
    }
    let (by, direction) = (
        time(ahead.abs()),
        if ahead > 0.0 { "ahead of" } else { "behind" },
    );
    Some(Problem {
        what: format!(
            "the clock of rank {} is {by} {direction} rank 0's",
            clock["rank"]
        ),
        advice: "start a time service on both machines (chrony, systemd-timesyncd)".to_owned(),
    })
}

/// What is known of a pair over one way.
struct Pair {
    a: u64,
    b: u64,
    way: &'static str,
    bytes_per_second: Option<f64>,
    round_trip_us: Option<f64>,
    wrong: u64,
    errors: Vec<String>,
    unreached: bool,
}

impl Pair {
    const fn new(a: u64, b: u64, way: &'static str) -> Self {
        Self {
            a,
            b,
            way,
            bytes_per_second: None,
            round_trip_us: None,
            wrong: 0,
            errors: Vec::new(),
            unreached: false,
        }
    }

    fn hear(&mut self, told: &Value) {
        // The slower of the two has waited for the other: both times are of the same exchange.
        let slower = |known: Option<f64>, told: &Value, worse: fn(f64, f64) -> f64| {
            let told = told.as_f64();
            known.map_or(told, |known| {
                Some(told.map_or(known, |told| worse(known, told)))
            })
        };
        self.bytes_per_second = slower(self.bytes_per_second, &told["bytes_per_second"], f64::min);
        self.round_trip_us = slower(self.round_trip_us, &told["round_trip_us"], f64::max);
        self.wrong += told["wrong"].as_u64().unwrap_or_default();
        if let Some(error) = told["error"].as_str() {
            self.errors.push(format!("on rank {}: {error}", told["by"]));
        }
    }

    const fn verdict(&self) -> &'static str {
        match self {
            Self {
                unreached: true, ..
            } => "not reached",
            Self { wrong: 1.., .. } => "WRONG",
            _ if !self.errors.is_empty() => "failed",
            _ => "ok",
        }
    }

    fn problem(&self) -> Option<Problem> {
        let Self { a, b, way, .. } = self;
        if self.wrong > 0 {
            return Some(Problem {
                what: format!(
                    "{} numbers that rank {a} and rank {b} exchanged over {way} came wrong",
                    self.wrong
                ),
                advice: "do not train on these machines: test their memory (memtester) and, for \
                         TCP, the network cards' offloading (`ethtool -K`)"
                    .to_owned(),
            });
        }
        if self.errors.is_empty() {
            return None;
        }
        let advice = match *way {
            "shared memory" => {
                "see memfd above; in containers share one PID namespace \
                                (`--pid=host`), or train with --transport tcp"
            }
            _ => "see the ports above; look at the machine of the rank that is waited for",
        };
        Some(Problem {
            what: format!(
                "rank {a} and rank {b} cannot exchange numbers over {way} (rank {a} is called 0 \
                 and rank {b} 1 here): {}",
                self.errors.join("; ")
            ),
            advice: advice.to_owned(),
        })
    }
}

fn words(value: &Value) -> &str {
    value.as_str().unwrap_or("?")
}

/// A time in microseconds as people say it.
fn time(us: f64) -> String {
    everburn_record::units::seconds(us / 1e6)
}

#[cfg(test)]
mod tests;
