//! The ranks that a rank trains with.

use std::sync::Arc;

use crate::prelude::ProcessGroup;
use everburn_collectives::heartbeat::HeartbeatMonitor;
use everburn_collectives::rendezvous::WaitListener;
use everburn_collectives::store::SharedStore;
use everburn_launch::RankEnvironment;
use everburn_record::{Event, EventKind};
use everburn_train::{ElasticGroup, RankStatuses, Regroup, RunDirectory, StopSignal};

use crate::arguments::TrainArguments;
use crate::config::{RanksConfig, RunConfig};
use crate::error::CliError;
use crate::process_sensor::ProcessSensor;
use crate::{elastic, rank, recording};

/// The ranks that this one has met.
pub(super) struct Joined {
    pub(super) group: ProcessGroup,
    pub(super) elastic: Option<Arc<ElasticGroup>>,
    pub(super) heartbeat: Option<HeartbeatMonitor>,
    /// What the job's ranks meet at. A rank that drops it has left.
    pub(super) store: SharedStore,
}

/// The groups of a rank that are looked at once it has failed; the report of a panic names the step of the present one.
pub(super) fn watched(
    environment: &RankEnvironment,
    group: &ProcessGroup,
    elastic: Option<&Arc<ElasticGroup>>,
) -> (Arc<ProcessGroup>, Option<Arc<ElasticGroup>>) {
    let (watched, regrouped) = (Arc::new(group.clone()), elastic.cloned());
    // Weak: what a panic's hook holds is never dropped, and the last handle of a group says goodbye.
    let (first, present) = (
        Arc::downgrade(&watched),
        regrouped.as_ref().map(Arc::downgrade),
    );
    environment.look_up_step(move || match &present {
        Some(elastic) => elastic.upgrade()?.step(),
        None => Some(first.upgrade()?.step()),
    });
    (watched, regrouped)
}

/// What one rank has found wrong before the ranks met is an error of all of them: they end with one code, that of a request
/// that cannot be met.
pub(super) fn agree<T>(group: &ProcessGroup, found: Result<T, CliError>) -> Result<T, CliError> {
    let said = found
        .as_ref()
        .map_or_else(ToString::to_string, |_| String::new());
    let all = group.all_gather_varied(said.into_bytes()).wait();
    let found = found.map_err(|error| match error.is_usage() {
        true => error,
        false => CliError::usage(error.to_string()),
    })?;
    let all = all?;
    match all.iter().position(|said| !said.is_empty()) {
        Some(rank) => {
            let said = String::from_utf8_lossy(&all[rank]);
            Err(CliError::usage(refusal_of(rank, &said)))
        }
        None => Ok(found),
    }
}

/// What the other ranks say of a rank that cannot begin: one line, for it has said the rest itself.
fn refusal_of(rank: usize, said: &str) -> String {
    match said.split_once('\n') {
        None => format!("rank {rank} cannot begin: {said}"),
        Some((first, _)) => format!(
            "rank {rank} cannot begin, see its output: {}",
            first.trim_end_matches(':')
        ),
    }
}

/// Meets the other ranks. An event says where they are waited for: in `run`, or by the first rank of another machine in the
/// folder that its launcher has. Later ones say which ranks have stalled and continue.
pub(super) fn join(
    config: &RunConfig,
    arguments: &TrainArguments,
    environment: &RankEnvironment,
    run: Option<&RunDirectory>,
) -> Result<Joined, CliError> {
    let is_first = environment.local_rank == 0 && environment.rank != 0;
    let of_launcher = arguments.run_dir.as_ref();
    let of_launcher = of_launcher.filter(|_| environment.launcher_pid.is_some());
    let of_launcher = of_launcher.and_then(|path| RunDirectory::open(path).ok());
    let of_machine = of_launcher.as_ref().filter(|_| is_first);
    let on_wait = run
        .or(of_machine)
        .map_or_else(WaitListener::default, recording::wait_listener);
    let joined = join_noting(config, environment, on_wait)?;
    if let Some(run) = of_machine {
        let text = "the ranks of this machine have met the others";
        run.note(Event::new(EventKind::Start, text));
    }
    if let Some(run) = run.or(of_launcher.as_ref()) {
        let (heartbeat, elastic) = (joined.heartbeat.as_ref(), joined.elastic.as_deref());
        recording::note_ended_stalls(run, heartbeat, elastic);
    }
    Ok(joined)
}

fn join_noting(
    config: &RunConfig,
    environment: &RankEnvironment,
    on_wait: WaitListener,
) -> Result<Joined, CliError> {
    let Some(range) = config.ranks.elastic else {
        let (group, heartbeat, store) =
            rank::join_with_heartbeat(environment, &config.ranks, on_wait)?;
        return Ok(Joined {
            group,
            elastic: None,
            heartbeat,
            store,
        });
    };
    let elastic = elastic::join(environment, config, range, on_wait)?;
    Ok(Joined {
        group: elastic.group(),
        store: elastic.store(),
        elastic: Some(elastic),
        heartbeat: None,
    })
}

/// Adds metrics of the process and its device to this rank's beats, and a request to stop to what their monitor warns of.
pub(super) fn set_note(
    config: &RanksConfig,
    environment: &RankEnvironment,
    heartbeat: Option<&HeartbeatMonitor>,
    elastic: Option<&ElasticGroup>,
    stop: &StopSignal,
) {
    let sensor = ProcessSensor::of_rank(&config.devices, environment.local_rank);
    let note = move || sensor.read().to_text();
    let stop = stop.clone();
    let asked = move || stop.is_set();
    if let Some(heartbeat) = heartbeat {
        heartbeat.set_note(note);
        heartbeat.set_stop_asked(asked);
    } else if let Some(elastic) = elastic {
        elastic.set_note(note);
        elastic.set_stop_asked(asked);
    }
}

/// Where rank 0 gets the status of the other ranks.
pub(super) fn rank_statuses(
    heartbeat: Option<&Arc<HeartbeatMonitor>>,
    elastic: Option<&Arc<ElasticGroup>>,
) -> Option<RankStatuses> {
    let of_monitor = heartbeat.cloned().map(|heartbeat| {
        let rank_statuses: RankStatuses = Arc::new(move || heartbeat.statuses());
        rank_statuses
    });
    of_monitor.or_else(|| {
        let elastic = elastic.cloned()?;
        Some(Arc::new(move || elastic.rank_statuses()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_of_many_lines_is_said_in_full_by_its_rank_alone() {
        let short = refusal_of(0, "there is no such file");
        assert_eq!(short, "rank 0 cannot begin: there is no such file");
        let long = refusal_of(
            0,
            "the weights in a.pt are not this model's:\n  fc.weight has shape",
        );
        let line = "rank 0 cannot begin, see its output: the weights in a.pt are not this model's";
        assert_eq!(long, line);
    }
}
