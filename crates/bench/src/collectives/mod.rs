//! `bench collectives`: how long exchanges take by size, ranks and transport, beside gloo's and MPI's.

mod cost;
mod notes;
mod options;
mod peer_ranks;
mod plot;
pub(crate) mod rank;
mod rows;

use std::time::Duration;

use serde_json::{Value, json};

use self::notes::notes;
pub(crate) use self::options::CollectivesBench;
use self::options::{PEERS_OPERATION, Task, Way};
use self::peer_ranks::{PeerRanks, times_of};
use self::plot::panels;
use self::rank::Order;
use self::rows::{
    CollectiveMeasurement, Ground, PeerTimes, Times, gigabytes_per_second, table, to_json,
};
use crate::bench::{Bench, Setup, write_file};
use crate::chart::svg;
use crate::failure::Failure;
use crate::job::{Job, JobContext};
use crate::machine::Machine;
use crate::network::Network;
use crate::peers::Peer;
use crate::rounds::each_once;

/// Calls before those that count, on both sides.
const WARM_UP: usize = 3;

/// How long a plain stream takes over a link, about.
const STREAM_SECONDS: f64 = 1.0;

impl Bench for CollectivesBench {
    const NAME: &'static str = "collectives";
    const ABOUT: &'static str =
        "time and GB/s of collectives by size, ranks and transport; --against gloo,mpi";

    type Results = CollectiveResults;

    fn check(&self) -> Result<(), Failure> {
        self.check_options()
    }

    fn peers(&self) -> &[Peer] {
        &self.against
    }

    fn measure(&self, setup: &Setup) -> Result<CollectiveResults, Failure> {
        let sweep = Sweep {
            setup,
            options: self,
        };
        let mut results = CollectiveResults::default();
        for ranks in self.ranks() {
            sweep.measure(ranks, &mut results)?;
        }
        Ok(results)
    }

    fn notes(&self, results: &CollectiveResults, setup: &Setup) -> String {
        notes(results, self, &setup.peers)
    }

    fn table(&self, results: &CollectiveResults, _: &Setup) -> String {
        table(&results.measured)
    }

    fn to_json(&self, results: &CollectiveResults, _: &Setup, machine: &Value) -> Value {
        let delay = results.delay.map(|delay| delay.as_secs_f64() * 1e6);
        to_json(&results.measured, delay, machine)
    }

    fn write_more(&self, results: &CollectiveResults, setup: &Setup) -> Result<(), Failure> {
        let Some(file) = &self.plot else {
            return Ok(());
        };
        let Machine { cores, cpu } = &setup.machine;
        let subtitle = match self.link.link {
            Some(rate) => format!("{rate} links between namespaces; {cores} cores, {cpu}"),
            None => format!("{cores} cores, {cpu}"),
        };
        let panels = panels(&results.measured, &setup.peers);
        let title = "Collectives by size of the message";
        write_file(file, &svg(title, &subtitle, &panels))
    }
}

/// What the sweep has brought.
#[derive(Default)]
pub(crate) struct CollectiveResults {
    measured: Vec<CollectiveMeasurement>,
    network: Option<String>,
    delay: Option<Duration>,
}

/// How everything is run.
struct Sweep<'a> {
    setup: &'a Setup,
    options: &'a CollectivesBench,
}

