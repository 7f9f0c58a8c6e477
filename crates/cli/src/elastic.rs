//! `--elastic MIN:MAX`

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use everburn_collectives::elastic::{ElasticOptions, Membership};
use everburn_collectives::rendezvous::{RendezvousRequest, WaitListener};
use everburn_launch::{ElasticLaunch, RankEnvironment};
use everburn_record::units::counted;
use everburn_train::{ElasticGroup, TrainError};

use crate::config::{RanksConfig, RunConfig};
use crate::error::CliError;
use crate::rank;

/// How long ranks that have lost one wait for others that neither come nor are known to have ended: as long
/// as a stopped rank may be silent, within these bounds. One that computes for longer is counted as lost.
const PATIENCE: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(10)];

/// Where the first rank of a job writes what it trains.
const RUN_KEY: &str = "everburn/run";

/// How long ranks that are too few wait for more.
const WAIT_FOR_MIN: Duration = Duration::from_secs(60);

/// With how many ranks a training continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ElasticRange {
    pub(crate) min: usize,
    pub(crate) max: usize,
}

impl ElasticRange {
    /// The range of another number of ranks: what was wanted of a run that others continue with.
    pub(crate) fn of(self, world_size: usize) -> Self {
        Self {
            min: self.min.min(world_size),
            max: world_size,
        }
    }
}

impl fmt::Display for ElasticRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.min, self.max)
    }
}

impl FromStr for ElasticRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let range = text.split_once(':').and_then(|(min, max)| {
            Some(Self {
                min: min.parse().ok()?,
                max: max.parse().ok()?,
            })
        });
        let range = range.ok_or("use MIN:MAX, as in 2:4")?;
        match range.min {
            0 => Err("at least 1 rank is needed: use 1:MAX".to_string()),
            min if min > range.max => Err(format!(
                "{min} is more than {}: the smaller number comes first",
                range.max
            )),
            _ => Ok(range),
        }
    }
}

everburn_record::serde_as_text!(ElasticRange);

/// Refuses a range of other ranks than there are, and faults of ranks that are not there.
pub(crate) fn check(config: &RunConfig) -> Result<(), CliError> {
    let world_size = config.world_size();
    let chaos = &config.training.chaos;
    if let Some(rank) = chaos.highest_rank().filter(|rank| *rank >= world_size) {
        return Err(CliError::usage(format!(
            "--chaos names rank {rank}, and the ranks are 0 to {}",
            world_size.saturating_sub(1)
        )));
    }
    let Some(ElasticRange { min, max }) = config.ranks.elastic else {
        return Ok(());
    };
    if max != world_size {
        return Err(CliError::usage_with_help(
            format!(
                "--elastic {min}:{max} is for {}, and {} to be started",
                counted(max, "rank"),
                match world_size {
                    1 => "1 is".to_string(),
                    several => format!("{several} are"),
                }
            ),
            match max % config.ranks.nodes {
                0 => format!(
                    "start as many with --ranks {}, or use --elastic {}:{world_size}",
                    max / config.ranks.nodes,
                    min.min(world_size)
                ),
                _ => format!("use --elastic {}:{world_size}", min.min(world_size)),
            },
        ));
    }
    Ok(())
}

/// The first line that differs between what the job runs and what this rank would.
fn difference(job: &str, ours: &str) -> String {
    let lines = job.lines().zip(ours.lines());
    let different = lines.into_iter().find(|(job, ours)| job != ours);
    let (job, ours) = different.unwrap_or(("more", "less"));
    format!("the job runs with `{job}`, and this rank was started with `{ours}`")
}

fn patience(config: &RanksConfig) -> Duration {
    let [least, most] = PATIENCE;
    match config.heartbeat_timeout {
        0 => most,
        seconds => Duration::from_secs(seconds).clamp(least, most),
    }
}

/// What the launcher is to do about ranks that end.
pub(crate) fn launch(config: &RanksConfig) -> Option<ElasticLaunch> {
    let ElasticRange { min, max } = config.elastic?;
    let defaults = ElasticLaunch::new(min, max);
    let has_heartbeats = config.heartbeat_timeout > 0;
    Some(ElasticLaunch {
        max_restarts: config.max_restarts,
        stopped_limit: defaults.stopped_limit.filter(|_| has_heartbeats),
        ..defaults
    })
}

/// Refuses --elastic for a rank that another launcher than Everburn's has started.
pub(crate) fn check_launcher(
    config: &RunConfig,
    environment: &RankEnvironment,
) -> Result<(), CliError> {
    if config.ranks.elastic.is_some() && environment.elastic.is_none() {
        return Err(CliError::usage_with_help(
            format!(
                "--elastic needs Everburn's launcher, which starts lost ranks again: {}",
                environment.announcement()
            ),
            "start one process a machine, with --ranks, --nodes, --node-rank and --rendezvous or --store; or leave --elastic out, \
             and use --resume after a loss",
        ));
    }
    Ok(())
}

/// Meets the other ranks, of which some may be lost, or come later. `on_wait` is told of those that are waited for.
pub(crate) fn join(
    environment: &RankEnvironment,
    config: &RunConfig,
    range: ElasticRange,
    on_wait: WaitListener,
) -> Result<Arc<ElasticGroup>, CliError> {
    let run =
        toml::to_string(&config.training).map_err(|error| CliError::usage(error.to_string()))?;
    let run = format!("{}\n{run}", config.model);
    let config = &config.ranks;
    let options = rank::group_options(config);
    let request = RendezvousRequest {
        rank: Some(environment.rank),
        world_size: Some(environment.world_size),
        timeout: options.timeout,
        job_token: environment.job_token.clone(),
        open_store: environment.open_store,
        local: None,
        on_wait,
    };
    let elastic = ElasticOptions {
        min: range.min,
        max: range.max,
        slot: environment.rank,
        incarnation: environment.incarnation,
        node: environment.node_rank,
        ranks_per_machine: (config.nodes > 1).then_some(config.ranks),
        patience: patience(config),
        wait_for_min: WAIT_FOR_MIN,
    };
    let membership =
        Membership::connect("env://", request, elastic).map_err(TrainError::from_first_contact)?;
    // A rank that would train something else must not be accepted: all would fail of it.
    let first = membership.store().compare_set(RUN_KEY, b"", run.as_bytes());
    // A store that is out of reach may be there again when this rank is started again.
    let first = first.map_err(|error| TrainError::NotMember(error.to_string()))?;
    if first != run.as_bytes() {
        return Err(CliError::usage_with_help(
            difference(&String::from_utf8_lossy(&first), &run),
            "start every machine with the same configuration",
        ));
    }
    let heartbeat = rank::heartbeat_options(config);
    let logs = rank::logs(environment);
    Ok(Arc::new(ElasticGroup::form(
        membership, options, heartbeat, logs,
    )?))
}
