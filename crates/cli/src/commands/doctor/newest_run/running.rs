//! How far a run has come that continues, and without which ranks; that it starts, or has finished.

use std::borrow::Cow;
use std::path::Path;
use std::time::UNIX_EPOCH;

use everburn_record::units::counted;
use everburn_record::{
    EventKind, Finding, Live, LiveRank, Phase, Settings, Waits, plain, proc, unix_time_ms,
};
use everburn_report::Events;
use everburn_train::RunDirectory;

use crate::arguments::keys::with_flags;

/// Of a run that nothing holds up: a line that says so, or that it makes no step, or which ranks are lost for good.
pub(super) fn finding(run: &Path, events: &Events) -> Option<Finding> {
    let now_ms = unix_time_ms();
    let ok = |text: &str| {
        Finding::ok(
            "run",
            plain::line(&format!("{}: {text}", run.display()), 1500),
        )
    };
    let has_owner = Live::has_owner(run);
    // That of an earlier start is out of date: this one has written the settings again.
    let live = Live::read(run).filter(|live| !has_owner || live.unix_time_ms >= begun_ms(run));
    let has_ended = live.as_ref().map(|live| live.phase == Phase::Ended);
    let Some(live) = live.filter(|_| has_ended == Some(false)) else {
        return match has_owner && run.join(Live::LOCK).exists() {
            true if has_ended.is_some() => Some(ok("ending: its last files are written")),
            true => Some(ok("starting: its ranks have not met yet")),
            false => finished(run).map(|text| ok(&text)),
        };
    };
    let is_fresh = now_ms.saturating_sub(live.unix_time_ms) < Live::SILENT_MS;
    if !is_fresh || !has_owner {
        return None;
    }
    let mut found = format!("{}: {}", run.display(), live.progress(now_ms));
    let out = live.out();
    for rank in &out {
        let why = events.why_out(*rank);
        let why = why.map_or(String::new(), |why| format!(": {}", with_flags(&why.text)));
        found += &format!("; without rank {rank}{why}");
    }
    let stalled = live.stalled(now_ms);
    let waits = stalled.and_then(|_| live.waits());
    let awaited = waits.as_ref().and_then(|waits| first_awaited(&live, waits));
    if let Some(waits) = &waits {
        found += &format!("; {waits}");
        let process = awaited.and_then(LiveRank::process);
        found += &match (waits.awaited.len(), process) {
            (1, Some(process)) => format!(" ({process}), whose heartbeats arrive"),
            _ => String::new(),
        };
    }
    let found = plain::line(&found, 1500);
    // Who is started again comes back; so does who has lost its machine, once that is started.
    let is_lost = |rank: &usize| {
        let why = events.why_out(*rank);
        why.is_some_and(|why| why.kind == EventKind::Loss && why.step.is_none())
    };
    let advice: Cow<'_, str> = match (stalled, awaited) {
        (Some(_), Some(rank)) => look_at(run, rank).into(),
        (Some(seconds), None) => {
            let run = plain::word(run);
            format!("no step for {seconds:.0} s: `monitor {run}`, key r, shows what each rank does; their logs are in its folder").into()
        }
        (None, _) if out.iter().any(is_lost) => {
            "it continues with fewer ranks: the log of a rank that is lost says why; for all ranks, stop the run and continue it with --resume"
                .into()
        }
        (None, _) => return Some(Finding::ok("run", found)),
    };
    Some(Finding::warn("run", found, advice.into_owned()))
}

/// The first rank that keeps others waiting.
fn first_awaited<'a>(live: &'a Live, waits: &Waits) -> Option<&'a LiveRank> {
    let first = waits.awaited.first()?;
    live.ranks.iter().find(|it| it.rank == *first)
}

/// How to see what a rank does for which others wait: it is busy, or hangs in its own code.
fn look_at(run: &Path, rank: &LiveRank) -> String {
    let number = rank.rank;
    let log = run.join("logs").join(format!("rank-{number}.log"));
    let log = match log.exists() {
        true => plain::word(log),
        false => format!("the log of rank {number}"),
    };
    let Some(process) = rank.pid else {
        return format!("read {log}");
    };
    let host = rank.host.as_deref();
    let elsewhere = host.filter(|host| Some(*host) != proc::host_name().as_deref());
    let there = elsewhere.map_or(String::new(), |host| {
        format!(" on {}", plain::line(host, 80))
    });
    format!(
        "read {log}; `gdb --pid {process} --batch -ex \"thread apply all backtrace\"`{there} shows what its process does"
    )
}

/// When the newest start of the run was, in milliseconds since 1970; 0 where that is not known.
fn begun_ms(run: &Path) -> u64 {
    let written = run.join(Settings::FILE).metadata();
    let written = written.and_then(|config| config.modified()).ok();
    let begun = written.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    begun.map_or(0, |begun| u64::try_from(begun.as_millis()).unwrap_or(0))
}

/// That the run has done all of its work.
fn finished(run: &Path) -> Option<String> {
    let report = RunDirectory::open(run)
        .and_then(|run| run.read_report())
        .ok()?;
    report.finished.then(|| {
        let (epochs, steps) = (report.epochs, report.steps);
        format!(
            "it has finished, after {} and {}",
            counted(epochs, "epoch"),
            counted(steps, "step")
        )
    })
}