impl Sweep<'_> {
    /// All lines of `ranks` ranks. Our processes and the peers' live until all are measured, and
    /// are given orders in turn: what disturbs one for a second disturbs the others too.
    fn measure(&self, ranks: usize, results: &mut CollectiveResults) -> Result<(), Failure> {
        // Declared first, so that it goes last.
        let network = self.options.link.network(ranks)?;
        let context = self.setup.job_context(ranks, network.as_ref());
        let ways = self.options.ways(ranks);
        let jobs = ways.iter().map(|way| self.start(context, way));
        let mut jobs = jobs.collect::<Result<Vec<_>, _>>()?;
        let peers = self.setup.peers.iter();
        let peers = peers.map(|found| PeerRanks::start(context, found));
        let mut peers = peers.collect::<Result<Vec<_>, _>>()?;
        let ground = match &network {
            Some(network) => self.streams(&mut jobs[0], network)?,
            None => Ground::default(),
        };
        for task in self.options.tasks() {
            let first = results.measured.len();
            results.measured.extend(ways.iter().map(|way| {
                CollectiveMeasurement {
                    way: way.clone(),
                    task,
                    ours: Times::default(),
                    peers: peers
                        .iter()
                        .map(|ranks| PeerTimes::none_of(ranks.peer))
                        .collect(),
                    ground,
                }
            }));
            let measured = &mut results.measured[first..];
            for round in 0..self.options.rounds {
                self.add_round(round, &task, measured, &mut jobs, &mut peers)?;
            }
            for line in measured {
                eprintln!("{}", progress(line));
            }
        }
        if let Some(network) = &network {
            results.network = Some(network.describe());
            results.delay = network.delay();
        }
        for job in jobs {
            job.finish(self.setup.patience)?;
        }
        peers
            .into_iter()
            .try_for_each(|ranks| ranks.finish(self.setup.patience))
    }

    fn start<'b>(&'b self, context: JobContext<'b>, way: &Way) -> Result<Job<'b>, Failure> {
        let algorithm = way.algorithm.as_deref();
        let name = format!(
            "{} ranks over {}, {}",
            way.ranks,
            way.transport,
            algorithm.unwrap_or("auto")
        );
        Job::start(context, &name, |command| {
            command.args(["side", "collectives", "--transport", &way.transport]);
            if let Some(algorithm) = algorithm {
                command.args(["--algorithm", algorithm]);
            }
        })
    }

    /// Each peer once, and our ways once. `measured` and `jobs` are in the order of the ways.
    fn add_round(
        &self,
        round: usize,
        task: &Task,
        measured: &mut [CollectiveMeasurement],
        jobs: &mut [Job<'_>],
        peers: &mut [PeerRanks<'_>],
    ) -> Result<(), Failure> {
        let (bytes, patience) = (task.bytes.0, self.setup.patience);
        let theirs = match task.operation {
            PEERS_OPERATION => peers.len(),
            _ => 0,
        };
        each_once(round, theirs + 1, |side| {
            if side == theirs {
                return self.add_ours(task, measured, jobs);
            }
            let times = peers[side].measure(bytes, WARM_UP, repeats(bytes), patience)?;
            for line in measured.iter_mut() {
                line.peers[side].times.0.push(times.clone());
            }
            Ok(())
        })?;
        if !self.options.over_links() {
            let alone = self.memcpy(&mut jobs[0], bytes, false)?;
            let each = self.memcpy(&mut jobs[0], bytes, true)?;
            for line in measured {
                line.ground.add_copies(alone, each);
            }
        }
        Ok(())
    }

    fn add_ours(
        &self,
        task: &Task,
        measured: &mut [CollectiveMeasurement],
        jobs: &mut [Job<'_>],
    ) -> Result<(), Failure> {
        let (bytes, patience) = (task.bytes.0, self.setup.patience);
        let repeats = repeats(bytes);
        let order = json!(Order::Collective {
            operation: task.operation,
            bytes: bytes as usize,
            warm_up: WARM_UP,
            repeats,
        });
        for (line, job) in measured.iter_mut().zip(jobs.iter_mut()) {
            let answers = job.ranks.ask(&order, patience)?;
            line.ours.0.push(times_of("ours", &answers, repeats)?);
        }
        Ok(())
    }

    /// Bytes copied a second, in pieces as large as the message: what fits into a cache is faster.
    fn memcpy(&self, job: &mut Job<'_>, bytes: u64, everyone: bool) -> Result<f64, Failure> {
        let bytes = bytes as usize;
        let order = json!(Order::Memcpy { bytes, everyone });
        slowest(&job.ranks.ask(&order, self.setup.patience)?)
    }

    /// What plain TCP makes of the links.
    fn streams(&self, job: &mut Job<'_>, network: &Network) -> Result<Ground, Failure> {
        let link = network.rate().bytes_per_second();
        let bytes = (link * STREAM_SECONDS) as u64;
        let mut stream = |everyone: bool| {
            let order = json!(Order::Stream { bytes, everyone });
            slowest(&job.ranks.ask(&order, self.setup.patience)?)
        };
        Ok(Ground {
            link: Some(link),
            stream_alone: Some(stream(false)?),
            stream_each: Some(stream(true)?),
            ..Ground::default()
        })
    }
}

/// As the reference script has it: about as long for each size, and never fewer than 5.
fn repeats(bytes: u64) -> usize {
    let elements = (bytes / 4).max(1);
    usize::try_from(40_000_000 / elements).map_or(5, |repeats| repeats.clamp(5, 2000))
}

/// The lowest rate that a rank has told: the others wait for it.
fn slowest(answers: &[Value]) -> Result<f64, Failure> {
    let rates = answers
        .iter()
        .filter_map(|answer| answer["bytes_per_second"].as_f64());
    let slowest = rates.fold(f64::INFINITY, f64::min);
    match slowest.is_finite() && slowest > 0.0 {
        true => Ok(slowest),
        false => Err(Failure::new(
            "no rank has reported a rate in bytes per second",
        )),
    }
}

fn progress(line: &CollectiveMeasurement) -> String {
    let CollectiveMeasurement {
        way,
        task,
        ours,
        peers,
        ..
    } = line;
    let time = |times: &Times| {
        let p50 = times.summary().map(|summary| summary.p50);
        p50.map(|p50| {
            format!(
                "{p50:.0} us, {:.3} GB/s",
                gigabytes_per_second(task.bytes.0, p50)
            )
        })
    };
    let peer = |PeerTimes { peer, times }: &PeerTimes| {
        time(times).map(|time| format!("  ({} {time})", peer.name()))
    };
    let peers: String = peers.iter().filter_map(peer).collect();
    format!(
        "[{} ranks, {}, {}] {} {}: {}{peers}",
        way.ranks,
        way.transport,
        way.algorithm.as_deref().unwrap_or("auto"),
        task.operation,
        task.bytes,
        time(ours).unwrap_or_default(),
    )
}

#[cfg(test)]
mod tests;
