//! How far the newest run has come that continues, or what it lacks: it waits for ranks, or a store; it was cut off,
//! killed with its launcher so that nobody was left to say so; it has stalled, or a rank holds it up; it has failed, was
//! stopped or has finished; or its files could not be written. And for which rank the others have waited.

mod running;
mod this_machine;

use std::borrow::Cow;
use std::path::Path;

use everburn_monitor::Target;
use everburn_record::{
    Event, EventKind, Finding, Live, Phase, Verdict, folder_of_first_machine, machines_of, plain,
    proc, unix_time_ms,
};
use everburn_report::Events;
use everburn_train::RunDirectory;

use crate::arguments::keys::with_flags;
use crate::summary::{how_to_continue, how_to_continue_with_room, waited_for};

/// What a run is called that nobody named.
const NEWEST: &str = "newest run";

/// What is wrong with the newest run in `runs`, or the run that `runs` itself is; where nothing is, how far it has come.
pub(super) fn findings(runs: &Path) -> Vec<Finding> {
    let (newest, subject) = match Target::newest_in(runs) {
        Ok(Target::Folder(newest)) => (newest, NEWEST),
        _ => (runs.to_path_buf(), "run"),
    };
    let events = Events::read(&newest, &mut Vec::new());
    let mut found = problems(&newest, &events);
    found.extend(this_machine::finding(&newest));
    if found.is_empty() {
        found.extend(running::finding(&newest, &events));
    }
    // While something else is wrong, ranks wait because of that.
    if found.iter().all(|finding| finding.verdict == Verdict::Ok) {
        let live = Live::read(&newest).filter(|_| Live::has_owner(&newest));
        let is_running = live.is_some_and(|live| live.phase != Phase::Ended);
        let waited = waited_for(&newest, is_running);
        found.extend(waited.map(|(waited, more)| of_run(&newest, &waited, more.into())));
    }
    for finding in &mut found {
        finding.subject = subject;
        // The machine is not at fault: a run that has failed is an error where that run was asked for.
        if subject == NEWEST && finding.verdict == Verdict::Fail {
            finding.verdict = Verdict::Warn;
        }
    }
    found
}

fn of_run(run: &Path, text: &str, advice: Cow<'static, str>) -> Finding {
    let text = plain::line(&with_flags(text), 1500);
    Finding::warn("run", format!("{}: {text}", run.display()), advice)
}

/// What is wrong with the run in `run`, to which `events` have happened.
fn problems(run: &Path, events: &Events) -> Vec<Finding> {
    let warn = |text: String, advice: &'static str| of_run(run, &text, advice.into());
    let with_continuation = |(verdict, text): (Verdict, String)| {
        let opened = RunDirectory::open(run);
        // Another machine than the first writes no checkpoints here.
        let lacks_room = is_of_disk(&text) && folder_of_first_machine(run).is_none();
        let advice = opened.map_or(String::new(), |opened| match lacks_room {
            true => how_to_continue_with_room(&opened),
            false => how_to_continue(&opened),
        });
        Finding {
            verdict,
            ..of_run(run, &text, advice.into())
        }
    };
    let cut_off = Live::why_cut_off_in(run);
    let ended = end(run, events).filter(|_| cut_off.is_none());
    let cut_off = cut_off.or_else(|| this_machine::cut_off(run).filter(|_| ended.is_none()));
    let last = events.iter().max_by_key(|event| event.unix_time_ms);
    let awaited = events.awaited(unix_time_ms());
    let awaited = awaited.filter(|_| Live::has_owner(run));
    let awaited = awaited.map(|text| of_run(run, &text, advice_on_awaited(run, last, &text)));
    let stalled = last.filter(|event| {
        // A run that has continued since has written its state again.
        let written = Live::read(run).map(|live| live.unix_time_ms);
        let has_ended = event.lasted_ms.is_some();
        event.kind == EventKind::Stall && !has_ended && written <= event.unix_time_ms
    });
    let stalled = stalled.filter(|_| Live::has_owner(run)).map(|event| {
        let advice = "continue what is stopped, or read the logs of the ranks";
        warn(event.text.clone(), advice)
    });
    // Without heartbeats nobody has noticed; another machine has a finding of its own.
    let unnoticed = || {
        let continues = Live::has_owner(run) && folder_of_first_machine(run).is_none();
        this_machine::stopped(run).filter(|_| continues)
    };
    let held_up = (stalled.is_none() && cut_off.is_none())
        .then(|| Live::held_up_in(run).or_else(unnoticed))
        .flatten();
    let held_up = held_up.map(|text| {
        warn(
            text,
            "continue what is stopped, on its machine; else read the log of the rank that is named first",
        )
    });
    let failed_checkpoints = events.failed_checkpoints();
    let failed_checkpoints = failed_checkpoints.filter(|_| !events.writes_checkpoints_again());
    let is_over = ended.is_some() || cut_off.is_some();
    let failed_checkpoints = failed_checkpoints
        .map(|text| of_run(run, &text, help_with_checkpoint(&text, is_over).into()));
    let unwritten = Live::unwritten_in(run).map(|text| {
        warn(
            text,
            "see whether its disk is full (`df`), or the folder was removed or is closed to the training's user (`ls -ld`): the \
             output of the training has the error",
        )
    });
    let cut_off = cut_off.map(|text| with_continuation((Verdict::Fail, text)));
    let ended = ended.map(with_continuation);
    let problems = [
        cut_off,
        ended,
        awaited,
        stalled,
        held_up,
        unwritten,
        failed_checkpoints,
    ];
    problems.into_iter().flatten().collect()
}

