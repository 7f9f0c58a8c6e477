//! How far the newest run has come that continues, or what it lacks: it waits for ranks, or a store; it was cut off,
//! killed with its launcher so that nobody was left to say so; it has stalled, or a rank holds it up; it has failed or was
//! stopped; or its files could not be written. And for which rank the others have waited.

mod running;

use std::borrow::Cow;
use std::path::Path;

use everburn_launch::variables;
use everburn_monitor::Target;
use everburn_record::{
    Event, EventKind, Finding, Live, Phase, folder_of_first_machine, machines_of, plain, proc,
    unix_time_ms,
};
use everburn_report::Events;
use everburn_train::RunDirectory;

use crate::arguments::keys::with_flags;
use crate::summary::{how_to_continue, waited_for};

/// What is wrong with the newest run in `runs`, or the run that `runs` itself is; where nothing is, how far it has come.
pub(super) fn findings(runs: &Path) -> Vec<Finding> {
    let newest = match Target::newest_in(runs) {
        Ok(Target::Folder(newest)) => newest,
        _ => runs.to_path_buf(),
    };
    let of_newest = |text: String, advice: Cow<'static, str>| {
        let text = plain::line(&with_flags(&text), 1500);
        let found = format!("{}: {text}", newest.display());
        Finding::warn("newest run", found, advice)
    };
    let with_continuation = |text| {
        let run = RunDirectory::open(&newest);
        let advice = run.map_or(String::new(), |run| how_to_continue(&run));
        of_newest(text, advice.into())
    };
    let cut_off = Live::cut_off_in(&newest).map(|(_, text)| with_continuation(text));
    let events = Events::read(&newest, &mut Vec::new());
    let ended = end(&newest, &events).filter(|_| cut_off.is_none());
    let ended = ended.map(with_continuation);
    let last = events.iter().max_by_key(|event| event.unix_time_ms);
    let awaited = events.awaited(unix_time_ms());
    let awaited = awaited.filter(|_| Live::has_owner(&newest)).map(|text| {
        // Who has joined is said of ranks, and not of a store.
        let advice = match last.is_some_and(|event| event.ranks.is_some()) {
            true => advice_on_awaited(&newest),
            false if text.contains(" etcd") => "see whether most members of that etcd run (`etcdctl endpoint health`), and whether this machine reaches them".into(),
            false => "start machine 0, whose launcher serves the store; where it runs, compare host and port, and see whether a firewall is in between".into(),
        };
        of_newest(text, advice)
    });
    let stalled = last.filter(|event| {
        // A run that has continued since has written its state again.
        let written = Live::read(&newest).map(|live| live.unix_time_ms);
        event.kind == EventKind::Stall && written <= event.unix_time_ms
    });
    let stalled = stalled.filter(|_| Live::has_owner(&newest)).map(|event| {
        of_newest(
            event.text.clone(),
            "continue what is stopped, or read the logs of the ranks".into(),
        )
    });
    let held_up = Live::held_up_in(&newest).filter(|_| stalled.is_none() && cut_off.is_none());
    let held_up = held_up.map(|text| {
        of_newest(
            text,
            "continue what is stopped, on its machine; else read the log of the rank that is named first".into(),
        )
    });
    let failed_checkpoints = events.failed_checkpoints().map(|text| {
        let advice = help_with_checkpoint(&text);
        of_newest(text, advice.into())
    });
    let unwritten = Live::unwritten_in(&newest).map(|text| {
        of_newest(
            text,
            "see whether its disk is full (`df`), or the folder was removed or is closed to the training's user (`ls -ld`): the \
             output of the training has the error"
                .into(),
        )
    });
    let problems = [
        cut_off,
        ended,
        awaited,
        stalled,
        held_up,
        unwritten,
        failed_checkpoints,
        on_another_machine(&newest),
    ];
    let mut found: Vec<Finding> = problems.into_iter().flatten().collect();
    if found.is_empty() {
        found.extend(running::finding(&newest, &events));
    }
    found.extend(waited_for(&newest).map(|(waited, more)| of_newest(waited, more.into())));
    found
}

/// What to do about ranks that the run in `run` waits for.
fn advice_on_awaited(run: &Path) -> Cow<'static, str> {
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

/// What to do about a checkpoint that was not written. Where its user may not write, or nobody may, room changes nothing.
fn help_with_checkpoint(text: &str) -> &'static str {
    // EPERM, EACCES and EROFS, as the standard library writes them.
    let numbers = ["(os error 1)", "(os error 13)", "(os error 30)"];
    match numbers.iter().any(|number| text.contains(number)) {
        true => {
            "let the user of the training write in this folder; a run that continues writes the next checkpoint that is due"
        }
        false => {
            "make room on the disk of this folder; a run that continues writes the next checkpoint that is due"
        }
    }
}

/// What is seen of a run that continues in the folder of another machine than the first: the state of all ranks is not there.
fn on_another_machine(run: &Path) -> Option<Finding> {
    let (machine, first) = folder_of_first_machine(run)?;
    if !Live::has_owner(run) || run.join(Live::FILE).exists() {
        return None;
    }
    let logs = run.join("logs").canonicalize().ok();
    let rank_of = |(process, file): (u32, String)| {
        let (folder, name) = file.rsplit_once('/')?;
        let rank = name.strip_prefix("rank-")?.strip_suffix(".error.json")?;
        let is_here = Path::new(folder).canonicalize().ok() == logs;
        Some((rank.parse().ok()?, process)).filter(|_| is_here)
    };
    let ranks = proc::with_variable(variables::ERROR_FILE).into_iter();
    let ranks = ranks.filter_map(rank_of);
    let mut stopped: Vec<(usize, u32)> = ranks.filter(|it| proc::is_stopped(it.1)).collect();
    stopped.sort_unstable();
    let stopped = stopped.iter().map(|(rank, process)| {
        format!("rank {rank} (process {process}) is stopped (SIGSTOP): kill -CONT {process}")
    });
    let stopped = stopped.collect::<Vec<_>>().join("; ");
    let found = plain::line(
        &format!(
            "{} is the folder of machine {machine}, and the state of all ranks is in {} on machine 0; here {}",
            run.display(),
            first.display(),
            match stopped.as_str() {
                "" => "no rank of this machine is stopped",
                some => some,
            }
        ),
        1500,
    );
    Some(match stopped.is_empty() {
        true => Finding::ok("newest run", found),
        false => Finding::warn(
            "newest run",
            found,
            "continue what is stopped; `doctor` and `monitor` on machine 0 show who waits",
        ),
    })
}

/// Why the run has ended before its time, as the last event since it has begun or was resumed says; on a full disk, there may
/// be room for it in `live.json` alone.
fn end(run: &Path, events: &Events) -> Option<String> {
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
        return Some(format!("it has failed: {text}{stopped}"));
    }
    let last = last?;
    // Also a training that has learnt all that it can is stopped before its time.
    let report = RunDirectory::open(run).and_then(|run| run.read_report());
    let is_finished = report.is_ok_and(|report| report.finished);
    (!is_finished).then(|| format!("it has ended before its time: {}", last.text))
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
