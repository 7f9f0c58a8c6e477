//! What `bench collectives` found: as a table and as JSON.

use everburn_record::statistics::{median, percentile};
use everburn_record::table::aligned;
use everburn_record::units::percent;
use serde_json::{Value, json};

use super::cost::{bound_us, bytes_each_way};
use super::options::{PEERS, Task, Way};
use crate::cells::{mark, or_dash, times};
use crate::peers::Peer;
use crate::rounds::Beside;

/// The measurements of a line.
#[derive(Debug, Clone)]
pub(super) struct CollectiveMeasurement {
    pub(super) way: Way,
    pub(super) task: Task,
    pub(super) ours: Times,
    /// In the order in which they were asked for.
    pub(super) peers: Vec<PeerTimes>,
    pub(super) ground: Ground,
}

/// A peer's; empty where it does not have the operation.
#[derive(Debug, Clone)]
pub(super) struct PeerTimes {
    pub(super) peer: Peer,
    pub(super) times: Times,
}

impl PeerTimes {
    /// Nothing yet.
    pub(super) fn none_of(peer: Peer) -> Self {
        let times = Times::default();
        Self { peer, times }
    }
}

/// Microseconds of each call, by round.
#[derive(Debug, Clone, Default)]
pub(super) struct Times(pub(super) Vec<Vec<f64>>);

/// Rates of what the ranks are on, in bytes per second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Ground {
    /// Of a rank that copies pieces as large as the message, alone.
    pub(super) memcpy_alone: Option<f64>,
    /// Of each rank while all copy.
    pub(super) memcpy_each: Option<f64>,
    /// What the link is set to.
    pub(super) link: Option<f64>,
    /// Of one plain TCP stream over an idle link.
    pub(super) stream_alone: Option<f64>,
    /// Of each while every rank sends to the next.
    pub(super) stream_each: Option<f64>,
}

/// The middle of all calls and how far most of them are from it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Summary {
    pub(super) p10: f64,
    pub(super) p50: f64,
    pub(super) p90: f64,
}

impl Ground {
    /// The fastest counts: it bounds what can be reached, and others disturb some rounds.
    pub(super) fn add_copies(&mut self, alone: f64, each: f64) {
        let faster =
            |known: Option<f64>, rate: f64| Some(known.map_or(rate, |known| known.max(rate)));
        self.memcpy_alone = faster(self.memcpy_alone, alone);
        self.memcpy_each = faster(self.memcpy_each, each);
    }
}

impl Times {
    fn medians(&self) -> Vec<f64> {
        self.0.iter().filter_map(|round| median(round)).collect()
    }

    /// Of all calls: what a call takes in the long run, where a rank that is late finds that the
    /// others' bytes have come and its next call waits the longer.
    fn mean(&self) -> Option<f64> {
        let all = || self.0.iter().flatten();
        Some(all().sum::<f64>() / all().count() as f64).filter(|mean| mean.is_finite())
    }

    /// `None` where nothing was measured.
    pub(super) fn summary(&self) -> Option<Summary> {
        let all: Vec<f64> = self.0.iter().flatten().copied().collect();
        Some(Summary {
            p10: percentile(&all, 0.1)?,
            // The median of the rounds' medians: one bad round does not move it.
            p50: median(&self.medians())?,
            p90: percentile(&all, 0.9)?,
        })
    }
}

/// A line of the result.
#[derive(Debug)]
pub(super) struct Row<'a> {
    pub(super) measured: &'a CollectiveMeasurement,
    pub(super) ours: Summary,
    /// In the order of the measurement's; nothing where a peer was not measured.
    pub(super) peers: Vec<Option<Summary>>,
    /// The medians of the rounds.
    medians: Beside,
    /// The least microseconds that the ground allows.
    pub(super) bound_us: Option<f64>,
}

impl Row<'_> {
    /// Bytes of the message by time, in GB/s.
    pub(super) fn algorithm_bandwidth(&self) -> f64 {
        gigabytes_per_second(self.measured.task.bytes.0, self.ours.p50)
    }

    fn share_of_bound(&self) -> Option<f64> {
        self.bound_us.map(|bound| bound / self.ours.p50)
    }

    /// As [`Row::share_of_bound`], of what a plain stream reaches on the link.
    fn share_of_stream(&self) -> Option<f64> {
        let Ground {
            link, stream_each, ..
        } = self.measured.ground;
        Some(self.share_of_bound()? * link? / stream_each?)
    }
}

/// `bytes` in `microseconds`.
pub(super) fn gigabytes_per_second(bytes: u64, microseconds: f64) -> f64 {
    bytes as f64 / microseconds / 1e3
}

pub(super) fn rows(all: &[CollectiveMeasurement]) -> Vec<Row<'_>> {
    all.iter().filter_map(row).collect()
}

fn row(measured: &CollectiveMeasurement) -> Option<Row<'_>> {
    let CollectiveMeasurement {
        way,
        task,
        ours,
        peers,
        ground,
    } = measured;
    let algorithm = way.algorithm.as_deref();
    let moved = bytes_each_way(task.operation, algorithm, way.ranks, task.bytes.0);
    let rate = ground.link.or(ground.memcpy_each);
    Some(Row {
        measured,
        ours: ours.summary()?,
        peers: peers.iter().map(|peer| peer.times.summary()).collect(),
        medians: Beside {
            are_rates: false,
            ours: ours.medians(),
            peers: peers.iter().map(|peer| peer.times.medians()).collect(),
        },
        bound_us: moved.zip(rate).map(|(moved, rate)| bound_us(moved, rate)),
    })
}

