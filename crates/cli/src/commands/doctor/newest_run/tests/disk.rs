//! Disks that do not take the files of a run.

use super::*;

#[test]
fn checkpoints_of_the_newest_run_that_could_not_be_written_are_counted_with_the_first_reason() {
    let (runs, run) = one_run();
    let failed = |text: &str| Event::new(EventKind::CheckpointFailed, text);
    let events = [20, 40].map(|step| Event {
        step: Some(step),
        ..failed(&format!("epoch-000{} failed: no space", step / 20))
    });
    write_events(&run, &events);
    let line = findings(runs.path())[0].to_string();
    assert!(line.starts_with("warn  newest run"), "{line}");
    line.assert_contains([
        "2 checkpoints could not be written; the first, after step 20: epoch-0001 failed: no space",
    ]);
    assert!(line.contains("-> make room"), "{line}");
    let written = Event {
        step: Some(60),
        ..Event::new(EventKind::Checkpoint, "epoch-0003")
    };
    write_events(&run, &[events[0].clone(), written]);
    assert_eq!(findings(runs.path()), []);
    let denied = failed("writing epoch-0001 failed: Permission denied (os error 13)");
    write_events(&run, &[denied]);
    let line = findings(runs.path())[0].to_string();
    line.assert_contains(["-> let the user of the training write in this folder"]);
    assert!(!line.contains("make room"), "{line}");
}

#[test]
fn a_run_that_has_failed_on_a_full_disk_is_to_be_given_room_before_it_starts_again() {
    let (runs, run) = one_run();
    let live = Live {
        unix_time_ms: unix_time_ms(),
        phase: Phase::Ended,
        ..Live::default()
    };
    live.write(&run.join(Live::FILE)).unwrap();
    let full = "writing a/checkpoints/epoch-0001 failed: No space left on device (os error 28)";
    let events = [
        Event::new(EventKind::CheckpointFailed, full),
        Event::new(
            EventKind::Failure,
            format!("rank 0 ended with exit code 1: {full}"),
        ),
    ];
    write_events(&run, &events);
    let lines = findings(runs.path());
    let [failed, checkpoints] = [0, 1].map(|index| lines[index].to_string());
    failed.assert_contains([
        "it has failed: rank 0 ended with exit code 1: writing ",
        "make it writable (room, permission) or name a --run-dir on another disk; then the same command starts again",
    ]);
    assert!(
        checkpoints.ends_with("-> make room on the disk of this folder"),
        "{checkpoints}"
    );
}

#[test]
fn a_run_whose_folder_cannot_be_written_is_not_called_stopped() {
    let (runs, run) = one_run();
    let live = Live {
        unix_time_ms: unix_time_ms() - 13_000,
        phase: Phase::Training,
        ranks: vec![rank_here(0, None)],
        ..Live::default()
    };
    live.write(&run.join(Live::FILE)).unwrap();
    let lines = findings(runs.path());
    assert_eq!(lines.len(), 1, "{lines:?}");
    let line = lines[0].to_string();
    line.assert_contains([
        "live.json was not written for 13 s",
        "runs: its folder cannot be written",
        "-> see whether its disk is full",
    ]);
    assert!(!line.contains("stopped"), "{line}");
    // Its end, for which there is no room in `events.jsonl`.
    Live::end(&run.join(Live::FILE), Some("rank 0: no space left")).unwrap();
    let line = findings(runs.path())[0].to_string();
    line.assert_contains(["it has failed: rank 0: no space left", "the same command"]);
}
