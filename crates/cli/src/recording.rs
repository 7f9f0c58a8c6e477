//! What the command records of a run besides what the training does: where it was made, how it ended, its report.

use std::process::ExitCode;
use std::time::Duration;

use everburn_collectives::heartbeat::{EndedStall, HangReport, HeartbeatMonitor, StallCause};
use everburn_collectives::rendezvous::WaitListener;
use everburn_launch::{LaunchEvent, Outcome};
use everburn_record::{Environment, Event, EventKind, Live, stopped_on_request, unix_time_ms};
use everburn_report::{CompareCommand, ReportCommand};
use everburn_train::{ElasticGroup, RunDirectory, TrainingReport};

use crate::arguments::keys::with_flags;
use crate::error::CliError;

pub(crate) fn report(command: &ReportCommand) -> Result<ExitCode, CliError> {
    command.run(&mut std::io::stdout())?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn compare(command: &CompareCommand) -> Result<ExitCode, CliError> {
    command.run(&mut std::io::stdout())?;
    Ok(ExitCode::SUCCESS)
}

/// Writes `environment.json`: a run that is `resumed`, which has changed these settings, keeps when it began. A run without one
/// is as good.
pub(crate) fn write_environment(run: &RunDirectory, resumed: Option<Vec<String>>) {
    let text = |word: std::ffi::OsString| word.into_string().ok();
    let variables = std::env::vars_os();
    let variables = variables.filter_map(|(name, value)| Some((text(name)?, text(value)?)));
    let command = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
    let mut environment = Environment::of_this_machine(command, variables);
    let versions = everburn_train::Versions::default();
    environment
        .versions
        .insert("Everburn".into(), versions.everburn);
    environment.versions.insert("Burn".into(), versions.burn);
    let began = || Environment::of_run(run.path())?.started_unix_ms;
    // Any other file there is of a start that failed.
    if let Some(changes) = resumed {
        environment.started_unix_ms = began().or(environment.started_unix_ms);
        environment.resume_changes = changes;
    }
    if let Err(error) = run.write_environment(&environment) {
        tracing::warn!("{error}");
    }
}

/// Notes what has happened to a rank or to the job, while it happens.
pub(crate) fn note_launch_event(run: &RunDirectory, event: &LaunchEvent) {
    let kind = match event {
        LaunchEvent::Restart { .. } => EventKind::Restart,
        LaunchEvent::Lost { .. } => EventKind::Loss,
        LaunchEvent::Stopping { .. } => EventKind::Stop,
        LaunchEvent::NotStopped { .. } | LaunchEvent::RanksStopped { .. } => EventKind::Stall,
        // Ranks say themselves that they have lost others, the end of the job is noted as such, and a stall that ends is counted.
        _ => EventKind::Warning,
    };
    let waits_until_ms = match event {
        LaunchEvent::StoreAwaited { left, .. } => Some(after(*left)),
        _ => None,
    };
    let lasted_ms = match event {
        LaunchEvent::RanksContinued { lasted, .. } => Some(milliseconds(*lasted)),
        _ => None,
    };
    run.note(Event {
        rank: event.rank(),
        waits_until_ms,
        lasted_ms,
        ..Event::new(kind, with_flags(event.text()))
    });
}

/// When `left` will be over, in milliseconds since 1970.
fn after(left: Duration) -> u64 {
    unix_time_ms().saturating_add(milliseconds(left))
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Notes in `run` that ranks, or the store, are waited for, for those who monitor it, besides the warning in the log.
pub(crate) fn wait_listener(run: &RunDirectory) -> WaitListener {
    let run = run.clone();
    WaitListener::new(move |awaited| {
        tracing::warn!("{}", awaited.text);
        run.note(Event {
            // Who waits for ranks has joined; nobody has where the store is not reached.
            ranks: Some(awaited.joined.clone()).filter(|joined| !joined.is_empty()),
            waits_until_ms: Some(after(awaited.left)),
            ..Event::new(EventKind::Warning, with_flags(&awaited.text))
        });
    })
}

pub(crate) fn note_stall(run: &RunDirectory, report: &HangReport) {
    let text = with_flags(&report.to_string());
    let first = text.lines().next().unwrap_or_default();
    run.note(Event {
        rank: report.stalled_member(),
        ..Event::new(EventKind::Stall, first)
    });
}

/// Notes in `run` each stall that this rank says has ended by itself.
pub(crate) fn note_ended_stalls(
    run: &RunDirectory,
    heartbeat: Option<&HeartbeatMonitor>,
    elastic: Option<&ElasticGroup>,
) {
    let run = run.clone();
    let note = move |stall: &EndedStall| {
        let (run, event) = (run.clone(), ended_stall(stall));
        // A disk that hangs must not keep the heartbeats of this rank from the others.
        let writes = std::thread::Builder::new().name("everburn-note".to_owned());
        if let Err(error) = writes.spawn(move || run.note(event)) {
            tracing::warn!("{} lacks a stall that has ended: {error}", Event::FILE);
        }
    };
    if let Some(heartbeat) = heartbeat {
        heartbeat.set_stall_listener(note);
    } else if let Some(elastic) = elastic {
        elastic.set_stall_listener(note);
    }
}

/// A rank that was busy, as with samples after an epoch, has not stalled.
fn ended_stall(stall: &EndedStall) -> Event {
    let kind = match stall.cause {
        StallCause::Busy => EventKind::Warning,
        _ => EventKind::Stall,
    };
    Event {
        rank: Some(stall.member),
        // A step that was under way has not been made.
        step: stall.step.checked_sub(1),
        lasted_ms: Some(milliseconds(stall.lasted)),
        ..Event::new(kind, stall.to_string())
    }
}

/// Records which signal has stopped a training, of which its ranks have seen only that the launcher asked them. Nothing where
/// `before` the job the report was the same.
pub(crate) fn name_stop(run: &RunDirectory, before: Option<&TrainingReport>, by: &str) {
    // Ranks that were stopped before their first step have written none.
    let Ok(report) = run.read_report() else {
        return;
    };
    let unnamed = stopped_on_request(None, report.steps);
    if before == Some(&report) || report.stopped.as_ref() != Some(&unnamed) {
        return;
    }
    let stopped = stopped_on_request(Some(by), report.steps);
    run.note(Event {
        step: Some(report.steps as u64),
        ..Event::new(EventKind::Stop, format!("stopped {stopped}"))
    });
    let named = TrainingReport {
        stopped: Some(stopped),
        ..report
    };
    if let Err(error) = run.write_report(&named) {
        tracing::warn!("{error}");
    }
}

/// Notes how a job ended, or why its launcher could not start or watch the ranks, and writes the report of its run.
pub(crate) fn conclude_job(run: &RunDirectory, outcome: Result<&Outcome, &CliError>) {
    let failure = match outcome {
        Ok(Outcome::Failed(failure)) => Some(Event {
            rank: Some(failure.cause.rank),
            step: failure.step(),
            ..Event::new(EventKind::Failure, failure.headline())
        }),
        Ok(_) => None,
        Err(error) => Some(Event::new(EventKind::Failure, error.to_string())),
    };
    end(run, failure);
}

/// Notes how a training of this process ended, and writes the report of its run.
pub(crate) fn conclude(run: &RunDirectory, error: Option<&CliError>) {
    let failure = error.map(|error| Event::new(EventKind::Failure, error.to_string()));
    end(run, failure);
}

/// Says in the files of `run` that it is over, and why it has failed, where it has; writes its report.
fn end(run: &RunDirectory, failure: Option<Event>) {
    let why = failure.as_ref().map(|event| &*event.text);
    // Rank 0 may have been killed, and has of the others what it heard last.
    if let Err(error) = Live::end(&run.path().join(Live::FILE), why) {
        tracing::debug!("{}: {error}", Live::FILE);
    }
    if let Some(event) = failure {
        run.note(event);
    }
    write_report(run);
}

/// Removes the folder of checkpoints after a finder, which writes none.
pub(crate) fn leave_no_checkpoints(run: &RunDirectory) {
    // Only an empty folder is removed.
    if let Err(error) = std::fs::remove_dir(run.checkpoints()) {
        tracing::debug!("{}: {error}", run.checkpoints().display());
    }
}

fn write_report(run: &RunDirectory) {
    match everburn_report::write_report(run.path(), None) {
        Ok(path) => tracing::debug!("{} is written", path.display()),
        // All that it says is in the run's other files.
        Err(error) => tracing::warn!("there is no report: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use everburn_launch::{JobFailure, RankExit};

    use super::*;
    use crate::summary::tests::failure;

    #[test]
    fn a_run_that_is_resumed_keeps_when_it_began() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunDirectory::create(folder.path().join("a")).unwrap();
        let earlier = Environment {
            started_unix_ms: Some(7),
            ..Environment::default()
        };
        run.write_environment(&earlier).unwrap();
        let written = |resumed| {
            write_environment(&run, resumed);
            let text = std::fs::read_to_string(run.path().join("environment.json")).unwrap();
            serde_json::from_str::<Environment>(&text).unwrap()
        };
        let resumed = written(Some(vec!["data.size = 32 (was 64)".to_owned()]));
        assert_eq!(resumed.started_unix_ms, Some(7));
        assert_eq!(resumed.resume_changes, ["data.size = 32 (was 64)"]);
        assert!(resumed.command.is_some(), "{resumed:?}");
        let after_a_start_that_failed = written(None);
        assert!(after_a_start_that_failed.started_unix_ms > Some(7));
    }

    #[test]
    fn the_record_of_a_job_that_was_stopped_names_the_signal() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunDirectory::create(folder.path().join("a")).unwrap();
        name_stop(&run, None, "SIGHUP");
        assert!(run.read_report().is_err(), "there was none");
        let write = |stopped: &str| {
            let report = TrainingReport {
                steps: 860,
                stopped: Some(stopped.to_owned()),
                ..TrainingReport::default()
            };
            run.write_report(&report).unwrap();
            report
        };
        let stopped = || run.read_report().unwrap().stopped.unwrap();
        let of_run_before = write("on request after step 860");
        name_stop(&run, Some(&of_run_before), "SIGHUP");
        assert_eq!(stopped(), "on request after step 860");
        write("early, by the hook `a`: b");
        name_stop(&run, None, "SIGHUP");
        assert_eq!(stopped(), "early, by the hook `a`: b");
        write("on request after step 860");
        name_stop(&run, None, "SIGHUP");
        let named = "on request by SIGHUP (its terminal was closed) after step 860";
        assert_eq!(stopped(), named);
        let events = std::fs::read_to_string(run.path().join("events.jsonl")).unwrap();
        let event: Event = serde_json::from_str(&events).unwrap();
        let expected = (EventKind::Stop, Some(860), format!("stopped {named}"));
        assert_eq!((event.kind, event.step, event.text), expected);
    }

    #[test]
    fn a_store_that_is_not_reached_is_recorded_with_its_deadline() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunDirectory::create(folder.path().join("a")).unwrap();
        let text = "the store at etcd://10.0.0.1:2379/a is not reached yet".to_owned();
        let left = Duration::from_secs(290);
        let before = unix_time_ms();
        note_launch_event(&run, &LaunchEvent::StoreAwaited { text, left });
        let events = std::fs::read_to_string(run.path().join("events.jsonl")).unwrap();
        let event: Event = serde_json::from_str(&events).unwrap();
        assert_eq!((event.kind, event.ranks), (EventKind::Warning, None));
        assert!(event.waits_until_ms >= Some(before + 290_000), "{events}");
        assert!(event.text.ends_with("is not reached yet"), "{events}");
    }

    #[test]
    fn ranks_that_were_stopped_and_continue_are_one_stall() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunDirectory::create(folder.path().join("a")).unwrap();
        let (ranks, text) = (vec![1], "rank 1 is stopped".to_owned());
        note_launch_event(&run, &LaunchEvent::RanksStopped { ranks, text });
        let continued = LaunchEvent::RanksContinued {
            ranks: vec![1],
            lasted: Duration::from_secs(12),
            text: "rank 1 was stopped for 12 s, and continues".to_owned(),
        };
        note_launch_event(&run, &continued);
        let events = std::fs::read_to_string(run.path().join("events.jsonl")).unwrap();
        let noted = events.lines().map(|line| {
            let event: Event = serde_json::from_str(line).unwrap();
            (event.kind, event.lasted_ms)
        });
        let expected = [(EventKind::Stall, None), (EventKind::Warning, Some(12_000))];
        assert_eq!(noted.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_stall_that_has_ended_is_recorded_with_its_rank_step_and_length() {
        let stall = EndedStall {
            rank: 1,
            member: 2,
            step: 341,
            operation: Some("barrier".to_owned()),
            is_awaited: true,
            lasted: Duration::from_millis(14_200),
            cause: StallCause::Stopped,
            pid: Some(4711),
            host: None,
        };
        let event = ended_stall(&stall);
        assert_eq!((event.kind, event.rank), (EventKind::Stall, Some(2)));
        assert_eq!((event.step, event.lasted_ms), (Some(340), Some(14_200)));
        let text = "rank 1 (slot 2) stalled for 14 s at step 341, while others waited for it in barrier, and continues: its \
                    process was stopped (SIGSTOP; pid 4711)";
        assert_eq!(event.text, text);
        let cause = StallCause::Busy;
        let busy = ended_stall(&EndedStall { cause, ..stall });
        assert_eq!(busy.kind, EventKind::Warning);
    }

    #[test]
    fn the_event_of_a_failed_job_is_the_first_line_of_its_launcher() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunDirectory::create(folder.path().join("a")).unwrap();
        let mut failure = JobFailure {
            stopped: vec![1],
            given_up: Some("too few ranks are left".to_owned()),
            ..failure(RankExit::Code(75), "rank 2 lost rank 0\nin its log")
        };
        let report = failure.cause.report.as_mut().unwrap();
        (report.kind, report.step) = (everburn_launch::ReportKind::PeerLost, Some(7));
        let outcome = Outcome::Failed(Box::new(failure));
        let live = run.path().join(Live::FILE);
        Live::default().write(&live).unwrap();
        conclude_job(&run, Ok(&outcome));
        let events = std::fs::read_to_string(run.path().join("events.jsonl")).unwrap();
        let [line] = events.lines().collect::<Vec<_>>()[..] else {
            panic!("one event: {events}");
        };
        let event: Event = serde_json::from_str(line).unwrap();
        assert_eq!((event.kind, event.step), (EventKind::Failure, Some(7)));
        assert_eq!(Some(&*event.text), outcome.to_string().lines().next());
        assert!(
            event.text.starts_with("rank 1 was stopped (SIGSTOP)"),
            "{event:?}"
        );
        assert!(event.text.ends_with("too few ranks are left"), "{event:?}");
        let live = Live::read(run.path()).unwrap();
        assert_eq!(live.failure, Some(event.text));
    }
}