/// The result for a reader.
pub(super) fn table(all: &[CollectiveMeasurement]) -> String {
    let links = all.iter().any(|measured| measured.ground.link.is_some());
    let mut header = vec!["operation", "ranks", "transport", "algorithm", "bytes"];
    header.extend(["p50 us", "(p10-p90)", "GB/s"]);
    let peers: &[PeerTimes] = all.first().map_or(&[], |measured| &measured.peers);
    let names = peers.iter().map(|peer| peer.peer.name());
    let names: Vec<_> = names
        .map(|name| [format!("{name} us"), format!("ours/{name}")])
        .collect();
    for [time, ratio] in &names {
        header.extend([time.as_str(), "(p10-p90)", "GB/s", ratio.as_str()]);
    }
    if names.len() > 1 {
        header.push("ours/fastest");
    }
    header.extend(["bound us", "reached"]);
    if links {
        header.push("of stream");
    }
    header.push("");
    let lines: Vec<_> = rows(all)
        .iter()
        .map(|row| {
            let CollectiveMeasurement { way, task, .. } = row.measured;
            let mut cells = vec![
                task.operation.to_string(),
                way.ranks.to_string(),
                way.transport.clone(),
                way.algorithm.clone().unwrap_or_else(|| "auto".into()),
                task.bytes.to_string(),
            ];
            cells.extend(time_cells(Some(row.ours), task.bytes.0));
            for (peer, ratio) in row.peers.iter().zip(row.medians.ratios()) {
                cells.extend(time_cells(*peer, task.bytes.0));
                cells.push(times(ratio));
            }
            if names.len() > 1 {
                cells.push(times(row.medians.to_fastest()));
            }
            cells.push(or_dash(row.bound_us, microseconds));
            let share = |share| percent(share, 0);
            cells.push(or_dash(row.share_of_bound(), share));
            if links {
                cells.push(or_dash(row.share_of_stream(), share));
            }
            cells.push(mark(row.medians.is_steady()));
            cells
        })
        .collect();
    aligned(&header, &lines, &[])
}

fn time_cells(summary: Option<Summary>, bytes: u64) -> [String; 3] {
    let Some(Summary { p10, p50, p90, .. }) = summary else {
        return ["none".into(), String::new(), String::new()];
    };
    [
        microseconds(p50),
        format!("({}-{})", microseconds(p10), microseconds(p90)),
        format!("{:.3}", gigabytes_per_second(bytes, p50)),
    ]
}

fn microseconds(value: f64) -> String {
    match value {
        ..100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// The result for a program: an array with an object for each line. `ratio` is to the fastest peer.
pub(super) fn to_json(
    all: &[CollectiveMeasurement],
    delay_us: Option<f64>,
    machine: &Value,
) -> Value {
    let object = |row: &Row| {
        let CollectiveMeasurement {
            way,
            task,
            ours,
            peers,
            ground,
        } = row.measured;
        let giga = |rate: Option<f64>| rate.map(|rate| rate / 1e9);
        let mut object = json!({
            "operation": task.operation,
            "ranks": way.ranks,
            "transport": way.transport,
            "algorithm": way.algorithm.as_deref().unwrap_or("auto"),
            "bytes": task.bytes.0,
            "rounds": ours.0.len(),
            "repeats": ours.0.first().map(Vec::len),
            "p50_us": row.ours.p50,
            "p10_us": row.ours.p10,
            "p90_us": row.ours.p90,
            "algbw_gbps": row.algorithm_bandwidth(),
            "mean_us": ours.mean(),
            "ratio": row.medians.to_fastest(),
            "memcpy_gbps": giga(ground.memcpy_alone),
            "memcpy_each_gbps": giga(ground.memcpy_each),
            "link_gbps": giga(ground.link),
            "delay_us": delay_us,
            "stream_gbps": giga(ground.stream_alone),
            "stream_each_gbps": giga(ground.stream_each),
            "bound_us": row.bound_us,
            "bound_reached": row.share_of_bound(),
            "stream_reached": row.share_of_stream(),
            "steady": row.medians.is_steady(),
            "machine": machine,
        });
        // All rows have all columns, whoever was measured.
        for peer in PEERS {
            let at = peers.iter().position(|found| found.peer == peer);
            let summary = at.and_then(|at| row.peers[at]);
            let bandwidth = |p50| gigabytes_per_second(task.bytes.0, p50);
            for (column, value) in [
                ("p50_us", summary.map(|summary| summary.p50)),
                ("p10_us", summary.map(|summary| summary.p10)),
                ("p90_us", summary.map(|summary| summary.p90)),
                ("mean_us", at.and_then(|at| peers[at].times.mean())),
                ("algbw_gbps", summary.map(|summary| bandwidth(summary.p50))),
                ("ratio", at.and_then(|at| row.medians.ratios().nth(at)?)),
            ] {
                object[format!("{}_{column}", peer.name())] = json!(value);
            }
        }
        object
    };
    rows(all).iter().map(object).collect()
}

#[cfg(test)]
pub(super) mod tests;
