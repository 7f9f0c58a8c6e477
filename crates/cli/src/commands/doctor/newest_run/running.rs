//! How far a run has come that continues, and without which ranks; or that has finished.

use std::path::Path;

use everburn_record::units::counted;
use everburn_record::{Finding, Live, Phase, plain, unix_time_ms};
use everburn_report::Events;
use everburn_train::RunDirectory;

use crate::arguments::keys::with_flags;

/// Of a run that continues and that nothing holds up: a line that says so, or that it makes no step.
pub(super) fn finding(run: &Path, events: &Events) -> Option<Finding> {
    let (live, now_ms) = (Live::read(run)?, unix_time_ms());
    let is_fresh = now_ms.saturating_sub(live.unix_time_ms) < Live::SILENT_MS;
    if live.phase == Phase::Ended || !is_fresh || !Live::has_owner(run) {
        return None;
    }
    let mut found = format!("{}: {}", run.display(), live.progress(now_ms));
    for rank in live.out() {
        let why = events.why_out(rank);
        let why = why.map_or(String::new(), |why| format!(": {}", with_flags(why)));
        found += &format!("; without rank {rank}{why}");
    }
    let found = plain::line(&found, 1500);
    let Some(seconds) = live.stalled(now_ms) else {
        return Some(Finding::ok("newest run", found));
    };
    let run = plain::word(run);
    let advice = format!(
        "no step for {seconds:.0} s: `monitor {run}`, key r, shows what each rank does; their logs are in its folder"
    );
    Some(Finding::warn("newest run", found, advice))
}

/// Of a run that has made all of its steps: a line that says how many.
pub(super) fn finished(run: &Path) -> Option<Finding> {
    let report = RunDirectory::open(run).and_then(|run| run.read_report());
    let report = report.ok().filter(|report| report.finished)?;
    // A report is of the run as it was before it was resumed.
    let has_ended = Live::read(run).is_none_or(|live| live.phase == Phase::Ended);
    let (epochs, steps) = (report.epochs, report.steps);
    let found = format!(
        "{}: it has finished, after {} and {}",
        run.display(),
        counted(epochs, "epoch"),
        counted(steps, "step")
    );
    let is_over = has_ended && !Live::has_owner(run);
    is_over.then(|| Finding::ok("newest run", plain::line(&found, 1500)))
}