/// What to do about ranks, or the store, that the run in `run` waits for, as its `last` event and `text` say.
fn advice_on_awaited(run: &Path, last: Option<&Event>, text: &str) -> Cow<'static, str> {
    // Who has joined is said of ranks, and not of a store.
    if last.is_none_or(|event| event.ranks.is_none()) {
        return match text.contains("://") {
            true => {
                "see whether most members of that etcd run (`etcdctl endpoint health`), and whether this machine reaches them"
            }
            false => {
                "start machine 0, whose launcher serves the store; where it runs, compare host and port, and see whether a \
                 firewall is in between"
            }
        }
        .into();
    }
    if last.is_some_and(|event| event.refused().is_some()) {
        return "what was refused may be the missing machine: set there what the line names, and start it again".into();
    }
    match machines_of(run) {
        0 | 1 => format!(
            "the process of a rank did not start, or has ended: read its log in {}, and the output of the command that started the ranks",
            run.join("logs").display()
        )
        .into(),
        _ => {
            "start the missing machines, or read their output: the command of machine 0 with another --node-rank"
                .into()
        }
    }
}

/// Whether a run has failed because its disk did not take a file, as `TrainError::Write` and `TrainError::WriteCheckpoint`
/// begin.
fn is_of_disk(text: &str) -> bool {
    let rest = text.split_once("writing ");
    rest.is_some_and(|(_, rest)| rest.contains(" failed: "))
}

/// What to do about a checkpoint that was not written, also where the run is over. Where its user may not write, or nobody may,
/// room changes nothing.
fn help_with_checkpoint(text: &str, is_over: bool) -> String {
    // EPERM, EACCES and EROFS, as the standard library writes them.
    let numbers = ["(os error 1)", "(os error 13)", "(os error 30)"];
    let what = match numbers.iter().any(|number| text.contains(number)) {
        true => "let the user of the training write in this folder",
        false => "make room on the disk of this folder",
    };
    let next = match is_over {
        true => "",
        false => "; a run that continues writes the next checkpoint that is due",
    };
    format!("{what}{next}")
}

/// Why the run has ended before its time, as the last event since it has begun or was resumed says; on a full disk, there may
/// be room for it in `live.json` alone.
fn end(run: &Path, events: &Events) -> Option<(Verdict, String)> {
    let live = Live::read(run);
    let has_ended = |live: &Live| live.phase == Phase::Ended;
    live.as_ref().is_none_or(has_ended).then_some(())?;
    let begins = |event: &&Event| matches!(event.kind, EventKind::Start | EventKind::Resume);
    let begun = events.iter().filter(begins);
    let begun = begun.filter_map(|event| event.unix_time_ms).max();
    let ends = |event: &&Event| matches!(event.kind, EventKind::Failure | EventKind::Stop);
    let ends = events.iter().filter(ends);
    let ends = ends.filter(|event| event.unix_time_ms >= begun);
    // Of a stop that was asked for, the event with its step is that of the ranks.
    let order = |event: &&Event| (event.kind == EventKind::Failure, event.step.is_some());
    let last = ends.max_by_key(|event| (order(event), event.unix_time_ms));
    let failed = last.filter(|event| event.kind == EventKind::Failure);
    let failed = failed.map(|event| event.text.clone());
    let stopped = live.as_ref().map_or(String::new(), still_stopped);
    if let Some(text) = failed.or_else(|| live?.failure) {
        return Some((Verdict::Fail, format!("it has failed: {text}{stopped}")));
    }
    let last = last?;
    // Also a training that has learnt all that it can is stopped before its time.
    let report = RunDirectory::open(run).and_then(|run| run.read_report());
    let is_finished = report.is_ok_and(|report| report.finished);
    // What the launcher has said of a stop is of what was to come then.
    let text = match last.text.strip_prefix("stopping on ") {
        Some(rest) => format!("stopped on {}", rest.split(", ").next().unwrap_or(rest)),
        None => last.text.clone(),
    };
    let text = format!("it did not finish: {text}");
    (!is_finished).then_some((Verdict::Warn, text))
}

/// Which ranks of a run that has ended are stopped on this machine all the same: nobody ends ranks that were started by hand.
fn still_stopped(live: &Live) -> String {
    let host = proc::host_name().unwrap_or_default();
    let live = live.clone().seen_on(&host, proc::is_stopped);
    let stopped = live.ranks.iter().filter(|it| it.stopped);
    let stopped = stopped.filter_map(|it| Some((it.rank, it.pid?)));
    let said = stopped.map(|(rank, process)| {
        format!("; rank {rank} (process {process}) is still stopped (SIGSTOP): `kill -KILL {process}` ends it")
    });
    said.collect()
}

#[cfg(test)]
mod tests;
