//! A rank of `everburn doctor --ranks N`: looks at its machine's way to all others, before a
//! training has to.
//!
//! The ranks meet at the store and then do, each step with a deadline that names who is missing:
//! 1. every rank listens where a training's rank would, and dials all others ([`ports`]);
//! 2. every rank compares its clock with rank 0's, over such a connection;
//! 3. pairs of ranks, one pair at a time, exchange known numbers through shared memory and over
//!    TCP ([`pair`]);
//! 4. every rank reports what it found, and prints what all have found: one object of JSON.

mod pair;
mod ports;

use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use everburn_collectives::rendezvous::{Rendezvous, RendezvousRequest, rendezvous};
use everburn_collectives::store::StoreError;
use everburn_collectives::transport::HostInfo;
use everburn_launch::RankEnvironment;
use serde::{Deserialize, Serialize};
use serde_json::json;

pub(super) use self::pair::{PairReport, Way};
use self::ports::Listening;
pub(super) use self::ports::{ClockReport, ReachReport};
use crate::arguments::keys::with_flags;
use crate::commands::{ToolError, failed};

/// How long the others may still read the store once this rank is done.
const OTHERS_READ: Duration = Duration::from_secs(5);

/// How the ranks of an examination are started.
#[derive(Debug, Args)]
pub(crate) struct RankArguments {
    /// How many seconds any step may wait for the other ranks.
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0)]
    timeout: f64,

    /// How many bytes a pair exchanges at a time.
    #[arg(long, value_name = "BYTES", default_value_t = 8 << 20)]
    bytes: usize,
}

/// Who a rank is and where.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct About {
    pub(super) rank: usize,
    /// What tells machines, and network namespaces, apart.
    pub(super) host: String,
    /// The machine's own name.
    pub(super) name: String,
    /// Where its listeners bind and the others dial.
    pub(super) address: String,
    /// Where the listener for this examination is.
    pub(super) listener: String,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct RankFindings {
    pub(super) about: About,
    pub(super) reach: Vec<ReachReport>,
    pub(super) clock: Option<ClockReport>,
    pub(super) pairs: Vec<PairReport>,
}

/// What a rank prints: the findings of all ranks, or why it has none.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Answer {
    rank: Option<usize>,
    pub(super) found: Option<Vec<RankFindings>>,
    pub(super) error: Option<String>,
}

/// Examines, and prints the findings of all ranks or why there are none.
pub(in crate::commands) fn run(options: &RankArguments) -> Result<ExitCode, ToolError> {
    let environment = RankEnvironment::from_env().map_err(failed)?;
    environment.guard_against_orphaning().map_err(failed)?;
    let patience = Duration::try_from_secs_f64(options.timeout).map_err(failed)?;
    let request = RendezvousRequest {
        timeout: Some(patience),
        ..RendezvousRequest::default()
    };
    let mut answer = Answer::default();
    let found = rendezvous("env://", request).map_err(Into::into);
    let found = found.and_then(|joined| {
        answer.rank = Some(joined.rank);
        examine(&joined, options.bytes, patience)
    });
    match found {
        Ok(found) => answer.found = Some(found),
        Err(error) => answer.error = Some(with_flags(&error.to_string())),
    }
    say!("{}", json!(answer));
    Ok(ExitCode::SUCCESS)
}

fn key(step: &str, rank: usize) -> String {
    format!("everburn/doctor/{step}/{rank}")
}

fn examine(
    joined: &Rendezvous,
    bytes: usize,
    patience: Duration,
) -> Result<Vec<RankFindings>, Box<dyn Error>> {
    let store = joined.store.as_ref();
    let listening = Listening::open(joined.local_address)?;
    let about = About {
        rank: joined.rank,
        host: HostInfo::of_this_process().host,
        name: rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned(),
        address: joined.local_address.to_string(),
        listener: listening.address().to_string(),
    };
    store.set(&key("about", joined.rank), &serde_json::to_vec(&about)?)?;
    let all: Vec<About> = of_all(joined, "about", patience)?;
    let mut reach = Vec::new();
    for other in all.iter().filter(|other| other.rank != joined.rank) {
        reach.push(ports::dial(joined.rank, other.rank, &other.listener));
    }
    let clock = match joined.rank {
        0 => None,
        _ => ports::clock(joined.rank, &all[0].listener),
    };
    // The listener is needed until all have dialled.
    store.set(&key("reach", joined.rank), &serde_json::to_vec(&reach)?)?;
    let reached: Vec<Vec<ReachReport>> = of_all(joined, "reach", patience)?;
    drop(listening);
    let cut = |a: usize, b: usize| {
        let reports = reached.iter().flatten();
        let mut between = reports.filter(|report| {
            (report.from, report.to) == (a, b) || (report.from, report.to) == (b, a)
        });
        between.any(|report| report.error.is_some())
    };
    let mut pairs = Vec::new();
    let mut turn = 0;
    for a in 0..all.len() {
        for b in a + 1..all.len() {
            if cut(a, b) {
                continue;
            }
            let ways = match all[a].host == all[b].host {
                true => &[Way::SharedMemory, Way::Tcp][..],
                false => &[Way::Tcp][..],
            };
            for way in ways {
                if [a, b].contains(&joined.rank) {
                    pairs.push(pair::in_turn(joined, turn, (a, b), *way, bytes, patience));
                }
                turn += 1;
            }
        }
    }
    let own = RankFindings {
        about,
        reach,
        clock,
        pairs,
    };
    store.set(&key("found", joined.rank), &serde_json::to_vec(&own)?)?;
    // Each turn is waited for by the deadline; so is the end of all of them.
    let turns = u32::try_from(turn + 1)?;
    let found = of_all(joined, "found", patience.saturating_mul(turns))?;
    store.set(&key("read", joined.rank), b"")?;
    let readers: Vec<String> = (0..joined.world_size)
        .map(|rank| key("read", rank))
        .collect();
    let readers: Vec<&str> = readers.iter().map(String::as_str).collect();
    match store.wait_within(&readers, OTHERS_READ) {
        // Who has not read by now has failed and says so itself.
        Ok(()) | Err(StoreError::Timeout { .. }) => Ok(found),
        Err(error) => Err(error.into()),
    }
}

/// What each rank has told in a step, by rank.
fn of_all<T: serde::de::DeserializeOwned>(
    joined: &Rendezvous,
    step: &str,
    patience: Duration,
) -> Result<Vec<T>, Box<dyn Error>> {
    let store = joined.store.as_ref();
    let started = Instant::now();
    let mut told = Vec::with_capacity(joined.world_size);
    for rank in 0..joined.world_size {
        let left = patience.saturating_sub(started.elapsed());
        match store.get_within(&key(step, rank), left) {
            Ok(text) => told.push(serde_json::from_slice(&text)?),
            Err(StoreError::Timeout { .. }) => {
                return Err(missing(joined, step, started.elapsed())?.into());
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(told)
}

/// Who has not told anything in a step.
fn missing(joined: &Rendezvous, step: &str, waited: Duration) -> Result<String, StoreError> {
    let mut silent = Vec::new();
    for rank in 0..joined.world_size {
        if !joined.store.check(&[&key(step, rank)])? {
            silent.push(rank.to_string());
        }
    }
    Ok(format!(
        "rank {} waited {:.1} s for rank {} in the step `{step}`; check whether it still runs",
        joined.rank,
        waited.as_secs_f64(),
        silent.join(", ")
    ))
}
